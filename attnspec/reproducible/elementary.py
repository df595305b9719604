"""exp, log, sqrt, tanh, erf, erfc, sin and cos of float64, to the same bits everywhere.

Each splits its argument into a point of a table (`constants`) and a small rest r, exactly, and adds a few terms of
Taylor's series in r to the number in the table. The terms are summed in fixed point: in `a = round(r * a) + c`,
Horner's rule in units of 2**-58 or so, the `round` settles the product (see `grid`). The number in the table is known
to more than 53 bits, so what remains, but for some hundredths, is the one rounding of the last addition.

Errors are stated in units of the last place of the result. NaN gives NaN; a result below 2**-900 is 0; what is below
2**-1022 counts as 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from .._compat import Array, namespace
from ..host import DEFAULT, host_of
from . import constants
from .constants import ERF_END, ERFCX_END, FINE, LN2, PI, STEPS, TANH_END, TURN_PARTS, UNIT, nearest, rest, short
from .grid import LOWEST, exponent, looked_up, power_of_two, settled

_PIECE = 2**16


def _of_any_size(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """The function as one program where the framework compiles, and else on pieces that stay in a processor's cache."""

    @wraps(function)
    def whole(x: Array) -> Array:
        host, xp = host_of(x), namespace(x)
        if not host.concrete(x) or host.run is not DEFAULT.run or math.prod(x.shape) <= _PIECE:
            return host.run(function, x)
        flat, n = xp.reshape(x, (-1,)), math.prod(x.shape)
        pieces = [function(flat[start : min(n, start + _PIECE)]) for start in range(0, n, _PIECE)]
        return xp.reshape(xp.concat(pieces), x.shape)

    return whole


@_of_any_size
def exp(x: Array) -> Array:
    """e**x. Error below 0.56.

    With n = round(1024 x / ln 2) = 1024 k + j and r = x - n ln 2 / 1024: e**x = 2**k 2**(j / 1024) e**r, |r| < 2**-11.
    n has 20 bits and ln 2 / 1024 two parts of 33 bits, so both products are exact. The table has twice 2**(j / 1024),
    because 2**(k - 1) is finite wherever e**x is.
    """
    xp = namespace(x)
    inside = (x > _EXP_LOWEST) & (x <= _EXP_HIGHEST)
    n, r = _octaves(xp.where(inside, x, 0.0))
    high, low = looked_up(constants.columns, "powers", n & 1023)
    y = high + (xp.round(high * (r * _polynomial(_EXP, r))) + low) * 2.0**-58
    y = y * power_of_two((n >> 10) - 1)
    return xp.where(inside, y, xp.where(x <= _EXP_LOWEST, 0.0, xp.where(x > _EXP_HIGHEST, math.inf, x)))


# Not `math.log(2)`: where n changes must not depend on a library.
_EXP_LOWEST, _EXP_HIGHEST = -900 * nearest(LN2), 1024 * nearest(LN2)
_EXP = tuple(2.0**58 / math.factorial(k) for k in (1, 2, 3, 4))  # (e**r - 1) / r


def _octaves(x: Array) -> tuple[Array, Array]:
    """n = round(1024 x / ln 2) and x - n ln 2 / 1024, for |n| <= 2**20."""
    xp = namespace(x)
    n = xp.round(x * _PER_OCTAVE)
    return xp.astype(n, xp.int64), (x - n * _OCTAVE_HIGH) - n * _OCTAVE_LOW


_PER_OCTAVE = 1024 / nearest(LN2)
_OCTAVE_HIGH = short(LN2 >> 10, 43)
_OCTAVE_LOW = short(rest(LN2 >> 10, _OCTAVE_HIGH), 76)


@_of_any_size
def log(x: Array) -> Array:
    """The natural logarithm. Error below 0.53, near 1 too.

    x = 2**e m with 1 <= m < 2, and the table has c, which is 1 / m to 13 bits: log x = e ln 2 - log c + log(1 + r) with
    r = m c - 1, |r| < 2**-9. Of m, a part of 31 bits and the rest have exact products with c; e ln 2 - log c is a
    multiple of 2**-42 and a rest. So the sum of the large parts is exact, and just below 1, where e = -1 and c = 1/2,
    the logarithms of 2 cancel.
    """
    xp = namespace(x)
    inside = (x >= 2.0**LOWEST) & (x < math.inf)
    z = xp.where(inside, x, 1.0)
    e = exponent(z)
    m = z * power_of_two(1.0 - e) * 0.5
    index = xp.astype(xp.round(m * 512.0), xp.int64) - 512
    c, high, low = looked_up(constants.columns, "logarithms", index)
    m_high = _on_grid(m, 30)
    r_high, r_low = m_high * c - 1.0, (m - m_high) * c
    r = r_high + r_low
    correction = _on_grid(r * (r * _polynomial(_LOG, r)), 57) * 2.0**-58 + (e * _LN2_LOW + low)
    y = _sum((e * _LN2_HIGH + high) + r_high, r_low, correction)
    return xp.where(inside, y, xp.where(xp.abs(x) < 2.0**LOWEST, -math.inf, xp.where(x < 0.0, math.nan, x)))


