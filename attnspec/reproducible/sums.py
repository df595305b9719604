"""Sums and products of matrices that are the same in any order: sums of integers below 2**53.

Numbers are cut into slices, integers of a few bits relative to the largest of their row. Products of slices are exact,
and so are sums of those products, whatever BLAS does; only the last few additions, of one number to one number, round.
"""

from __future__ import annotations

import math

from .._compat import Array, namespace, turned
from .grid import exponent, power_of_two, settled

# A slice of a factor has 20 bits: products below 2**38, and three sums of 8192 of them below 2**53.
_BITS, _LONGEST = 20, 8192
_SUMMED = 26  # bits of a slice of a term: sums of 2**27 of them stay exact

_FLOOR = -960.0  # rows whose largest number is below 2**-960 count as 0, and powers of two stay in range


def total(x: Array, *, axis: int | tuple[int, ...] | None, keepdims: bool) -> Array:
    """The sum over an axis, several or all; with an infinity or NaN in it, the sum of those."""
    xp = namespace(x)
    axes = tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    if not axes or 0 in x.shape:
        return xp.sum(x, axis=axes, keepdims=keepdims) if axes else x
    finite = xp.isfinite(x)
    clean = xp.where(finite, x, 0.0)
    e = _above(xp.max(xp.abs(clean), axis=axes, keepdims=True))
    y = clean * power_of_two(_SUMMED - 1.0 - e)
    high = xp.round(y)
    low = xp.round((y - high) * 2.0**_SUMMED)
    highs, lows = (xp.sum(part, axis=axes, keepdims=True) for part in (high, low))
    found = settled((highs + lows * 2.0**-_SUMMED) * power_of_two(e - (_SUMMED - 1.0)))
    rest = xp.sum(xp.where(finite, 0.0, x), axis=axes, keepdims=True)
    found = xp.where(xp.all(finite, axis=axes, keepdims=True), found, rest)
    return found if keepdims else xp.squeeze(found, axis=axes)


def product(a: Array, b: Array, *, vectors: bool = False) -> Array:
    """a (..., n, k) @ b (..., k, m): NaN where a row of a or a column of b is not finite.

    To 2**-58 of the largest product of two numbers in a row and a column; exact for short numbers. What a row of b
    holds that meets only zeros of a changes nothing; with `vectors`, columns of b are what stands apart instead, and no
    column changes what another one gives.
    """
    xp = namespace(a)
    k = a.shape[-1]
    if 0 in (*a.shape[-2:], b.shape[-1]):
        return xp.matmul(a, b)
    cuts = [(start, min(k, start + _LONGEST)) for start in range(0, k, _LONGEST)]
    pieces = [_product(a[..., start:stop], b[..., start:stop, :], vectors) for start, stop in cuts]
    found = pieces[0]
    for piece in pieces[1:]:
        found = found + piece
    return found


def _product(a: Array, b: Array, vectors: bool) -> Array:
    xp = namespace(a)
    fine_a, fine_b = xp.isfinite(a), xp.isfinite(b)
    a = xp.where(fine_a, a, 0.0)
    (b1, b2, b3), of_b = _slices(xp.where(fine_b, b, 0.0), -2 if vectors else -1)
    if not vectors:
        # First in range, so that no power of two takes a number out of it.
        e = _above(xp.max(xp.abs(a), axis=-1, keepdims=True))
        a, of_row = a * power_of_two(-e) * turned(of_b), power_of_two(e)
    (a1, a2, a3), of_a = _slices(a, -1)
    first = xp.matmul(a1, b1)
    second = xp.matmul(a1, b2) + xp.matmul(a2, b1)
    third = xp.matmul(a1, b3) + xp.matmul(a2, b2) + xp.matmul(a3, b1)
    found = (first + (second + third * 2.0**-_BITS) * 2.0**-_BITS) * of_a
    fine = xp.all(fine_a, axis=-1, keepdims=True) & xp.all(fine_b, axis=-2, keepdims=True)
    return xp.where(fine, settled(found * (of_b if vectors else of_row)), math.nan)


def _slices(x: Array, axis: int) -> tuple[tuple[Array, Array, Array], Array]:
    """x = (x1 + x2 2**-20 + x3 2**-40) times the power of two that comes with them, for each row along `axis`."""
    xp = namespace(x)
    e = _above(xp.max(xp.abs(x), axis=axis, keepdims=True))
    y = x * power_of_two(_BITS - 1.0 - e)
    first = xp.round(y)
    y = (y - first) * 2.0**_BITS
    second = xp.round(y)
    third = xp.round((y - second) * 2.0**_BITS)
    return (first, second, third), power_of_two(e - (_BITS - 1.0))


def _above(largest: Array) -> Array:
    """e with largest < 2**e."""
    xp = namespace(largest)
    e = exponent(largest) + 1.0
    return xp.where(e < _FLOOR, _FLOOR, e)
