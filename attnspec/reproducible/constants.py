"""The tables of the elementary functions, computed with integers when a function is first called.

Numbers here are integers in units of 2**-192, good to 2**-120 and more. An entry of a table is such a number rounded to
the nearest float64, or split into a number with few bits and the rest of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise

BITS = 192
ONE = 1 << BITS

Columns = tuple[tuple[float, ...], ...]


@cache
def columns(name: str) -> Columns:
    """The table of that name: one of `TABLES`."""
    return TABLES[name]()


def nearest(x: int, bits: int = 0) -> float:
    """x 2**bits, rounded to the nearest float64."""
    return math.ldexp(x / ONE, bits)


def short(x: int, lowest: int) -> float:
    """x, rounded to a multiple of 2**-lowest."""
    unit = 1 << BITS - lowest
    return math.ldexp((x + unit // 2) // unit, -lowest)


def rest(x: int, *parts: float) -> int:
    """What the parts leave of x."""
    return x - sum(fixed(part) for part in parts)


def fixed(x: float) -> int:
    """A float64 that is a multiple of 2**-BITS."""
    top, bottom = x.as_integer_ratio()
    return top * ONE // bottom


def _split(values: Iterable[int], bits: int) -> Columns:
    """Each number in float64, and what that leaves of it in units of 2**-bits."""
    values = list(values)
    high = tuple(map(nearest, values))
    return high, tuple(nearest(rest(x, part), bits) for x, part in zip(values, high, strict=True))


def _relative(series: Iterable[list[int]]) -> Columns:
    """The first numbers to 26 bits; what that leaves and the others, relative to it, in units of 2**-58."""
    series = list(series)
    high = tuple(short(c[0], 26 + BITS - c[0].bit_length()) for c in series)
    others = ((fixed(part), rest(c[0], part), *c[1:]) for c, part in zip(series, high, strict=True))
    return high, *zip(*([nearest(x * ONE // whole, 58) for x in parts] for whole, *parts in others), strict=True)


def _artanh(one: int, over: int, sign: int = 1) -> int:
    """artanh(one / over) = y + y^3 / 3 + y^5 / 5 + ...; with sign -1 arctan, y - y^3 / 3 + y^5 / 5 - ..."""
    power = total = one * ONE // over
    k = 3
    while abs(power) > 1:
        power = sign * power * one * one // (over * over)
        total += power // k
        k += 2
    return total


LN2 = 2 * _artanh(1, 3)
PI = 16 * _artanh(1, 5, -1) - 4 * _artanh(1, 239, -1)
_ROOT_OF_PI = math.isqrt(PI << BITS)


def _powers_of_root() -> list[int]:
    """2**(j / 1024) for j = 0 ... 1023."""
    root = 2 * ONE
    for _ in range(10):
        root = math.isqrt(root << BITS)
    values = [ONE]
    while len(values) < 1024:
        values.append(values[-1] * root >> BITS)
    return values


def _logarithms() -> Columns:
    """For m = j / 512, j = 512 ... 1024: c = 1 / m to 13 bits, -log c as a multiple of 2**-42, and the rest of it."""
    inverses = [(2**23 + j) // (2 * j) for j in range(512, 1025)]  # of 2**-13
    values = [0]
    for above, below in pairwise(inverses):
        values.append(values[-1] + 2 * _artanh(above - below, above + below))
    values[-1] = LN2
    high = tuple(short(x, 42) for x in values)
    low = tuple(short(rest(x, part), 84) for x, part in zip(values, high, strict=True))
    return tuple(c * 2.0**-13 for c in inverses), high, low


# Taylor's series around the multiples a of 1 / STEPS: f(a + r) = f(a) + r + r (A_0 + A_1 r + A_2 r^2 + ...).
# f(a) is given in float64, and the rest of it in units of 2**-FINE; A_0 = f'(a) - 1, A_1, ... in units of 2**-UNIT.

STEPS, UNIT, FINE = 256, 60, 960
TANH_END, ERF_END, ERFCX_END = 20, 6, 25  # the first two are 1 in float64 from there on
_TERMS = 7


def _series(series: list[list[int]]) -> Columns:
    slopes = zip(*([c[1] - ONE, *c[2:]] for c in series), strict=True)
    return *_split((c[0] for c in series), FINE), *(tuple(nearest(x, UNIT) for x in slope) for slope in slopes)


def _tanh() -> Columns:
    """tanh' = 1 - tanh^2, coefficient by coefficient, from tanh a = (e^2a - 1) / (e^2a + 1)."""
    power, step = ONE, _exp(2 * ONE // STEPS)
    series = []
    for _ in range(TANH_END * STEPS + 1):
        c = [(power - ONE) * ONE // (power + ONE)]
        for k in range(_TERMS - 1):
            square = sum(c[i] * c[k - i] for i in range(k + 1)) >> BITS
            c.append(((ONE if k == 0 else 0) - square) // (k + 1))
        series.append(c)
        power = power * step >> BITS
    return _series(series)


def _exp(x: int) -> int:
    return sum(_exp_terms(x))


def _exp_terms(x: int) -> list[int]:
    """1, x, x^2 / 2, x^3 / 6, ..."""
    terms = [ONE]
    while terms[-1]:
        terms.append(terms[-1] * x // (len(terms) << BITS))
    return terms


def _erf() -> Columns:
    """erf'' = -2 a erf', coefficient by coefficient; from each point to the next by the series itself."""
    value, slope = 0, 2 * ONE * ONE // _ROOT_OF_PI
    series = []
    for n in range(ERF_END * STEPS + 1):
        c = [value, slope]
        for k in range(_LONG):
            c.append(-(2 * n * (k + 1) * c[-1] // STEPS + 2 * k * c[-2]) // ((k + 1) * (k + 2)))
        series.append(c[:_TERMS])
        value = sum(x // STEPS**k for k, x in enumerate(c))
        slope = sum(k * x // STEPS ** (k - 1) for k, x in enumerate(c) if k)
    return _series(series)


_LONG = 17  # terms of a step to 2**-140


def _erfcx() -> Columns:
    """f(x) = exp(x^2) erfc(x), relative to f(a): f' = 2 x f - 2 / sqrt(pi).

    From point to point downwards, where errors shrink; the last value is that of the asymptotic series.
    """
    value = term = ONE * ONE // _ROOT_OF_PI // ERFCX_END
    for k in range(1, 80):
        term = -term * (2 * k - 1) // (2 * ERFCX_END**2)
        value += term
    series = []
    for n in range(ERFCX_END * STEPS, -1, -1):
        c = [value, 2 * n * value // STEPS - 2 * ONE * ONE // _ROOT_OF_PI]
        for k in range(1, _LONG):
            c.append((2 * n * c[-1] // STEPS + 2 * c[-2]) // (k + 1))
        series.append(c[:_TERMS])
        value = sum((-x if k % 2 else x) // STEPS**k for k, x in enumerate(c))
    return _relative(reversed(series))


def _turn_parts() -> tuple[float, ...]:
    """2 pi / 1024 in five parts of 22 bits and a last one of 53."""
    parts: list[float] = []
    for k in range(5):
        parts.append(short(rest(PI >> 9, *parts), 29 + 22 * k))
    return *parts, nearest(rest(PI >> 9, *parts))


TURN_PARTS = _turn_parts()


def _sines() -> Columns:
    """sin(2 pi j / 1024) in float64 and the rest of it in units of 2**-FINE; the cosine as an integer and the rest."""
    eighth = _eighth_of_a_turn()
    quarter = [s for s, _ in eighth] + [c for _, c in reversed(eighth[:-1])]
    half = quarter + quarter[-2:0:-1]
    sine = half + [-s for s in half]
    cosine = sine[256:] + sine[:256]
    whole = [(2 * c + ONE) // (2 * ONE) for c in cosine]
    part = tuple(nearest(c - w * ONE) for c, w in zip(cosine, whole, strict=True))
    return *_split(sine, FINE), tuple(map(float, whole)), part


def _eighth_of_a_turn() -> list[tuple[int, int]]:
    """Sine and cosine of each point, by a rotation of the one before."""
    terms = _exp_terms(PI >> 9)
    s, c = sum(terms[1::4]) - sum(terms[3::4]), sum(terms[0::4]) - sum(terms[2::4])
    found = [(0, ONE)]
    while len(found) <= 128:
        a, b = found[-1]
        found.append((a * c + b * s >> BITS, b * c - a * s >> BITS))
    return found


TABLES: dict[str, Callable[[], Columns]] = {
    # twice 2**(j / 1024), and what float64 leaves of it in units of 2**-58
    "powers": lambda: _split((2 * x for x in _powers_of_root()), 58),
    "short powers": lambda: _relative([x] for x in _powers_of_root()),
    "logarithms": _logarithms,
    "tanh": _tanh,
    "erf": _erf,
    "erfcx": _erfcx,
    "sines": _sines,
}
