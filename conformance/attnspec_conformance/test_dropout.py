"""DROPOUT of an array, and what dropout refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attnspec
from attnspec import random
from attnspec.errors import OptionError, ShapeError

from . import bounds, masks, oracle, oracle_random
from .judges import near
from .problems import constant, normal, problem, rounded

RATES = (0.1, 0.25, 0.5, 0.9)


def drop(backend: Any, x: Any, rate: Any, seed: int = 3, dtype: str = "float32") -> Any:
    made = attnspec.dropout(backend.asarray(x, dtype=dtype), rate, attnspec.random.key(seed))
    assert str(made.dtype).rpartition(".")[2] == dtype
    return np.asarray(backend.to_numpy(made)).astype(np.float64)


@pytest.mark.clause("DROPOUT-1")
@pytest.mark.parametrize("rate", [0, 0.0])
def test_rate_zero_gives_back_the_bits(backend: Any, rate: float) -> None:
    x = normal(1, 3, 5)
    x[0, 0], x[1, 1] = np.nan, np.inf
    np.testing.assert_array_equal(drop(backend, x, rate), x)


@pytest.mark.clause("DROPOUT-1")
@pytest.mark.parametrize("rate", [1, 1.0])
def test_rate_one_gives_exact_zeros_whatever_was_there(backend: Any, rate: float) -> None:
    x = normal(1, 3, 5)
    x[0, 0], x[1, 1] = np.nan, np.inf
    np.testing.assert_array_equal(drop(backend, x, rate), np.zeros((3, 5)))


@pytest.mark.clause("DROPOUT-1", "ERROR-1")
@pytest.mark.parametrize("rate", [-0.1, 1.5, float("nan"), float("inf")])
def test_a_rate_outside_0_to_1_is_refused(backend: Any, rate: float) -> None:
    x, rng = backend.asarray(normal(1, 3, 5)), attnspec.random.key(0)
    with pytest.raises(OptionError, match=str(rate)):
        attnspec.dropout(x, rate, rng)
    with pytest.raises(OptionError, match=str(rate)):
        attnspec.attention(x, x, x, dropout=attnspec.Dropout(rate, rng))


@pytest.mark.clause("DROPOUT-2", "DROPOUT-3")
@pytest.mark.parametrize("rate", RATES)
def test_kept_entries_are_those_of_bernoulli_and_scaled(backend: Any, rate: float) -> None:
    x = normal(1, 4, 7, 5)
    keep = oracle_random.bernoulli(oracle_random.key(3), 1 - rate, x.shape)
    got, wanted = drop(backend, x, rate), np.where(keep, x / (1 - rate), 0.0)
    assert np.all(np.abs(got - wanted) <= bounds.dropped(wanted, rate, "float32"))


@pytest.mark.clause("DROPOUT-1", "DROPOUT-2")
@pytest.mark.parametrize("rate", [0.0, 0.25, 1.0])
def test_a_rate_may_be_an_array(backend: Any, rate: float) -> None:
    x, by_array = normal(1, 4, 7, 5), backend.asarray(np.array(rate, np.float32))
    keep = oracle_random.bernoulli(oracle_random.key(3), 1 - rate, x.shape)
    wanted = np.where(keep, x / (1 - rate), 0.0) if rate < 1 else np.zeros(x.shape)
    allowed = bounds.dropped(wanted, rate, "float32") if 0 < rate < 1 else np.zeros(x.shape)
    assert np.all(np.abs(drop(backend, x, by_array) - wanted) <= allowed)
    call = problem(want="lse", dropout=masks.Dropout(rate, 3))
    drops = attnspec.Dropout(by_array, attnspec.random.key(3))
    out, _ = attnspec.attention_with_lse(*map(backend.asarray, (call.q, call.k, call.v)), dropout=drops)
    exact = oracle.attention(call)
    verdict = near("out", np.asarray(backend.to_numpy(out)), exact.out, bounds.out(exact, "float32"))
    assert verdict.ok, verdict.message


STARTS, SIZES, WHOLE = (0, 1, 2, 3), (2, 2, 3, 4), (2, 4, 5, 9)  # of a part (..., H, Q, K) and of its whole
PLACES: dict[str, Callable[[int, int], Any]] = {
    "numbers": lambda start, n: start,
    "arrays without axes": lambda start, n: np.array(start, np.int32),
    "an array for each row": lambda start, n: np.arange(start, start + n, dtype=np.int32),
}


@pytest.mark.clause("DROPOUT-3", "SHARD-2")
@pytest.mark.parametrize("places", PLACES)
def test_a_part_drops_what_the_whole_drops(backend: Any, places: str) -> None:
    """Of attention's weights and of a tensor, by the seed 3 of `drop`."""
    made = (PLACES[places](start, n) for start, n in zip(STARTS, SIZES, strict=True))
    at = tuple(place if isinstance(place, int) else backend.asarray(place, dtype="int32") for place in made)
    of_part = attnspec.Dropout(0.25, attnspec.random.key(3), whole=WHOLE, at=at)
    part = tuple(slice(start, start + n) for start, n in zip(STARTS, SIZES, strict=True))

    x = normal(1, *WHOLE)
    nothing = backend.asarray(np.zeros(SIZES, np.float32))
    got = attnspec.pre_norm(nothing, lambda _: backend.asarray(np.ascontiguousarray(x[part])), dropout=of_part)
    np.testing.assert_array_equal(backend.to_numpy(got), drop(backend, x, 0.25)[part])

    # Equal scores and the identity for values: the output is the kept weights.
    q, k = (backend.asarray(np.zeros((*SIZES[:2], n, 1), np.float32)) for n in SIZES[2:])
    v = backend.asarray(np.broadcast_to(np.eye(SIZES[3], dtype=np.float32), (*SIZES[:2], SIZES[3], SIZES[3])).copy())
    kept = np.asarray(backend.to_numpy(attnspec.attention(q, k, v, dropout=of_part))) != 0
    np.testing.assert_array_equal(kept, oracle_random.bernoulli(oracle_random.key(3), 0.75, WHOLE)[part])


