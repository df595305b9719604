"""JAX's grid, asked of attnspec."""

from __future__ import annotations

import jax_grid
import pytest

from attnspec.integrations import jax as adapter

CASES = jax_grid.cases()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_point_of_the_grid_is_answered_as_jax_answers_it(case):
    case.check()


def test_no_point_has_vanished():
    assert len({case.name for case in CASES}) == len(CASES) == 120


def test_a_wrong_scale_fails_most_points(monkeypatch):
    right = adapter.attention
    monkeypatch.setattr(adapter, "attention", lambda *a, scale, **more: right(*a, scale=1.3 * jax_grid.D**-0.5, **more))
    some = CASES[::9]
    assert sum(case.fails() for case in some) > 0.9 * len(some)
