"""Words that are drawn in place, a piece at a time, are those of `prng.rounds`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnspec import prng

Words = tuple[Any, Any]


@pytest.mark.parametrize("rng", [(0, 0), (7, -1), (-(2**31), 2**31 - 1)])
@pytest.mark.parametrize("shape", [(2 * 2**16 + 4465,), (300, 500), (prng.LEAST,), (0, 4)])
@pytest.mark.parametrize("wide", [False, True])
def test_words_are_those_of_the_definition(rng: tuple[int, int], shape: tuple[int, ...], wide: bool) -> None:
    words = np.random.default_rng(1).integers(-(2**31), 2**31, (2, *shape), dtype=np.int32)
    counter: Words = (words[0] if wide else -5, words[1])
    before = words.copy()
    with np.errstate(over="ignore"):
        for n in range(2):
            drawn = prng.draw(rng, counter, lambda *both, n=n: both[n] + 0)
            np.testing.assert_array_equal(drawn, np.broadcast_to(prng.rounds(rng, counter)[n], shape))
    np.testing.assert_array_equal(before, words)


@pytest.mark.parametrize("shape", [(3, 5), (2**16, 2**16), (2, 2**16, 2**16), (7, 1, 2**31 - 1)])
def test_places_are_numbers_in_c_order(shape: tuple[int, ...]) -> None:
    """Up to 2**32 entries they are computed in one word."""
    index = [np.asarray(n, np.int32) for axis in shape for n in [[0, axis // 2, axis - 1]]]
    with np.errstate(over="ignore"):
        high, low = prng.places(index, shape, np)
    wanted = np.asarray([np.ravel_multi_index(at, shape) for at in zip(*(i.tolist() for i in index), strict=True)])
    got = np.broadcast_to(np.asarray(high, np.int64), low.shape) << 32 | low.astype(np.int64) & 0xFFFFFFFF
    np.testing.assert_array_equal(got, wanted)
