"""The rows of q, k and v as short integers times powers of two, so that sums of their products are exact in any order.

**Scores.** N is a power of two above the Euclidean norm of a row. With 26 bits of q / N and 27 bits of k / N every
partial sum of the products of a query and a key is, by Cauchy and Schwarz, an integer below 2**53 whatever their width
is, because the bits of both add up to 53. The powers of two are multiplied into the operands, which changes no
rounding.

**Values.** A row of v is cut into two slices, integers of 22 bits relative to a power of two above its largest number:
of a column that is always small, one slice would be next to nothing.

A slice depends on its row alone, and zeros at the end of a row change nothing.
"""

from __future__ import annotations

from .._compat import Array, Namespace, namespace
from ..host import beside
from .grid import exponent, power_of_two

# Bits of q and of k relative to the norms of their rows. Of half-precision inputs they hold all, but for numbers that
# are tiny beside the norm.
OF_Q, OF_K = 26, 27
SLICE = 22
POINT = 2.0**904


def q_slice(q: Array, *, eager: bool) -> Array:
    """Of finite rows of q: OF_Q bits beside the norm."""
    return _beside_norm(q, OF_Q, eager=eager)


def k_slices(k: Array, *, eager: bool) -> tuple[Array, Array]:
    """Of rows of k: OF_K bits beside the norm, and which rows are not finite (..., K, 1)."""
    k, bad = cleaned(k, eager=eager)
    return _beside_norm(k, OF_K, eager=eager), bad


def _beside_norm(x: Array, bits: int, *, eager: bool) -> Array:
    """x, rounded to a multiple of the norm of its row over 2**bits."""
    xp = namespace(x)
    above, below = _norms(x)
    short = whole(xp, x * (below * 2.0**bits), 1.0, eager=eager)
    return scaled(short, above * 2.0**-bits, eager=eager)


def v_slices(v: Array, *, eager: bool) -> tuple[Array, ...]:
    """Of rows of v: the slices side by side, the power of two (..., K, 1), and which rows are not finite (..., K, 1).

    The first slice has multiples of 2**-22, the second of 2**-44; both are divided by POINT, which weights come with.
    The powers are those of 16 times 8, so that rows of ordinary numbers share one.
    """
    xp, unit = namespace(v), 2.0**-SLICE / POINT
    v, bad = cleaned(v, eager=eager)
    e = 4.0 * xp.floor((_exponent(_largest(xp.abs(v))) + 1.0) * 0.25) + 3.0
    y = v * power_of_two(SLICE - e)
    first = xp.round(y)
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
    """x, overwritten if eager, times a factor for each row, or for all."""
    if not eager:
        return x * power
    x *= power
    return x


def _norms(x: Array) -> tuple[Array, Array]:
    """N, a power of two with ||x|| < 0.993 N for each row, and 1 / N.

    With s <= max |x| < 2 s, the sum n of ceil(64 |x| / s)**2 is exact, and ||x|| <= s sqrt(n) / 64. N / s * 64 is a
    power of two above sqrt(n (1 + 2**-6)): the slack of 0.7 % is for the rounding of the slices, whose norm is below
    2**bits + sqrt(width) / 2 in their units, which is enough up to a width of 2**39 at 26 bits.
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
