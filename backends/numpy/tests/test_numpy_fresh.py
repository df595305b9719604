"""What is made of a few rows at a time needs memory for them, and not for all."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attnspec

ROWS, M, F = 6144, 64, 2048
FEW = 2**24  # bytes
RNG = attnspec.random.key(0)
NETWORK = attnspec.FeedForwardParams.init(RNG, model_width=M, hidden_width=F, like=np)
LAYER = attnspec.LayerParams.init(RNG, model_width=M, heads=2, hidden_width=F, order="post", like=np)

CASES: dict[str, Callable[[Any], Any]] = {
    "network": lambda x: attnspec.feed_forward(NETWORK, x),
    "layer": lambda x: attnspec.transformer_layer(LAYER, x),
}


@pytest.mark.parametrize("name", CASES)
def test_the_hidden_rows_are_never_there_at_once(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((48, ROWS // 48, M), np.float32)
    CASES[name](x[:1])
    tracemalloc.start()
    try:
        CASES[name](x)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    hidden = 4 * ROWS * F
    assert peak < FEW + 6 * x.nbytes < hidden


def test_gelu_of_what_is_not_finite_is_its_limit_or_nan() -> None:
    one: Any = np.ones((1, 1), np.float32)
    params = attnspec.FeedForwardParams(one, one)
    x = np.asarray([[np.inf], [np.nan], [0.0]], np.float32)
    np.testing.assert_array_equal(attnspec.feed_forward(params, x), x)
