"""The gradients of attention on idle cores: the bits of one thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import attnspec


@pytest.mark.parametrize("heads", [(6, 6), (6, 2), (1, 1)])
def test_gradients_have_the_bits_of_one_thread(heads: tuple[int, int]) -> None:
    """Query heads of a group add to the same keys, in an order that no thread changes."""
    (H, G), draw = heads, np.random.default_rng(0).standard_normal
    q, g = draw((2, 2, H, 700, 16), dtype=np.float32)
    k, v = draw((2, 2, G, 600, 16), dtype=np.float32)
    for mask in (None, attnspec.causal(), np.arange(600) % 3 > 0):

        def attend(*arrays: Any, mask: Any = mask) -> Any:
            return attnspec.attention(*arrays, mask=mask)

        found = []
        for threads in (3, 1):
            with threadpool_limits(threads, user_api="blas"):
                found.append(attnspec.vjp(attend, q, k, v)[1](g))
        for many, one in zip(*found, strict=True):
            assert np.array_equal(many, one)
