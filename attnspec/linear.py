"""Linear maps whose weights keep the head axis, so that splitting and merging heads never reshapes (MULTIHEAD-1)."""

from __future__ import annotations

from . import _compat
from ._compat import Array, cast, widened
from .derivative import differentiable
from .fresh import added
from .gradients import linear_backward


def linear(x: Array, w: Array, b: Array | None = None, *, axes: int = 1) -> Array:
    """Contract the last `axes` axes of x with the first of w, in float32 or wider; result in the dtype of x."""
    (y,) = differentiable(_linear, linear_backward, (x, w, b, axes))
    return cast(y, x.dtype)


def _linear(operands: tuple[Array, Array, Array | None, int]) -> tuple[Array]:
    x, w, b, axes = operands
    y = _compat.namespace(x).tensordot(widened(x), cast(w, widened(x).dtype), axes=axes)
    return (y if b is None else added(y, cast(b, y.dtype)),)


def into_heads(x: Array, w: Array, b: Array | None) -> Array:
    """(..., Q, M) by (M, H, D) -> (..., H, Q, D)."""
    return _swapped(linear(x, w, b))


def out_of_heads(heads: Array, w: Array, b: Array | None) -> Array:
    """(..., H, Q, E) by (H, E, M) -> (..., Q, M)."""
    return linear(_swapped(heads), w, b, axes=2)


def _swapped(x: Array) -> Array:
    """The head axis and the sequence axis exchanged. (`moveaxis` has no batching rule in torch.)"""
    n = x.ndim
    return _compat.namespace(x).permute_dims(x, (*range(n - 3), n - 2, n - 3, n - 1))
