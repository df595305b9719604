"""The rows of q, k and v as short integers times powers of two, so that sums of their products are exact in any order.

**Scores.** N is a power of two above the Euclidean norm of a row. With `grade.q` bits of q / N and `grade.k` bits of
k / N every partial sum of the products of a query and a key is, by Cauchy and Schwarz, an integer below 2**53 whatever
their width is, because the bits of both add up to 53. The powers of two are multiplied into the operands, which
changes no rounding. Of float32 inputs the rest of q, 9 bits, meets k in a second product, of float32 numbers.

**Values.** A row of v is cut into slices, integers of 22 bits relative to a power of two above its largest number.

A slice depends on its row alone, and zeros at the end of a row change nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from .._compat import Array, Namespace, namespace
from ..host import beside
from .grid import exponent, power_of_two


class Grade(NamedTuple):
    """How many bits of what go into the products."""

    q: int
    k: int
    corrected: bool  # whether the rest of q is multiplied, too
    slices: int  # of a value, of 22 bits each


SLICE = 22
POINT = 2.0**904

# Of half-precision q and k, but for numbers that are tiny beside the norm of their row, 26 and 27 bits hold all.
# Values have two slices in either grade: of a column that is always small, 22 bits beside the largest of a row would be
# next to nothing.
FULL = Grade(22, 31, True, 2)
HALF = Grade(26, 27, False, 2)


def q_slices(q: Array, grade: Grade, *, eager: bool) -> tuple[Array, ...]:
    """Of finite rows of q, times the units of a score if the rest is used: the slice, and the rest in float32."""
    xp = namespace(q)
    above, below = _norms(q)
    y = q * (below * 2.0**grade.q)
    bits = _correction(grade, q.shape[-1])
    if bits is None:
        return (scaled(whole(xp, y, 1.0, eager=eager), above * 2.0**-grade.q, eager=eager),)
    high = xp.round(y)
    low = whole(xp, (y - high) * 2.0**_REST, 1.0, eager=eager)
    low = scaled(low, _float32_power(above, _Q_RANGE, grade.q + _REST), eager=eager)
    return scaled(high, above * 2.0**-grade.q, eager=eager), xp.astype(low, xp.float32)


def k_slices(k: Array, grade: Grade, *, eager: bool) -> tuple[Array, ...]:
    """Of rows of k: the slice, the short slice in float32 if it is used, and which rows are not finite (..., K, 1)."""
    xp = namespace(k)
    k, bad = cleaned(k, eager=eager)
    above, below = _norms(k)
    whole_k = whole(xp, k * (below * 2.0**grade.k), 1.0, eager=eager)
    slices = (scaled(whole_k, above * 2.0**-grade.k, eager=eager),)
    bits = _correction(grade, k.shape[-1])
    if bits is None:
        return *slices, bad
    short = whole(xp, k * (below * 2.0**bits), 1.0, eager=eager)
    short = scaled(short, _float32_power(above, _K_RANGE, bits), eager=eager)
    return *slices, xp.astype(short, xp.float32), bad


def v_slices(v: Array, grade: Grade, *, eager: bool) -> tuple[Array, ...]:
    """Of rows of v: the slices side by side, the power of two (..., K, 1), and which rows are not finite (..., K, 1).

    The first slice has multiples of 2**-22, the second of 2**-44; both are divided by POINT, which weights come with.
    The powers are those of 16 times 8, so that rows of ordinary numbers share one.
    """
    xp, unit = namespace(v), 2.0**-SLICE / POINT
    v, bad = cleaned(v, eager=eager)
    e = 4.0 * xp.floor((_exponent(_largest(xp.abs(v))) + 1.0) * 0.25) + 3.0
    y = v * power_of_two(SLICE - e)
    first = xp.round(y)
    if grade.slices == 1:
        return first * unit, power_of_two(e), bad
    rest = whole(xp, y - first, 2.0**-SLICE, eager=eager)
    return xp.concat([first, rest], axis=-1) * unit, power_of_two(e), bad


def cleaned(x: Array, *, eager: bool) -> tuple[Array, Array]:
    """x with 0 for what is not finite, and the rows where that was, (..., 1)."""
    xp = namespace(x)
    finite = xp.isfinite(x)
    bad = ~xp.all(finite, axis=-1, keepdims=True)
    return (x if eager and not bool(xp.any(bad)) else xp.where(finite, x, 0.0)), bad


def whole(xp: Namespace, x: Array, unit: float, *, eager: bool) -> Array:
    """x, overwritten if eager, as a multiple of the unit, a power of two, for |x| < 2**51 unit."""
    if not eager:
        return xp.round(x * (1.0 / unit)) * unit
    x += 1.5 * 2.0**52 * unit
    x -= 1.5 * 2.0**52 * unit
    return x


def scaled(x: Array, power: Array, *, eager: bool) -> Array:
    """x, overwritten if eager, times a power of two for each row."""
    if not eager:
        return x * power
    x *= power
    return x


def _norms(x: Array) -> tuple[Array, Array]:
    """N, a power of two with ||x|| < 0.993 N for each row, and 1 / N.

    With s <= max |x| < 2 s, the sum n of ceil(64 |x| / s)**2 is exact, and ||x|| <= s sqrt(n) / 64. N / s * 64 is a
    power of two above sqrt(n (1 + 2**-6)): the slack of 0.7 % is for the rounding of the slices, whose norm is below
    N / 2**-bits + sqrt(width) / 2, which is enough up to a width of 2**31 at 22 bits.
    """
    xp, x = namespace(x), namespace(x).abs(x)
    e = _exponent(_largest(x))
    y = xp.ceil(x * power_of_two(6.0 - e))
    n = xp.vecdot(y, y)[..., None]
    e = e - 6.0 + xp.floor((exponent(xp.where(n < 1.0, 1.0, n) * (1.0 + 2.0**-6)) + 2.0) * 0.5)
    return power_of_two(e), power_of_two(-e)


def _largest(x: Array) -> Array:
    """Of each row of x >= 0, 0 for a row of no numbers."""
    xp = namespace(x)
    if x.shape[-1] == 0:
        return xp.zeros((*x.shape[:-1], 1), dtype=x.dtype, **beside(x))
    return xp.max(x, axis=-1, keepdims=True)


def _exponent(largest: Array) -> Array:
    """floor(log2), and for a row of zeros a number below that of every other row."""
    e = exponent(largest)
    return namespace(e).where(e < _ZERO, _ZERO, e)


_ZERO = -400.0

# The product in float32: integers of the rest of q, up to 2**8, and of k, of these bits. The norm of the first is at
# most 2**8 sqrt(D), and that of the second below 0.993 * 2**bits + sqrt(D) / 2, so that up to each of these widths
# their product, and with it every partial sum, is below 2**24.
_REST = 9
_SHORT = ((256, 12), (1024, 10), (4096, 8), (16384, 6))


def _correction(grade: Grade, D: int) -> int | None:
    return next((bits for width, bits in _SHORT if width >= D), None) if grade.corrected else None


# Norms for which products in float32 keep its normal range: their units are at least 2**(-50 - 33 - 43), and their sums
# below 2**(65 + 81 - 43 + 24). The ranges are the same for queries and keys, whose scores have units of about 2**-17.
_Q_RANGE, _K_RANGE = (2.0**-50, 2.0**65), (2.0**-33, 2.0**81)


def _float32_power(above: Array, within: tuple[float, float], bits: int) -> Array:
    """N 2**-bits, and 0 for a norm out of the range, whose rest is left out."""
    inside = (above >= within[0]) & (above <= within[1])
    return namespace(above).where(inside, above * 2.0**-bits, 0.0)
