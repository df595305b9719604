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
    return _compat.namespace(x).moveaxis(linear(x, w, b), -2, -3)


def out_of_heads(heads: Array, w: Array, b: Array | None) -> Array:
    """(..., H, Q, E) by (H, E, M) -> (..., Q, M)."""
    return linear(_compat.namespace(heads).moveaxis(heads, -3, -2), w, b, axes=2)
