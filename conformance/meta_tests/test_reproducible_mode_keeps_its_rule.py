"""Reproducible mode keeps its rule: on arrays that watch for every step which another framework may take otherwise.

NumPy computes, under watch (`exactness`), on the paths of a recorded program.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from attnspec_conformance.exactness import guarded
from attnspec_conformance.identity.calls import CONFIGURATIONS
from attnspec_conformance.identity.problems import FAMILIES, Configuration, Operand, filled
from attnspec_conformance.masks import Array
from attnspec_conformance.problems import integers, normal

from attnspec import reproducible
from attnspec.reproducible import elementary, sums
from attnspec.struct import arrays_in


def wide(low: int, high: int) -> Array:
    """300 numbers of both signs, their exponents anywhere between."""
    return np.ldexp(normal(1, 300, dtype="float64"), integers(2, 300, low=low, high=high))


def near(numbers: Array) -> Array:
    """They, and their neighbours on both sides."""
    return np.concatenate([numbers, np.nextafter(numbers, np.inf), np.nextafter(numbers, -np.inf)])


SPECIAL = np.asarray([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.0**-1022, 2.0**1023, 1e-300, -745.0, 709.0])
ARGUMENTS = np.concatenate(
    [
        *(wide(low, high) for low, high in ((-3, 3), (-60, 10), (-500, 500))),
        *(near(x) for x in (np.arange(-20.0, 20.0) / 4, np.arange(-40.0, 40.0) * np.pi / 4, 2.0 ** np.arange(-40, 40))),
        SPECIAL,
    ]
)


@pytest.mark.parametrize("name", ["exp", "tanh", "erf", "erfc", "sin", "cos"])
def test_elementary_functions_keep_the_rule(name: str) -> None:
    guarded(getattr(elementary, name), ARGUMENTS)


@pytest.mark.parametrize("name", ["log", "sqrt"])
def test_elementary_functions_of_positive_numbers_keep_the_rule(name: str) -> None:
    guarded(getattr(elementary, name), np.abs(ARGUMENTS))


def rows_of(family: str, *shape: int, kind: Any = "number") -> Array:
    return filled(Operand(shape, kind, "float64"), family, len(shape))


@pytest.mark.parametrize("family", FAMILIES)
def test_sums_and_products_of_matrices_keep_the_rule(family: str) -> None:
    for axis in (None, -1, (0, 2)):
        guarded(lambda x, axis=axis: sums.total(x, axis=axis, keepdims=False), rows_of(family, 3, 5, 41))
    a, b = rows_of(family, 2, 5, 37), rows_of(family, 37, 4)
    guarded(sums.product, a, b)
    guarded(sums.product, a[..., :0], b[:0])


# More keys than one exact product takes are a thousand times as many steps to watch.
WATCHED = {c.name: c for c in CONFIGURATIONS if "8200" not in c.name}


@pytest.mark.parametrize("configuration", WATCHED.values(), ids=WATCHED)
def test_everything_keeps_the_rule(configuration: Configuration) -> None:
    """With the bits of eager calls. Each of numbers of one family, and over all of them every family is used."""
    turn = CONFIGURATIONS.index(configuration)
    arrays = {
        name: native(filled(operand, list(FAMILIES)[turn % len(FAMILIES)], turn + n), operand.dtype)
        for n, (name, operand) in enumerate(configuration.operands.items())
    }

    def unrounded(arrays: Any) -> Any:
        with reproducible.before_rounding():
            return configuration.compute(reproducible, arrays)

    compute = partial(configuration.compute, reproducible) if configuration.rounded else unrounded
    eager = arrays_in("", compute(arrays))
    for name, x in arrays_in("", guarded(compute, arrays)).items():
        np.testing.assert_array_equal(x.astype(np.float64), np.asarray(eager[name]).astype(np.float64))


def native(x: Array, dtype: str) -> Array:
    """bfloat16 in its own dtype."""
    if dtype != "bfloat16" or x.dtype.kind != "f":
        return x
    import ml_dtypes

    return x.astype(ml_dtypes.bfloat16)
