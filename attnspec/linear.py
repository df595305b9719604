"""Linear maps whose weights keep the head axis, so that splitting and merging heads never reshapes (MULTIHEAD-1)."""

from __future__ import annotations

from . import _compat
from ._compat import Array, widened


def linear(x: Array, w: Array, b: Array | None = None, *, axes: int = 1) -> Array:
    """Contract the last `axes` axes of x with the first of w, in float32 or wider; result in the dtype of x."""
    xp = _compat.namespace(x)
    y = xp.tensordot(widened(x), xp.astype(w, widened(x).dtype, copy=False), axes=axes)
    y = y if b is None else y + xp.astype(b, y.dtype, copy=False)
    return xp.astype(y, x.dtype, copy=False)


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
