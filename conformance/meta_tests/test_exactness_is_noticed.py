"""The guard of reproducible mode judged: code that breaks the rule once, of each kind, and code that keeps it."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attnspec_conformance import exact_arrays as rules
from attnspec_conformance import exact_numbers
from attnspec_conformance.exactness import NotIdenticalError, guarded

from attnspec import reproducible
from attnspec._compat import namespace
from attnspec.reproducible import elementary, grid, sums
from attnspec.reproducible import namespace as module_of_operations

DRAW = np.random.default_rng(3)
X, Y, Z = (DRAW.standard_normal((5, 7)) * 10.0 ** DRAW.integers(-3, 4, (5, 7)) for _ in range(3))
MAGIC = 1.5 * 2.0**52


def integers(x: Any) -> Any:
    return namespace(x).round(x * 1024.0)


def horner(x: Any) -> Any:
    y = 0.125 * x
    for c in (0.7, 1.3, 1.1):
        y = (y + c) * x
    return y + 0.3


def veltkamp(x: Any) -> Any:
    scaled = x * (2.0**27 + 1.0)
    return scaled - (scaled - x)


def sliced_once(a: Any, b: Any) -> Any:
    """The product of two slices, of which the second kept its fraction."""
    return namespace(a).matmul(integers(a), namespace(a).matrix_transpose(b * 1024.0))


WRONG: dict[str, tuple[str, Callable[..., Any]]] = {
    "a product and a sum": (rules.PRODUCT_ADDED, lambda x, y, z: x * y + z),
    "a difference of products": (rules.PRODUCT_ADDED, lambda x, y, z: x * y - x * z),
    "a product negated and reshaped": (
        rules.PRODUCT_ADDED, lambda x, y, z: namespace(x).reshape(-(x * y), (7, 5)) + namespace(x).reshape(z, (7, 5)),
    ),
    "a product chosen by something else": (
        rules.PRODUCT_ADDED, lambda x, y, z: namespace(x).where(z > 0, x * y, 0.0) + 1.5,
    ),
    "a product times 1": (rules.PRODUCT_ADDED, lambda x, y, z: (x * y) * 1.0 + z),
    "a factor that joins another": (rules.PRODUCT_ADDED, lambda x, y, z: (x * 3.3) * 2.0 + z),
    "a product in a wider format": (
        rules.PRODUCT_ADDED, lambda x, y, z: z + namespace(x).astype(single(x) * single(y), namespace(x).float64),
    ),
    "a sum of products": (rules.PRODUCT_ADDED, lambda x, y, z: namespace(x).sum(x[..., :1] * y[..., :1], axis=-1)),
    "Veltkamp's split": (rules.PRODUCT_ADDED, lambda x, y, z: veltkamp(x)),
    "Horner's rule": (rules.PRODUCT_ADDED, lambda x, y, z: horner(x)),
    "a sum of any numbers": (rules.ORDER, lambda x, y, z: namespace(x).sum(x, axis=-1)),
    "a sum of too many bits": (rules.ORDER, lambda x, y, z: namespace(x).sum(integers(x) * 2.0**40 + 1.0, axis=0)),
    "matrices of any numbers": (rules.MATMUL, lambda x, y, z: x @ namespace(x).matrix_transpose(y)),
    "a slice that was not rounded": (rules.MATMUL, lambda x, y, z: sliced_once(x, y)),
    "integers too large for float32": (
        rules.MATMUL, lambda x, y, z: single(integers(x)) @ namespace(x).matrix_transpose(single(integers(y))),
    ),
    "an exponential in the result": (rules.LIBRARY, lambda x, y, z: namespace(x).exp(x)),
    "a root in a quotient": (rules.LIBRARY, lambda x, y, z: x / namespace(x).sqrt(abs(y))),
    "a hint that nothing corrects": (
        rules.LIBRARY, lambda x, y, z: namespace(x).floor(namespace(x).log2(powers(x))),
    ),
    "a hint among others": (rules.LIBRARY, lambda x, y, z: namespace(x).max(hint(x), axis=0)),
    "rounding by a large number": (rules.REWRITTEN, lambda x, y, z: (x + MAGIC) - MAGIC),
    "a division by a number": (rules.REWRITTEN, lambda x, y, z: x / 3.0),
    "a mean": (rules.REWRITTEN, lambda x, y, z: namespace(x).mean(integers(x * 999.0), axis=0)),
    "a division by each row's number": (rules.REWRITTEN, lambda x, y, z: x / y[..., :1]),
    "a quotient of a quotient": (rules.REWRITTEN, lambda x, y, z: x / y / z),
    "a quotient by a quotient": (rules.REWRITTEN, lambda x, y, z: x / (y / z)),
    "two factors that join": (rules.REWRITTEN, lambda x, y, z: x * 3.3 * 7.7),
    "numbers too small": (rules.SUBNORMAL, lambda x, y, z: x * 2.0**-1000 * 2.0**-70),
    "numbers once too small": (rules.SUBNORMAL, lambda x, y, z: (x * 2.0**-1000) * (y * 2.0**-60) * 2.0**100),
    "an index of NaN": (rules.RANGE, lambda x, y, z: namespace(x).astype(x * np.nan, namespace(x).int64)),
    "an index past the end": (
        rules.RANGE, lambda x, y, z: namespace(x).take(z, namespace(x).asarray([7]), axis=-1),
    ),
    "float64 to float16 at once": (
        rules.TWICE, lambda x, y, z: namespace(x).astype(x * 0.0 + (1.0 + 2.0**-11 + 2.0**-40), namespace(x).float16),
    ),
    "arithmetic in float16": (rules.HALF, lambda x, y, z: namespace(x).astype(x * 0.0, namespace(x).float16) + 1.0),
}  # fmt: skip


def single(x: Any) -> Any:
    return namespace(x).astype(x, namespace(x).float32)


def powers(x: Any) -> Any:
    return grid.power_of_two(namespace(x).round(namespace(x).clip(x, -9.0, 9.0)))


def hint(x: Any) -> Any:
    return namespace(x).tanh(x)


@pytest.mark.parametrize("name", WRONG)
def test_what_breaks_the_rule_once_is_noticed(name: str) -> None:
    rule, function = WRONG[name]
    with pytest.raises(NotIdenticalError) as raised:
        guarded(function, X, Y, Z)
    assert raised.value.rule == rule, str(raised.value)
    assert Path(__file__).name in str(raised.value) or "they decide" in str(raised.value)


def fixed_point(x: Any) -> Any:
    """1 + f + f^2/2 + f^3/6 for |f| < 1, on a grid of 2^-44."""
    xp = namespace(x)
    f = x - xp.round(x)
    a = xp.round(f * (2.0**44 / 6.0)) + 2.0**43
    return xp.round(f * (xp.round(f * a) + 2.0**44)) + 2.0**44


def exact_root(x: Any) -> Any:
    """floor(sqrt(x)) of whole numbers, the library's corrected."""
    xp = namespace(x)
    h = xp.floor(xp.sqrt(x))
    h = xp.where(h * h > x, h - 1.0, h)
    return xp.where((h + 1.0) * (h + 1.0) <= x, h + 1.0, h)