@pytest.mark.clause("DROPOUT-3", "ERROR-1")
@pytest.mark.parametrize(
    ("whole", "at", "words"),
    [
        (None, (0, 0, 0), "whole=None"),
        ((3, 5, 7), (), r"at=\(\).*3 axes"),
        ((2, 3, 5, 7), (0, 0, 0, 0), "both need to be tuples with an entry for each of its 3 axes"),
        (3, 4, "whole=3 and at=4.*tuples"),
        ((3, 4.5, 7), (0, 0, 0), "axis -2: the whole has 4.5 entries, its part 5; an integer from 5 up"),
        ((3, 4, 7), (0, 0, 0), "axis -2: the whole has 4 entries, its part 5"),
        ((3, 5, 7), (0, 1, 0), "axis -2: at=1 for 5 of 5 entries.*from 0 to 0"),
        ((3, 9, 7), (0, -1, 0), "axis -2: at=-1 for 5 of 9.*from 0 to 4"),
        ((3, 5, 9), (0, 0, 0.5), "axis -1: at=0.5"),
    ],
)
def test_a_part_that_is_none_is_refused(backend: Any, whole: Any, at: Any, words: str) -> None:
    q, k = backend.asarray(normal(1, 3, 5, 2)), backend.asarray(normal(2, 3, 7, 2))
    option = attnspec.Dropout(0.5, attnspec.random.key(0), whole=whole, at=at)
    with pytest.raises(ShapeError, match=words):
        attnspec.attention(q, k, k, dropout=option)
    with pytest.raises(ShapeError, match=words):
        attnspec.residual.add(y := backend.asarray(normal(1, 3, 5, 7)), y, option)


