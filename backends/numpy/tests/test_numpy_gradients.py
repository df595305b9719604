"""The gradients of attention on idle cores: the bits of one thread."""

from __future__ import annotations

from typing import Any

import array_api_compat.numpy as xp
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


MASKS = {
    "none": None,
    "causal": attnspec.causal(),
    "keys": np.arange(1100) % 3 > 0,
    "tiles": np.arange(1100)[:, None] // 600 == np.arange(1100) // 600,
    "nothing": np.zeros((1100, 1), dtype=bool),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_what_was_in_memory_has_no_part_in_gradients(mask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them is written, even where nothing is visible, and by the first of the heads that share it."""
    draw = np.random.default_rng(0).standard_normal
    q, g = draw((2, 4, 1100, 8), dtype=np.float32)
    k, v = draw((2, 2, 1100, 8), dtype=np.float32)

    def gradients() -> Any:
        return attnspec.vjp(lambda *arrays: attnspec.attention(*arrays, mask=mask), q, k, v)[1](g)

    fresh = gradients()
    empty = xp.empty
    monkeypatch.setattr(xp, "empty", lambda *args, **kwargs: np.full_like(empty(*args, **kwargs), 3))
    for used, right in zip(gradients(), fresh, strict=True):
        assert np.array_equal(used, right)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_gradients_of_shared_keys_are_the_sums_over_their_heads(mask: Any) -> None:
    draw = np.random.default_rng(0).standard_normal
    q, g = draw((2, 4, 1100, 8), dtype=np.float32)
    k, v = draw((2, 2, 1100, 8), dtype=np.float32)

    def gradients(*arrays: Any) -> Any:
        return attnspec.vjp(lambda *arrays: attnspec.attention(*arrays, mask=mask), *arrays)[1](g)

    shared, apart = gradients(q, k, v), gradients(q, np.repeat(k, 2, axis=0), np.repeat(v, 2, axis=0))
    np.testing.assert_allclose(shared[0], apart[0], rtol=0, atol=1e-5)
    for together, each in zip(shared[1:], apart[1:], strict=True):
        np.testing.assert_allclose(together, each.reshape(2, 2, 1100, 8).sum(1), rtol=0, atol=1e-5)