RIGHT: dict[str, Callable[..., Any]] = {
    "a settled product": lambda x, y, z: grid.settled(x * y) + z,
    "an exact product": lambda x, y, z: x * 0.25 + z,
    "a rounded product": lambda x, y, z: namespace(x).round(x * y) + z,
    "a product in a quotient": lambda x, y, z: (x * y) / z + z,
    "a product cast": lambda x, y, z: single(x * y) + single(z),
    "a product of a product": lambda x, y, z: x * y * z,
    "a product that nobody chooses": lambda x, y, z: namespace(x).where(z > 1e9, x * y + z, y),
    "a quotient": lambda x, y, z: x / y + z,
    "a reciprocal of each row": lambda x, y, z: x * (1.0 / y[..., :1]),
    "the exponent": lambda x, y, z: grid.exponent(abs(x)) + grid.exponent(powers(y)),
    "Horner's rule in fixed point": lambda x, y, z: fixed_point(x),
    "a root as a hint": lambda x, y, z: exact_root(namespace(x).round(abs(x))),
    "a sum of integers": lambda x, y, z: namespace(x).sum(integers(x), axis=-1),
    "a product of slices": lambda x, y, z: integers(x) @ namespace(x).matrix_transpose(integers(y)),
    "a comparison of hints": lambda x, y, z: namespace(x).where(hint(x) < 0.3, x, y),
    "numbers too small that count as 0": lambda x, y, z: grid.settled(x * 2.0**-1000 * 2.0**-70),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_keeps_the_rule_passes_with_its_bits(name: str) -> None:
    wanted = RIGHT[name](X, Y, Z)
    np.testing.assert_array_equal(guarded(RIGHT[name], X, Y, Z), wanted)


# Reproducible mode itself with one step of it done wrongly: (module, name, the wrong one), and the rule that breaks.
FAULTS: dict[str, tuple[Any, str, Any, str]] = {
    "products are not settled": (module_of_operations, "settled", lambda x: x, rules.PRODUCT_ADDED),
    "slices are too long": (sums, "_BITS", 28, rules.MATMUL),
    "sums are of too many bits": (sums, "_SUMMED", 60, rules.ORDER),
    "the exponential is the library's": (elementary, "exp", lambda x: namespace(x).exp(x), rules.LIBRARY),
}


@pytest.mark.parametrize("name", FAULTS)
def test_reproducible_mode_with_one_step_done_wrongly_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.concatenate([X, DRAW.standard_normal((3, 7))]).astype(np.float32)
    table = rows[:, ::-1].copy()

    def function(x: Any, y: Any) -> Any:
        return reproducible.layer_norm(x, y[0, ...], y[1, ...]), reproducible.attention_weights(x, y)

    guarded(function, rows, table)
    module, attribute, wrong, rule = FAULTS[name]
    monkeypatch.setattr(module, attribute, wrong)
    with pytest.raises(NotIdenticalError) as raised:
        guarded(function, rows, table)
    assert raised.value.rule == rule, str(raised.value)


def test_values_are_not_to_be_looked_at() -> None:
    with pytest.raises(TypeError, match="recorded"):
        guarded(lambda x: x if x[0, 0] > 0 else -x, X)


def drawn(bits: int, low: int, high: int, *shape: int) -> Any:
    whole = DRAW.integers(-(2**bits), 2**bits + 1, shape).astype(np.float64)
    return np.ldexp(whole, DRAW.integers(low, high + 1, shape))


def fractions(x: Any) -> list[Fraction]:
    return [Fraction(float(n)) for n in np.ravel(x)]


@pytest.mark.parametrize(("low", "high"), [(-60, 60), (-560, -480), (420, 500)])
def test_a_product_is_rounded_where_fractions_say_so(low: int, high: int) -> None:
    bits = DRAW.integers(2, 54, 2000)
    a, b = (
        np.ldexp(np.floor(drawn(52, 0, 0, 2000) / 2.0 ** (53 - bits)), DRAW.integers(low, high, 2000)) for _ in "ab"
    )
    with np.errstate(over="ignore", under="ignore"):
        product = a * b
        found = exact_numbers.rounded_product(a, b, product)
    finite = np.isfinite(product)
    exact = [
        not ok or p * q != r
        for ok, p, q, r in zip(finite, fractions(a), fractions(b), fractions(np.where(finite, product, 0)), strict=True)
    ]
    assert 100 < sum(exact) < 1900
    np.testing.assert_array_equal(found, exact)


def least_unit(numbers: list[Fraction]) -> Fraction:
    """The largest power of two of which all are multiples."""
    return min(Fraction(n.numerator & -n.numerator, n.denominator) for n in numbers)


def test_a_sum_is_ordered_where_fractions_say_so() -> None:
    verdicts = []
    for turn in range(300):
        x = drawn(51, -1, 1 + turn % 3, turn % 7)
        numbers = [n for n in fractions(x) if n]
        unit = least_unit(numbers) if numbers else Fraction(1)
        sums = [abs(sum(n for n in numbers if (n > 0) is up)) for up in (True, False)]
        verdicts.append(max(sums) / unit >= 2**53)
        assert bool(exact_numbers.ordered_sum(x, (0,))[0]) == verdicts[-1]
    assert 30 < sum(verdicts) < 270


def test_a_product_of_matrices_is_ordered_where_fractions_say_so() -> None:
    verdicts = []
    for turn in range(200):
        k = turn % 4
        a, b = drawn(26 + turn % 3, 0, 1, 2, k) * 2.0 ** (turn - 90), drawn(26, 0, 0, k, 3)
        found = exact_numbers.ordered_matmul(a, b)
        for i, j in np.ndindex(2, 3):
            terms = [p * q for p, q in zip(fractions(a[i]), fractions(b[:, j]), strict=True)]
            terms = [t for t in terms if t]
            pairs = zip(a[i], b[:, j], strict=True)
            unit = min(
                (least_unit([Fraction(float(p))]) * least_unit([Fraction(float(q))]) for p, q in pairs if p * q),
                default=Fraction(1),
            )
            verdicts.append(sum(map(abs, terms)) / unit >= 2**53)
            assert bool(found[i, j]) == verdicts[-1]
    assert 50 < sum(verdicts) < len(verdicts) - 50
