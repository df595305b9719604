"""MLX's grid, asked of attnspec."""

from __future__ import annotations

import mlx_grid
import numpy as np
import pytest

from attnspec.integrations import mlx as adapter

CASES = mlx_grid.cases()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_point_of_the_grid_is_answered_as_mlx_answers_it(case):
    case.check()


def test_no_point_has_vanished():
    assert len({case.name for case in CASES}) == len(CASES) == 288


def test_rows_before_the_first_key_are_zero():
    q, k = np.ones((1, 1, 7, 4)), np.ones((1, 1, 3, 4))
    out = adapter.scaled_dot_product_attention(q, k, k, scale=1.0, mask="causal")
    assert out[0, 0, :, 0].tolist() == [0, 0, 0, 0, 1, 1, 1]


def test_a_wrong_scale_fails_most_points(monkeypatch):
    right = adapter.attention
    monkeypatch.setattr(adapter, "attention", lambda *a, scale, **more: right(*a, scale=1.3 * scale, **more))
    some = CASES[::7]
    assert sum(case.fails() for case in some) > 0.9 * len(some)
