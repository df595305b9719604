"""exp, log, sqrt, ... of reproducible mode: near the exact number, and the same bits wherever and however computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import mpmath
import numpy as np
import pytest

from attnspec.reproducible import constants, elementary
from attnspec.reproducible.grid import TINY

from .masks import Array

# The stated errors, in units of the last place.
ERRORS = {
    "exp": 0.56, "log": 0.53, "sqrt": 0.5, "tanh": 0.6, "erf": 0.8, "erfc": 0.6, "sin": 0.6, "cos": 0.6,
}  # fmt: skip
FURTHEST = 2.0**23  # of sin and cos

every_function = pytest.mark.parametrize("name", ERRORS)


def drawn(name: str, count: int) -> Array:
    """Numbers where the function is neither constant nor out of its range: of all sizes, in the middle, near zeros."""
    rng = np.random.default_rng(1)
    small = rng.standard_normal(count) * 2.0 ** rng.integers(-60, 0, count)
    wide = rng.uniform(1, 2, count) * 2.0 ** rng.integers(-1022, 1023, count)
    middle = {
        "exp": (-620, 709.7), "log": (0.5, 2), "sqrt": (1, 4), "tanh": (-19, 19), "erf": (-6, 6), "erfc": (-6, 24.8),
        "sin": (-FURTHEST, FURTHEST), "cos": (-FURTHEST, FURTHEST),
    }[name]  # fmt: skip
    parts = [rng.uniform(*middle, count)]
    if name in ("log", "sqrt"):
        return np.concatenate([*parts, 1 + small, wide])
    if name in ("sin", "cos"):
        turns = rng.integers(-int(FURTHEST / math.pi), int(FURTHEST / math.pi), count)
        parts += [turns * (math.pi / 2), rng.uniform(-7, 7, count)]
    return np.concatenate([*parts, small, rng.standard_normal(count)])


SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, math.inf, -math.inf, math.nan, 5e-324, -5e-324, 2.0**-1022, -(2.0**-1022), TINY,
     -TINY, TINY / 2, 1.7e308, -1.7e308, 709.782712893384, 709.7827128933841, -623.8, -623.9, 24.8, 24.9, 26.6,
     FURTHEST, -FURTHEST, math.nextafter(FURTHEST, math.inf), math.nextafter(1, 0), math.nextafter(1, 2)]
)  # fmt: skip


def bits(x: Any) -> Array:
    """The bits of float64 numbers, with one NaN."""
    x = np.asarray(x, np.float64)
    return np.where(np.isnan(x), math.nan, x).view(np.int64)


def function(name: str) -> Callable[[Any], Any]:
    return getattr(elementary, name)  # type: ignore[no-any-return]


@cache
def exact(name: str) -> tuple[Array, list[Any]]:
    """Numbers and the exact values there, of those that are no zero by contract."""
    x = np.concatenate([drawn(name, 150), close_to_zeros() if name in ("sin", "cos") else []])
    with mpmath.workprec(200):
        values = [getattr(mpmath, name)(mpmath.mpf(float(number))) for number in x]
    counts = [abs(value) >= TINY for value in values]
    return x[counts], [value for value, counted in zip(values, counts, strict=True) if counted]


def close_to_zeros() -> Array:
    """The float64 numbers that come closest to multiples of pi / 2: from the convergents of 2**e / (pi / 2)."""
    found = []
    with mpmath.workprec(300):
        for e in range(-60, -29):
            a = mpmath.mpf(2) ** (e + 1) / mpmath.pi
            before, denominator = 1, 0
            while True:
                before, denominator = denominator, int(mpmath.floor(a)) * denominator + before
                if denominator * 2.0**e > FURTHEST or denominator >= 2**53:
                    break
                found.append(denominator * 2.0**e)
                a = 1 / (a - mpmath.floor(a))
    return np.array([x for x in found if x])


# What is certain without a computation; NaN gives NaN everywhere.
EDGES = {
    "exp": {0.0: 1.0, math.inf: math.inf, -math.inf: 0.0, 709.79: math.inf, -624.0: 0.0},
    "log": {0.0: -math.inf, 1.0: 0.0, math.inf: math.inf, -1.0: math.nan, -math.inf: math.nan},
    "sqrt": {0.0: 0.0, 4.0: 2.0, math.inf: math.inf, -1.0: math.nan, -math.inf: math.nan},
    "tanh": {0.0: 0.0, math.inf: 1.0, -math.inf: -1.0, TINY: TINY, TINY / 2: 0.0},
    "erf": {0.0: 0.0, math.inf: 1.0, -math.inf: -1.0, TINY / 2: 0.0},
    "erfc": {0.0: 1.0, math.inf: 0.0, -math.inf: 2.0, 26.0: 0.0, TINY: 1.0},
    "sin": {0.0: 0.0, math.inf: math.nan, -math.inf: math.nan, 2 * FURTHEST: math.nan, -TINY: -TINY},
    "cos": {0.0: 1.0, math.inf: math.nan, -math.inf: math.nan, -2 * FURTHEST: math.nan, TINY: 1.0},
}


@cache
def numbers(name: str) -> Array:
    """Edges, numbers with known exact values, special ones and so many that they are computed in pieces."""
    return np.concatenate([[*EDGES[name], math.nan], exact(name)[0], SPECIAL, drawn(name, 17_000)])


@cache
def computed(backend: Any, name: str) -> Array:
    """The function of these numbers by the backend, all at once."""
    return np.asarray(backend.to_numpy(function(name)(backend.asarray(numbers(name), dtype="float64"))))


@pytest.mark.clause("REPRO-2")
@every_function
def test_errors_are_below_the_stated_ones(backend: Any, name: str) -> None:
    x, values = exact(name)
    found = computed(backend, name)[len(EDGES[name]) + 1 :][: len(x)]
    with mpmath.workprec(200):
        errors = [
            float(abs(mpmath.mpf(float(y)) - value)) / math.ulp(float(value))
            for y, value in zip(found, values, strict=True)
        ]
    worst = int(np.argmax(errors))
    assert errors[worst] <= ERRORS[name], f"{errors[worst]} units of the last place at {float(x[worst]).hex()}"


@pytest.mark.clause("REPRO-2")
@every_function
def test_edges_are_those_of_the_function(backend: Any, name: str) -> None:
    wanted = [*EDGES[name].values(), math.nan]
    np.testing.assert_array_equal(computed(backend, name)[: len(wanted)], wanted)


@pytest.mark.clause("REPRO-1")
@every_function
def test_bits_are_the_same_in_every_framework_at_once_and_in_parts(backend: Any, name: str) -> None:
    parts = [function(name)(part) for part in np.array_split(numbers(name), 9)]
    np.testing.assert_array_equal(bits(computed(backend, name)), bits(np.concatenate(parts)))


@pytest.mark.clause("REPRO-1")
@pytest.mark.slow
@pytest.mark.needs("jit")
@every_function
def test_bits_are_the_same_in_a_program_of_ones_own(backend: Any, name: str) -> None:
    compiled = backend.jit(lambda x: function(name)(x) * 0.5)
    found = backend.to_numpy(compiled(backend.asarray(numbers(name), dtype="float64")))
    np.testing.assert_array_equal(bits(found), bits(function(name)(numbers(name)) * 0.5))


@pytest.mark.clause("REPRO-1")
@pytest.mark.parametrize("name", ["exp", "tanh"])
@pytest.mark.parametrize("shape", [(), (2, 0, 3), (2, 3)])
def test_shapes_stay(backend: Any, name: str, shape: tuple[int, ...]) -> None:
    x: Array = np.reshape(drawn(name, 6)[: math.prod(shape)], shape)
    found = np.asarray(backend.to_numpy(function(name)(backend.asarray(x, dtype="float64"))))
    assert found.shape == shape
    np.testing.assert_array_equal(bits(found), bits(function(name)(x)))


def recomputed() -> Iterator[tuple[str, float, Any, float]]:
    """Of each table, some entries with what mpmath says, and how far they may be apart."""
    for n in range(0, 1024, 41):
        root, angle = mpmath.mpf(2) ** (mpmath.mpf(n) / 1024), 2 * mpmath.pi * n / 1024
        high, low = entry("powers", n)
        yield "powers", mpmath.mpf(high) + mpmath.mpf(low) / 2**58, 2 * root, 2.0**-100
        high, low = entry("short powers", n)
        yield "short powers", mpmath.mpf(high) * (1 + mpmath.mpf(low) / 2**58), root, 2.0**-76
        high, low, whole, part = entry("sines", n)
        yield "sines", mpmath.mpf(high) + mpmath.ldexp(low, -constants.FINE), mpmath.sin(angle), 2.0**-100
        yield "cosines", mpmath.mpf(whole) + part, mpmath.cos(angle), 2.0**-53
    for n in range(0, 513, 19):
        c, high, low = entry("logarithms", n)
        yield "inverses", c, mpmath.mpf(512) / (512 + n), 2.0**-14
        yield "logarithms", mpmath.mpf(high) + low, -mpmath.log(c), 2.0**-84
    for name in ("tanh", "erf"):
        high_table, low_table, *slopes = constants.columns(name)
        for n in range(0, len(high_table), 769):
            series = mpmath.taylor(getattr(mpmath, name), mpmath.mpf(n) / constants.STEPS, len(slopes))
            yield name, mpmath.mpf(high_table[n]) + mpmath.ldexp(low_table[n], -constants.FINE), series[0], 2.0**-100
            for k, (slope, wanted) in enumerate(zip(slopes, series[1:], strict=True)):
                yield f"{name} {k}", mpmath.ldexp(slope[n], -constants.UNIT), wanted - (k == 0), 2.0**-53
    scaled, of_scaled, *slopes = constants.columns("erfcx")
    for n in range(0, len(scaled), 1600):
        x = mpmath.mpf(n) / constants.STEPS
        series = mpmath.taylor(lambda z: mpmath.exp(z * z) * mpmath.erfc(z), x, len(slopes))
        number = mpmath.mpf(scaled[n])
        yield "erfcx", number * (1 + mpmath.mpf(of_scaled[n]) / 2**58), series[0], 2.0**-76
        for k, (slope, wanted) in enumerate(zip(slopes, series[1:], strict=True)):
            yield f"erfcx {k}", mpmath.mpf(slope[n]) / 2**58, wanted / number, 2.0**-52
    turn = 2 * mpmath.pi / 1024
    yield "turn parts", mpmath.fsum(map(mpmath.mpf, constants.TURN_PARTS)), turn, 2.0**-160


def entry(name: str, n: int) -> list[float]:
    """The numbers of a table in one place."""
    return [column[n] for column in constants.columns(name)]


@pytest.mark.clause("REPRO-2")
def test_the_tables_are_those_of_the_functions() -> None:
    with mpmath.workprec(300):
        wrong = {name: float(abs(x - wanted)) for name, x, wanted, error in recomputed() if abs(x - wanted) > error}
    assert not wrong


@pytest.mark.clause("REPRO-2")
def test_numbers_whose_products_must_be_exact_are_short() -> None:
    assert all(len_of(x) <= 22 for x in constants.TURN_PARTS[:-1])
    tables = constants.columns("short powers")[0], constants.columns("erfcx")[0]
    assert all(len_of(x) <= 26 for table in tables for x in table)
    assert all(len_of(c) <= 13 for c in constants.columns("logarithms")[0])


def len_of(x: float) -> int:
    """The bits from the first one to the last."""
    top = abs(x.as_integer_ratio()[0])
    return (top // (top & -top)).bit_length()
