"""Words that are drawn in place, a piece at a time, are those of `prng.rounds`."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from attnspec_numpy.pool import allowed

import attnspec
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


@pytest.mark.parametrize("width", [1, 4])
def test_beside_what_is_drawn_a_few_pieces_are_held(width: int) -> None:
    """A mask has one byte for each entry, dropout of float32 four."""
    rng = attnspec.random.key(1)
    x: Any = np.ones(2**22, np.float32)
    tracemalloc.start()
    try:
        made = attnspec.dropout(x, 0.5, rng) if width == 4 else attnspec.random.bernoulli(rng, 0.5, x.shape, like=x)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert made.nbytes == width * x.size
    assert peak <= made.nbytes + 10 * 4 * 2**16 * allowed()


@pytest.mark.parametrize(("count", "size"), [(1, 1), (10, 3), (9, 3), (2**32 + 5, 3 * 2**28), (2**33, 2**30)])
def test_pieces_of_a_draw_are_all_of_it_and_have_one_high_word_each(count: int, size: int) -> None:
    found = list(prng.pieces(count, size))
    assert [start for start, _ in found] == [0, *(stop for _, stop in found[:-1])]
    assert found[-1][1] == count
    for start, stop in found:
        assert 0 < stop - start <= size
        assert start >> 32 == (stop - 1) >> 32


@pytest.mark.parametrize("start", [0, 5, 2**31 - 2, 2**32 - 8, 2**32, 5 * 2**32 + 2**31, 2**63 + 3])
def test_entries_are_numbered_in_two_words(start: int) -> None:
    with np.errstate(over="ignore"):
        high, numbers, added = prng.numbered(np.arange(20, dtype=np.int32))(start, start + 8)
        low = numbers + np.int32(added)
    wanted = [start + n for n in range(8)]
    assert [(high % 2**32) << 32 | int(word) % 2**32 for word in low] == wanted


@pytest.mark.parametrize("shape", [(3, 5), (2**16, 2**16), (2, 2**16, 2**16), (7, 1, 2**31 - 1)])
def test_places_are_numbers_in_c_order(shape: tuple[int, ...]) -> None:
    """Up to 2**32 entries they are computed in one word."""
    index = [np.asarray(n, np.int32) for axis in shape for n in [[0, axis // 2, axis - 1]]]
    with np.errstate(over="ignore"):
        high, low = prng.places(index, shape, np)
    wanted = np.asarray([np.ravel_multi_index(at, shape) for at in zip(*(i.tolist() for i in index), strict=True)])
    got = np.broadcast_to(np.asarray(high, np.int64), low.shape) << 32 | low.astype(np.int64) & 0xFFFFFFFF
    np.testing.assert_array_equal(got, wanted)
