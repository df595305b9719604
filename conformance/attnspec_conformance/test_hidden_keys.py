"""MASK-6 where hidden keys are not looked at first, or are no numbers once they are scaled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attnspec

from .masks import Array
from .problems import problem


@pytest.mark.clause("MASK-6a", "MASK-6b")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, 1e-40])
def test_what_few_queries_or_biases_find_at_hidden_keys_changes_no_bit(backend: Any, value: float) -> None:
    """So few that nobody looks at all keys first; and so many that hiding keys pays, which a bias has no part in."""
    seen = np.arange(130) % 64 > 0
    few = problem(3, lead=(), H=6, G=2, Q=2, K=130, D=40)
    many = problem(3, lead=(), H=2, Q=66, K=130, bias=np.zeros(130, np.float32))
    garbage = np.where(seen, np.float32(0), np.float32(value))
    for call, changed in (
        (few, few.but(k=few.k + garbage[:, None], v=few.v + garbage[:, None])), (many, many.but(bias=garbage)),
    ):  # fmt: skip
        answers = []
        for given in (call, changed):
            options = {"mask": backend.asarray(seen)}
            if given.bias is not None:
                options["bias"] = backend.asarray(given.bias)
            out, lse = attnspec.attention_with_lse(*map(backend.asarray, (given.q, given.k, given.v)), **options)
            answers.append((backend.to_numpy(out), backend.to_numpy(lse)))
        assert all(np.array_equal(x, y) for x, y in zip(*answers, strict=True))


@pytest.mark.clause("MASK-6a", "MASK-6b")
@pytest.mark.parametrize("Q", [3, 66])
@pytest.mark.parametrize("scale", [3.0, -50.0])
def test_a_hidden_key_that_the_scale_makes_infinite_changes_no_bit(backend: Any, Q: int, scale: float) -> None:
    call = problem(4, lead=(), H=2, Q=Q, K=70, scale=scale)
    seen: Array = np.arange(70) < 64
    pairs = np.broadcast_to(seen, (Q, 70)).copy()
    for mask in (seen, pairs):
        answers = []
        for value in (0.0, 3e38, -3e38):
            k = call.k.copy()
            k[:, 64:] = value
            arrays = map(backend.asarray, (call.q, k, call.v))
            answers.append(attnspec.attention_with_lse(*arrays, mask=backend.asarray(mask), scale=scale))
        for found in answers[1:]:
            for x, y in zip(answers[0], found, strict=True):
                np.testing.assert_array_equal(backend.to_numpy(x), backend.to_numpy(y))
