"""Reproducible mode gives NumPy's bits on every backend, before the last rounding, however a call is cut.

The short form of `python -m attnspec_conformance.identity`, which has all configurations and many environments.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnspec.backend import choose
from attnspec.host import DEFAULT, host_of

from .exact_numbers import same
from .identity.calls import CONFIGURATIONS
from .identity.invariances import INVARIANCES, checked, roundings
from .identity.problems import FAMILIES, drawn
from .identity.run import Runner, digest, nan_as_defined

pytestmark = pytest.mark.clause("REPRO-1")

# Few, because some backends compile a program for each.
SHORT = tuple(
    configuration
    for configuration in CONFIGURATIONS
    if configuration.name
    in (
        "attention, array mask float32", "attention, causal bfloat16", "layer norm float32", "gelu network float32",
        "gradients of layer norm float32",
    )
)  # fmt: skip


def test_the_short_form_is_a_part_of_the_long_one() -> None:
    assert len(SHORT) == 5
    assert sum(configuration.unknown is not None for configuration in SHORT) == 2


def test_a_digest_tells_one_bit_and_no_nan_from_another() -> None:
    x, other_nan = np.asarray([1.0, np.nan, 0.0]), np.asarray([0x7FF8000000000001]).view(np.float64)[0]
    assert digest({"": x}) == digest({"": np.asarray([1.0, other_nan, 0.0])})
    different = ([1.0 + 2.0**-52, np.nan, 0.0], [1.0, 0.0, np.nan], [1.0, np.nan, -0.0], [[1.0, np.nan, 0.0]])
    assert len({digest({"": np.asarray(y)}) for y in (x, *different)}) == 5


def test_drawn_problems_have_the_bits_of_numpy(backend: Any) -> None:
    ours, theirs = Runner(backend), Runner(choose("numpy"))
    for problem in drawn(0, 8 * len(SHORT), SHORT):
        if problem.configuration.dtypes - {"float32"} - set(backend.capabilities):
            continue
        found, wanted = ours.results(problem), theirs.results(problem)
        assert found.keys() == wanted.keys(), problem.name
        for name, x in found.items():
            assert x.shape == wanted[name].shape, (problem.name, name)
            assert np.all(same(x, wanted[name])), (problem.name, name)
        assert digest(found) == digest(wanted)
        assert nan_as_defined(problem, found), problem.name


@pytest.mark.parametrize("name", INVARIANCES)
def test_cutting_a_call_changes_no_bit(backend: Any, name: str) -> None:
    if host_of(backend.like).run is not DEFAULT.run and "lazy" not in backend.capabilities:
        pytest.skip("every shape is compiled here: python -m attnspec_conformance.identity")
    turn = list(INVARIANCES).index(name)
    for family in (*FAMILIES, *FAMILIES)[turn : turn + 2]:
        count, differing = checked(backend, name, family, turn, rounded=roundings(name)[0])
        assert count
        assert not differing, differing[0]