_LOG = tuple((-1) ** (k + 1) * 2.0**58 / k for k in (2, 3, 4, 5, 6))  # (log(1 + r) - r) / r^2
_LN2_HIGH = short(LN2, 42)
_LN2_LOW = short(rest(LN2, _LN2_HIGH), 84)


@_of_any_size
def sqrt(x: Array) -> Array:
    """The square root, correctly rounded.

    x = 4**e y with 1 <= y < 4, and s, a multiple of u = 2**-52, is what the framework takes for the root of y. s is the
    nearest such multiple iff -s u < d <= s u for d = y - s^2. If it is not, d / 2 s says how far it is away, and one
    more look at d corrects that.
    """
    xp = namespace(x)
    inside = (x >= 2.0**LOWEST) & (x < math.inf)
    z = xp.where(inside, x, 1.0)
    e = xp.floor(exponent(z) * 0.5)
    y = z * power_of_two(-2.0 * e)
    s = xp.round(xp.clip(xp.sqrt(y), 1.0, 2.0) * 2.0**52) * 2.0**-52
    s = s + xp.round(_defect(y, s) / s * 2.0**51) * 2.0**-52
    d, half = _defect(y, s), s * 2.0**-52
    s = xp.where(d > half, s + 2.0**-52, xp.where(d <= -half, s - 2.0**-52, s))
    edge = xp.where(xp.abs(x) < 2.0**LOWEST, 0.0, xp.where(x < 0.0, math.nan, x))
    return xp.where(inside, s * power_of_two(e), edge)


def _defect(y: Array, s: Array) -> Array:
    """y - s^2, exact where s is the root to two units: a part of s with 26 bits and the rest have exact products."""
    high = _on_grid(s, 25)
    low = s - high
    return ((y - high * high) - 2.0 * high * low) - low * low


@_of_any_size
def tanh(x: Array) -> Array:
    """The hyperbolic tangent. Error below 0.6."""
    return _odd(x, "tanh", TANH_END)


@_of_any_size
def erf(x: Array) -> Array:
    """The error function. Error below 0.8."""
    return _odd(x, "erf", ERF_END)


def _odd(x: Array, name: str, end: int) -> Array:
    """An odd function by its Taylor series around the nearest multiple a of 1 / STEPS; a constant from `end` on.

    f(a + r) = f(a) + r + r (A_0 + A_1 r + A_2 r^2 + ...), where |r| <= 2**-9 and A_0 = f'(a) - 1. The first sum comes
    with its error, so that where a = 0, f(a) = 0 nothing is lost.
    """
    xp = namespace(x)
    x = settled(x)
    z = xp.abs(x)
    n, r = _steps(xp.where(z < end, z, float(end)))
    high, low, *slopes = looked_up(constants.columns, name, n)
    correction = xp.round(r * _polynomial(slopes, r) * 2.0 ** (FINE - UNIT)) + low
    y = _sum(high, r, correction * 2.0**-FINE)
    return xp.where(xp.isnan(x), x, y * xp.sign(x))


def _steps(z: Array) -> tuple[Array, Array]:
    """The number of the nearest multiple of 1 / STEPS, and what it leaves of z."""
    xp = namespace(z)
    n = xp.round(z * STEPS)
    return xp.astype(n, xp.int64), z - n * (1.0 / STEPS)


