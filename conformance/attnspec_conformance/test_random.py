"""Random bits: the published answers of Threefry, the pure-Python oracle, and the same bits on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnspec import random
from attnspec.prng import counters, threefry2x32
from attnspec.random import below

from . import oracle_random

pytestmark = pytest.mark.clause("DROPOUT-3")

# (key, counter, result) of threefry2x32 with 20 rounds, from tests/kat_vectors of Random123 (D. E. Shaw Research).
KNOWN = (
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
)
SEEDS = (0, 7, 2**32 - 1, 2**40 + 17, 2**64 - 1)
SHAPES = ((), (1,), (0,), (2, 0, 3), (5,), (3, 4, 5))


def unsigned(backend: Any, x: Any, width: int = 32) -> Any:
    """What the bits are as unsigned integers."""
    return np.asarray(backend.to_numpy(x)).astype(np.int64).astype(np.uint64) & np.uint64(2**width - 1)


@pytest.mark.parametrize(("key", "counter", "wanted"), KNOWN)
def test_threefry_gives_the_published_answers(backend: Any, key: Any, counter: Any, wanted: Any) -> None:
    assert oracle_random.threefry(key, counter) == wanted
    words = np.array([*key, *counter], np.uint32).view(np.int32)
    k0, k1, c0, c1 = (backend.asarray(word[None]) for word in words)
    got = [int(unsigned(backend, word)[0]) for word in threefry2x32((k0, k1), (c0, c1))]
    assert got == list(wanted)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_bits_are_those_of_the_definition(backend: Any, seed: int, width: int) -> None:
    if width == 64 and "float64" not in backend.capabilities:
        pytest.skip("no 64-bit integers without float64")
    for shape in SHAPES:
        drawn = random.bits(random.key(seed), shape, width=width, like=backend.like)
        wanted = oracle_random.bits(oracle_random.key(seed), shape, width)
        assert tuple(drawn.shape) == shape
        np.testing.assert_array_equal(unsigned(backend, drawn, width), wanted.astype(np.uint64))


def test_keys_are_split_and_folded_by_the_definition(backend: Any) -> None:
    for seed in SEEDS:
        rng, words = random.key(seed), oracle_random.key(seed)
        for key, wanted in zip(random.split(rng, 3), oracle_random.split(words, 3), strict=True):
            drawn = unsigned(backend, random.bits(key, (4,), like=backend.like))
            np.testing.assert_array_equal(drawn, oracle_random.bits(wanted, (4,)))
        for data in (0, 1, 2**31 + 5):
            drawn = unsigned(backend, random.bits(random.fold_in(rng, data), (4,), like=backend.like))
            np.testing.assert_array_equal(drawn, oracle_random.bits(oracle_random.fold_in(words, data), (4,)))


def test_uniform_has_the_bits_of_the_definition(backend: Any) -> None:
    for seed in SEEDS:
        drawn = backend.to_numpy(random.uniform(random.key(seed), (3, 37), like=backend.like))
        assert drawn.dtype == np.float32
        np.testing.assert_array_equal(drawn, oracle_random.uniform(oracle_random.key(seed), (3, 37)))


@pytest.mark.parametrize("p", [0.0, 1e-9, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0])
def test_bernoulli_is_uniform_below_p(backend: Any, p: float) -> None:
    drawn = backend.to_numpy(random.bernoulli(random.key(3), p, (5, 41), like=backend.like))
    np.testing.assert_array_equal(drawn, oracle_random.bernoulli(oracle_random.key(3), p, (5, 41)))


RATES = (
    0.0,
    2.0**-150,
    1.1 * 2.0**-150,
    1e-9,
    2.0**-23,
    0.1,
    0.3 + 2.0**-30,
    0.5,
    0.9,
    1 - 2.0**-24,
    1 - 2.0**-26,
    1.0,
)


@pytest.mark.parametrize("p", RATES)
def test_a_word_is_below_p_if_its_uniform_is(backend: Any, p: float) -> None:
    """Those on both sides of p, of 0, of the sign bit and of the largest: a uniform has 2**9 words."""
    edges = [edge << 9 for edge in (0, round(p * 2**23) - 1, round(p * 2**23), 2**22)]
    words = np.unique(np.add.outer([*edges, 2**32], range(-1025, 1026)) % 2**32)
    high = np.arange(len(words), dtype=np.uint32) * np.uint32(0x9E3779B9)
    both = [backend.asarray(word.astype(np.uint32).view(np.int32)) for word in (high, words.astype(np.uint32) ^ high)]
    wanted = (words >> 9).astype(np.float64) * 2.0**-23 < float(np.float32(p))
    np.testing.assert_array_equal(backend.to_numpy(below(backend.xp, (both[0], both[1]), p)), wanted)


def test_an_entry_at_the_probability_itself_is_not_drawn(backend: Any) -> None:
    """u < p, and not u <= p: p is a number that the draw holds."""
    u = oracle_random.uniform(oracle_random.key(3), (5, 41))
    p = float(u[2, 7])
    for given in (p, backend.asarray(np.array(p, np.float32))):
        drawn = backend.to_numpy(random.bernoulli(random.key(3), given, (5, 41), like=backend.like))
        np.testing.assert_array_equal(drawn, u < np.float32(p))
        assert not drawn[2, 7]


def test_a_probability_may_be_an_array(backend: Any) -> None:
    p = backend.asarray(np.array(0.3, np.float32))
    drawn = backend.to_numpy(random.bernoulli(random.key(4), p, (5, 41), like=backend.like))
    np.testing.assert_array_equal(drawn, oracle_random.bernoulli(oracle_random.key(4), 0.3, (5, 41)))


def test_normal_numbers_are_the_quantiles_of_the_uniform_ones(backend: Any) -> None:
    drawn = backend.to_numpy(random.normal(random.key(5), (400,), like=backend.like)).astype(np.float64)
    wanted, allowed = oracle_random.normal(oracle_random.key(5), (400,))
    assert np.all(np.abs(drawn - wanted) <= allowed), np.max(np.abs(drawn - wanted) / allowed)


@pytest.mark.parametrize("shape", [(2**12,), (2, 2**16), (3, 277, 181)])
def test_an_entry_of_many_is_that_of_its_number(backend: Any, shape: tuple[int, ...]) -> None:
    rng, count = random.key(2**40 + 17), int(np.prod(shape))
    numbers = np.r_[:9, 2**12 - 3 : 2**12, 2**16 - 3 : 2**16 + 3, count - 9 : count] % count
    counter = backend.asarray(numbers.astype(np.int32))
    high, low = (unsigned(backend, word) for word in threefry2x32((rng.high, rng.low), (0, counter)))
    drawn = unsigned(backend, random.bits(rng, shape, like=backend.like))
    np.testing.assert_array_equal(drawn.reshape(-1)[numbers], high ^ low)


def test_a_namespace_will_do_where_the_device_does_not_matter(backend: Any) -> None:
    drawn = random.bits(random.key(3), (4,), like=backend.xp)
    np.testing.assert_array_equal(unsigned(backend, drawn), oracle_random.bits(oracle_random.key(3), (4,)))


def test_draws_equal_those_of_jax(backend: Any) -> None:
    jax = pytest.importorskip("jax")
    for seed in (0, 11, 2**31 + 3):
        theirs, ours = jax.random.key(seed), random.key(seed)
        for width in (8, 16, 32):
            wanted = np.asarray(jax.random.bits(theirs, (3, 5), f"uint{width}"))
            drawn = unsigned(backend, random.bits(ours, (3, 5), width=width, like=backend.like), width)
            np.testing.assert_array_equal(drawn, wanted.astype(np.uint64))
        uniform = backend.to_numpy(random.uniform(ours, (3, 5), like=backend.like))
        np.testing.assert_array_equal(uniform, np.asarray(jax.random.uniform(theirs, (3, 5), "float32")))
        kept = backend.to_numpy(random.bernoulli(ours, 0.25, (3, 5), like=backend.like))
        np.testing.assert_array_equal(kept, np.asarray(jax.random.bernoulli(theirs, np.float32(0.25), (3, 5))))
        for n, key in enumerate(random.split(ours, 3)):
            wanted = np.asarray(jax.random.bits(jax.random.split(theirs, 3)[n], (4,), "uint32"))
            np.testing.assert_array_equal(unsigned(backend, random.bits(key, (4,), like=backend.like)), wanted)
        folded = random.bits(random.fold_in(ours, 9), (4,), like=backend.like)
        wanted = np.asarray(jax.random.bits(jax.random.fold_in(theirs, 9), (4,), "uint32"))
        np.testing.assert_array_equal(unsigned(backend, folded), wanted)
        normal = backend.to_numpy(random.normal(ours, (3, 5), like=backend.like)).astype(np.float64)
        theirs_normal = np.asarray(jax.random.normal(theirs, (3, 5), "float32")).astype(np.float64)
        _, allowed = oracle_random.normal(oracle_random.key(seed), (3, 5))
        assert np.all(np.abs(normal - theirs_normal) <= 2 * allowed)


def test_a_wrapped_key_of_jax_is_the_same_key(backend: Any) -> None:
    jax = pytest.importorskip("jax")
    theirs = jax.random.fold_in(jax.random.key(3), 4)
    words = [int(word) for word in np.asarray(jax.random.key_data(theirs))]
    drawn = unsigned(backend, random.bits(random.wrap(words), (6,), like=backend.like))
    np.testing.assert_array_equal(drawn, np.asarray(jax.random.bits(theirs, (6,), "uint32")))
    array = backend.asarray(np.array(words, np.uint32).view(np.int32))
    np.testing.assert_array_equal(unsigned(backend, random.bits(random.wrap(array), (6,))), drawn)


@pytest.mark.needs("float64")
def test_float64_draws_are_made_of_two_words(backend: Any) -> None:
    drawn = backend.to_numpy(random.uniform(random.key(6), (50,), dtype="float64", like=backend.like))
    words = oracle_random.bits(oracle_random.key(6), (50,), 64)
    np.testing.assert_array_equal(drawn, (words >> np.uint64(12)).astype(np.float64) * 2.0**-52)


def test_dropout_of_more_than_2_to_the_32_entries_does_not_repeat(backend: Any) -> None:
    """The tile walk of attention reads the counter of the whole index space: two heads are 2**32 entries apart."""
    xp = backend.xp
    heads = xp.reshape(backend.asarray(np.arange(3, dtype=np.int32)), (3, 1))
    keys = backend.asarray(np.array([0, 5, 2**31 - 1], np.int32))
    high, low = counters([heads, keys], [2**32, 1], xp)
    wanted = [[h, k] for h in range(3) for k in (0, 5, 2**31 - 1)]
    got = zip(
        np.ravel(np.broadcast_to(backend.to_numpy(high), (3, 3))).tolist(),
        np.ravel(np.broadcast_to(backend.to_numpy(low), (3, 3))).tolist(),
        strict=True,
    )
    assert [list(pair) for pair in got] == wanted