@pytest.mark.clause("DROPOUT-3", "ERROR-1")
def test_places_are_signed_integers_one_or_one_for_each_row(backend: Any) -> None:
    q, k = backend.asarray(normal(1, 3, 5, 2)), backend.asarray(normal(2, 3, 7, 2))
    for place, words in (
        (backend.asarray(np.zeros(4, np.int32), dtype="int32"), r"int32 of shape \(4,\)"),
        (backend.asarray(np.zeros(5, np.float32)), r"float32 of shape \(5,\)"),
    ):
        option = attnspec.Dropout(0.5, attnspec.random.key(0), whole=(3, 9, 7), at=(0, place, 0))
        with pytest.raises(ShapeError, match=words):
            attnspec.attention(q, k, k, dropout=option)


def half(backend: Any, dtype: str) -> None:
    x = normal(1, 4, 7, dtype=dtype)
    keep = oracle_random.bernoulli(oracle_random.key(3), 0.75, x.shape)
    wanted = np.where(keep, x.astype(np.float64) / 0.75, 0.0)
    assert np.all(np.abs(drop(backend, x, 0.25, dtype=dtype) - wanted) <= bounds.dropped(wanted, 0.25, dtype))


@pytest.mark.clause("DROPOUT-2")
@pytest.mark.needs("float16")
def test_float16_is_scaled_in_float32(backend: Any) -> None:
    half(backend, "float16")


@pytest.mark.clause("DROPOUT-2")
@pytest.mark.needs("bfloat16")
def test_bfloat16_is_scaled_in_float32(backend: Any) -> None:
    half(backend, "bfloat16")


@pytest.mark.clause("DROPOUT-2", "DROPOUT-3")
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1)])
def test_of_no_axes_or_no_entries_dropout_is_that_of_its_shape(backend: Any, shape: tuple[int, ...]) -> None:
    got = backend.to_numpy(attnspec.dropout(backend.asarray(np.ones(shape, np.float32)), 0.5, attnspec.random.key(3)))
    keep = backend.to_numpy(random.bernoulli(attnspec.random.key(3), 0.5, shape, like=backend.like))
    np.testing.assert_array_equal(got, np.where(keep, np.float32(2), np.float32(0)))


@pytest.mark.clause("DROPOUT-2", "DROPOUT-3")
@pytest.mark.parametrize("turned", [False, True])
def test_of_many_entries_each_is_kept_or_not_as_bernoulli_says(backend: Any, turned: bool) -> None:
    x = backend.asarray(1 + np.arange(3 * 277 * 181, dtype=np.float32).reshape(3, 277, 181) % 4096)
    x = backend.xp.permute_dims(x, (2, 0, 1)) if turned else x
    keep = backend.to_numpy(random.bernoulli(attnspec.random.key(3), 0.75, tuple(x.shape), like=x))
    before, got = np.array(backend.to_numpy(x)), backend.to_numpy(attnspec.dropout(x, 0.25, attnspec.random.key(3)))
    wanted = np.where(keep, before.astype(np.float64) / 0.75, 0.0)
    assert np.all(np.abs(got - wanted) <= bounds.dropped(wanted, 0.25, "float32"))
    np.testing.assert_array_equal(before, backend.to_numpy(x))


@pytest.mark.clause("DROPOUT-3")
def test_the_seed_decides_and_nothing_else(backend: Any) -> None:
    x = constant(1, 4, 50)
    first, again, other = (drop(backend, x, 0.5, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


@pytest.mark.clause("DROPOUT-2")
def test_dropped_values_cannot_be_observed(backend: Any) -> None:
    x = normal(1, 4, 9)
    keep = oracle_random.bernoulli(oracle_random.key(3), 0.5, x.shape)
    poisoned = rounded(np.where(keep, x, np.nan), "float32")
    np.testing.assert_array_equal(drop(backend, poisoned, 0.5), drop(backend, x, 0.5))
