"""Questions about the numbers of an operation, answered exactly: is a product rounded, does a sum's order matter.

NumPy alone, float64 and float32; everything about one operation at a time. `exactness.py` asks them.
"""

from __future__ import annotations

import numpy as np

from .masks import Array

BITS = {"float64": 53, "float32": 24}
LOWEST = {"float64": -1022, "float32": -126}  # the exponent of the least normal number


def rounded_product(a: Array, b: Array, product: Array) -> Array:
    """Where a b is finite and another number than its rounded `product`, entry by entry."""
    a, b, product = np.broadcast_arrays(a, b, product)
    finite = np.isfinite(a) & np.isfinite(b)
    if product.dtype == np.float32:
        return finite & (a.astype(np.float64) * b.astype(np.float64) != product)
    x, m = np.frexp(np.where(finite, a, 0.0))
    y, n = np.frexp(np.where(finite, b, 0.0))
    (x1, x2), (y1, y2) = _halves(x), _halves(y)
    mantissa = x * y
    lost = ((x1 * y1 - mantissa) + x1 * y2 + x2 * y1) + x2 * y2
    return finite & ((lost != 0) | (np.ldexp(product, -m - n) != mantissa))


def _halves(x: Array) -> tuple[Array, Array]:
    """Two numbers of 26 bits whose sum is x, |x| <= 1 (Veltkamp)."""
    scaled = x * (2.0**27 + 1.0)
    high = scaled - (scaled - x)
    return high, x - high


def lowest_bit(x: Array) -> Array:
    """The exponent of the last bit that is set in each number; a large one for 0 and what is not finite."""
    bits = BITS[x.dtype.name]
    mantissa, exponent = np.frexp(np.where(np.isfinite(x), x, 0.0))
    whole = np.abs(np.ldexp(mantissa.astype(np.float64), bits)).astype(np.int64)
    trailing = np.frexp((whole & -whole).astype(np.float64))[1] - 1
    return np.where(whole == 0, _NEVER, exponent - bits + trailing)


_NEVER = 10_000


def ordered_sum(x: Array, axis: tuple[int, ...]) -> Array:
    """Where the sum over these axes (which stay, with length 1) depends on its order, or on one rounding of it."""
    unit = np.min(lowest_bit(x), axis=axis, keepdims=True, initial=_NEVER)
    finite = np.all(np.isfinite(x), axis=axis, keepdims=True)
    units = np.ldexp(np.where(finite, x, 0.0).astype(np.float64), -np.where(unit == _NEVER, 0, unit))
    ups, downs = (np.sum(np.maximum(part, 0.0), axis=axis, keepdims=True) for part in (units, -units))
    # A float64 sum of positive integers is below 2**53 if and only if the sum itself is.
    return np.asarray(finite & (np.maximum(ups, downs) >= 2.0 ** BITS[x.dtype.name]))


def ordered_matmul(a: Array, b: Array) -> Array:
    """Where an entry of a (..., n, k) @ b (..., k, m) depends on the order of its sum or rounds a product."""
    low_a, low_b = lowest_bit(a), lowest_bit(b)
    least = np.min(low_a, -1, keepdims=True, initial=_NEVER) + np.min(low_b, -2, keepdims=True, initial=_NEVER)
    ordered = _ordered_matmul(a, b, np.minimum(least, _NEVER))
    # The last bits of a row and a column need not meet in any product: a closer look is long.
    return _ordered_matmul(a, b, _least_sum(low_a, low_b)) if ordered.any() else ordered


def _ordered_matmul(a: Array, b: Array, unit: Array) -> Array:
    finite = np.all(np.isfinite(a), axis=-1)[..., :, None] & np.all(np.isfinite(b), axis=-2)[..., None, :]
    sizes = [np.abs(np.where(np.isfinite(x), x, 0.0)).astype(np.float64) for x in (a, b)]
    # Powers of two of rows and columns first, so that the sum of magnitudes neither overflows nor vanishes.
    rows, columns = (
        np.frexp(np.max(x, axis=axis, keepdims=True, initial=0.0))[1] for x, axis in zip(sizes, (-1, -2), strict=True)
    )
    magnitude = np.matmul(np.ldexp(sizes[0], -rows), np.ldexp(sizes[1], -columns))
    units = np.ldexp(magnitude * (1.0 + 2.0**-40), np.minimum(rows + columns - unit, 2000))
    name = a.dtype.name
    return np.asarray(finite & (unit < _NEVER) & ((units >= 2.0 ** BITS[name]) | (unit < LOWEST[name])))


def _least_sum(low_a: Array, low_b: Array) -> Array:
    """The least of low_a (..., n, k) + low_b (..., k, m) over k: the exponent of the last bit of any product."""
    shape = (*np.broadcast_shapes(low_a.shape[:-2], low_b.shape[:-2]), low_a.shape[-2], low_b.shape[-1])
    least = np.full(shape, 2 * _NEVER)
    for k in range(low_a.shape[-1]):
        np.minimum(least, low_a[..., :, k, None] + low_b[..., k, None, :], out=least)
    return np.minimum(least, _NEVER)


def flushed(x: Array) -> Array:
    """The numbers with 0 in place of subnormal ones, as some processors' settings have it."""
    return np.where(subnormal(x), x.dtype.type(0), x) if x.dtype.name in LOWEST else x


def subnormal(x: Array) -> Array:
    """Where numbers are too small to be normal, and not 0."""
    if x.dtype.name not in LOWEST:
        return np.zeros(x.shape, bool)
    return np.asarray((x != 0) & (np.abs(x) < 2.0 ** LOWEST[x.dtype.name]))


def differ(a: Array, b: Array) -> Array:
    """Where two results are different numbers; NaN is NaN, a zero a zero, and a subnormal number a zero too."""
    if a.dtype.kind != "f":
        return np.asarray(a != b)
    a, b = flushed(a), flushed(b)
    return np.asarray((a != b) & ~(np.isnan(a) & np.isnan(b)))


def same(a: Array, b: Array) -> Array:
    """Where two float64 arrays have the same bits; one NaN is like another."""
    return np.asarray((np.isnan(a) & np.isnan(b)) | ((a == b) & (np.signbit(a) == np.signbit(b))))