@_of_any_size
def erfc(x: Array) -> Array:
    """1 - erf(x). Error below 0.6, on the right (up to 24.8, where it is 2**-900) as on the left.

    For z = |x| it is exp(-z^2) erfcx(z), where erfcx varies little. Each factor is a number of 26 bits times 1 + p: the
    product of the numbers is exact, and all else is a small part of it. z^2 is the square of a part of z with 25 bits,
    which is exact, and a rest, which joins the rest in the reduction of exp. For x < 0 it is 2 less that.
    """
    xp = namespace(x)
    x = xp.where(xp.abs(x) < 2.0**-60, 0.0, x)
    z = xp.abs(x)
    z = xp.where(z < ERFCX_END, z, float(ERFCX_END))
    part = _on_grid(z, 20)
    n, r = _octaves(-part * part)
    r = r - _on_grid((z - part) * (z + part), 75)
    power, of_power = looked_up(constants.columns, "short powers", n & 1023)
    of_power = _compound(of_power, xp.round(r * _polynomial(_EXP, r)))
    index, r = _steps(z)
    scaled, of_scaled, *slopes = looked_up(constants.columns, "erfcx", index)
    of_scaled = of_scaled + xp.round(r * _polynomial(slopes, r))
    high = power * scaled
    low = _on_grid(high * (_compound(of_power, of_scaled) * 2.0**-58), 64)
    k, side = power_of_two(n >> 10), xp.sign(x)
    y = _sum(1.0 - side, side * (high * k), side * (low * k))
    return xp.where(xp.isnan(x), x, settled(y))


def _compound(p: Array, q: Array) -> Array:
    """(1 + p) (1 + q) - 1, all in units of 2**-58."""
    return (p + q) + namespace(p).round(p * q * 2.0**-58)


@_of_any_size
def sin(x: Array) -> Array:
    """The sine. Error below 0.6; NaN where |x| > 2**23."""
    return _wave(x, 0)


@_of_any_size
def cos(x: Array) -> Array:
    """The cosine. Error below 0.6; NaN where |x| > 2**23."""
    return _wave(x, 256)


def _wave(x: Array, ahead: int) -> Array:
    """The sine of x + ahead p, where p = 2 pi / 1024.

    With n = round(x / p) < 2**31 and r = x - n p it is S cos r + C sin r, S and C from a table of one turn. No float64
    but 0 comes closer to a multiple of pi / 2 than 2**-62 (J.-M. Muller, Elementary Functions), so p is needed to
    2**-150: five parts of 22 bits, whose products with n are exact, and one more. x less the first two products is
    exact, the sums with the next two come with their errors, and r and `low` together have 2**-57 of r. C is an integer
    K and a rest, which is small where S is, and 0 where S = 0: S + K r loses nothing.
    """
    xp = namespace(x)
    x = settled(x)
    inside = xp.abs(x) <= 2.0**23
    z = xp.where(inside, x, 0.0)
    n = xp.round(z * _PER_TURN)
    first, second, third, fourth, fifth, last = TURN_PARTS
    r, low = _two_sum((z - n * first) - n * second, -n * third)
    r, lower = _two_sum(r, -n * fourth)
    r, low = _two_sum(r, ((low + lower) - n * fifth) - _on_grid(n * last, 150))
    index = (xp.astype(n, xp.int64) + ahead) & 1023
    s, s_low, whole, part = looked_up(constants.columns, "sines", index)
    u = r * xp.where(xp.abs(r) < 2.0**-60, 0.0, r)
    of_cos = _on_grid(s * (u * _polynomial(_COS, u)), 32)
    of_sin = _on_grid((whole + part) * (r * (u * _polynomial(_SIN, u))), 32)
    correction = (_on_grid(part * r, 90) + s_low * 2.0**-FINE) + (of_cos + of_sin) * 2.0**-58
    y = _sum(s, whole * r, whole * low + correction)
    return xp.where(inside, y, math.nan)


_PER_TURN = 512 / nearest(PI)
_COS = (-(2.0**58) / 2, 2.0**58 / 24)  # (cos r - 1) / r^2, in r^2
_SIN = (-(2.0**58) / 6, 2.0**58 / 120)  # (sin r / r - 1) / r^2


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b in float64, and its error."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def _sum(high: Array, low: Array, correction: Array) -> Array:
    """high + low + correction, as if rounded once, for |high| >= |low| or high = 0."""
    y = high + low
    return y + ((low - (y - high)) + correction)


def _polynomial(coefficients: Sequence[Any], r: Array) -> Array:
    """c_0 + c_1 r + c_2 r^2 + ... by Horner's rule, each product rounded to an integer."""
    xp = namespace(r)
    a = coefficients[-1]
    for c in coefficients[-2::-1]:
        a = xp.round(r * a) + c
    return a


def _on_grid(x: Array, bits: int) -> Array:
    """x rounded to a multiple of 2**-bits, unless it is too large for that: settled in either case."""
    return namespace(x).round(x * 2.0**bits) * 2.0**-bits
