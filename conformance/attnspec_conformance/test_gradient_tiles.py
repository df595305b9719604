"""Gradients of calls with so many queries and keys that shortcuts pay: the formulas, and what a mask hides, still."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attnspec

from . import masks
from .attention_cases import case
from .differentiating import by_tape, found, quick
from .judges import holds
from .masks import Array
from .problems import beyond_a_tile, normal, problem, some_mask

GARBAGE = (1e30, float(np.finfo(np.float32).max), np.nan, np.inf)


@pytest.mark.clause("GRADIENT-1")
def test_gradients_of_attention_over_several_tiles_are_those_of_the_formulas(backend: Any) -> None:
    """Without options, and at a few keys of each tile to every query: the oracle has not all pairs to go through."""
    call = beyond_a_tile(mask=some_mask(3, 513, 525, share=0.04), scale=0.5)
    holds(found(backend, case(call, lse=True)).against_the_oracle())


@pytest.mark.clause("GRADIENT-1")
def test_gradients_of_sharp_rows_beside_ordinary_ones_are_those_of_the_formulas(backend: Any) -> None:
    """Rows with scores of 10 and of 1000, one whose scores are all far below 0, and one that sees nothing."""
    call = problem(5, lead=(), H=2, G=1, Q=70, K=80, mask=masks.Causal(-1))
    q, k = call.q.copy(), call.k.copy()
    q[:, 20] *= 10
    q[:, 40] *= 1000
    k[:, :, 0], q[:, 60] = 3.0, (-100.0, 0.0, 0.0, 0.0)
    holds(found(backend, case(call.but(q=q, k=k, scale=0.5), lse=True)).against_the_oracle())


MASKS: dict[str, Callable[[int, int], Array]] = {
    "a row of keys": lambda Q, K: np.arange(K) % 7 > 1,
    "lengths": lambda Q, K: np.arange(K) < K - 9,
    "pairs, and a key that nobody sees": lambda Q, K: (
        (np.arange(Q)[:, None] + np.arange(K)) % 5 * (np.arange(K) > 3) > 0
    ),
}


@pytest.mark.clause("MASK-6c")
@pytest.mark.parametrize(("Q", "K", "name"), [*((70, 90, name) for name in MASKS), (530, 270, "a row of keys")])
def test_garbage_in_keys_that_nobody_sees_changes_no_bit_of_any_gradient_of_a_long_call(
    backend: Any, Q: int, K: int, name: str
) -> None:
    visible = MASKS[name](Q, K)
    unseen = ~np.broadcast_to(visible, (Q, K)).any(0)
    gradients, arrays = gradients_of(backend, Q, K, visible)
    clean = gradients(*arrays)
    assert unseen.any()
    for of_keys in clean[1:]:
        np.testing.assert_array_equal(of_keys[..., unseen, :], 0)
    for value in GARBAGE:
        q, k, v = (x.copy() for x in arrays)
        k[..., unseen, :] = v[..., unseen, :] = value
        for got, wanted in zip(gradients(q, k, v), clean, strict=True):
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.clause("MASK-6c")
@pytest.mark.parametrize("K", [96, 270])
def test_the_last_of_many_keys_reaches_no_gradient_but_by_the_query_that_sees_it(backend: Any, K: int) -> None:
    """Nothing is asked of that query, whose own sums are computed otherwise the larger its scores are."""
    gradients, arrays = gradients_of(backend, K, K, np.tri(K, dtype=bool), silent=K - 1)
    clean = gradients(*arrays)
    for value in (0.0, 100.0, 1e4, 1e30):
        q, k, v = (x.copy() for x in arrays)
        k[..., -1, :] = v[..., -1, :] = value
        for got, wanted in zip(gradients(q, k, v), clean, strict=True):
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.clause("GRADIENT-5", "MASK-7")
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_in_a_long_call_nan_reaches_exactly_the_rows_that_see_it_and_their_keys(backend: Any, value: float) -> None:
    """A query, then a value, that is not finite; every other entry keeps its bits."""
    visible = MASKS["pairs, and a key that nobody sees"](70, 90)
    gradients, arrays = gradients_of(backend, 70, 90, visible)
    clean = gradients(*arrays)
    for n, at in ((0, (1, 11, 2)), (2, (0, 8, 1))):
        changed = [x.copy() for x in arrays]
        changed[n][at] = value
        rows: Array = np.zeros((4, 70), bool)
        keys: Array = np.zeros((2, 90), bool)
        if n == 0:
            rows[at[:2]] = True
        else:
            rows[:2] = visible[:, at[1]]
        keys[0] = visible[rows[:2].any(0)].any(0)
        for got, wanted, bad in zip(gradients(*changed), clean, (rows, keys, keys), strict=True):
            np.testing.assert_array_equal(np.isnan(got).all(-1), bad)
            np.testing.assert_array_equal(got[~bad], wanted[~bad])


@pytest.mark.clause("GRADIENT-5", "MASK-7")
@pytest.mark.parametrize("seen", [1, 2])
@pytest.mark.parametrize(("n", "at"), [(0, (1, 3)), (1, (0, 0)), (2, (0, 0))])
def test_nan_where_few_keys_are_seen_reaches_these_keys(backend: Any, seen: int, n: int, at: tuple[int, int]) -> None:
    """Whose scores, what is NaN cleaned from them, are whole numbers."""
    Q, K = 80, 90
    gradients, arrays = gradients_of(backend, Q, K, np.arange(K) < seen)
    changed: list[Array] = [np.round(x) for x in arrays]
    changed[n][at] = np.nan
    heads = slice(1, 2) if n == 0 else slice(0, 2)
    rows: Array = np.zeros((4, Q), bool)
    keys: Array = np.zeros((2, K), bool)
    rows[heads, at[1] if n == 0 else slice(None)] = True
    keys[0, :seen] = True
    for got, bad in zip(gradients(*changed), (rows, keys, keys), strict=True):
        np.testing.assert_array_equal(np.isnan(got).all(-1), bad)
        assert np.isfinite(got[~bad]).all()


def gradients_of(
    backend: Any, Q: int, K: int, visible: Array, silent: int | None = None
) -> tuple[Callable[..., list[Array]], tuple[Array, Array, Array]]:
    """A function from q, k and v to their gradients, and values for them: two query heads to each of two key heads."""
    arrays = normal(1, 4, Q, 5), normal(2, 2, K, 5), normal(3, 2, K, 3)
    g, mask, how = normal(4, 4, Q, 3), backend.asarray(visible), quick(backend, by_tape)
    if silent is not None:
        g[:, silent] = 0

    def attend(*arrays: Any) -> tuple[Any]:
        return (attnspec.attention(*arrays, mask=mask),)

    def gradients(*arrays: Array) -> list[Array]:
        _, found = how(attend, list(map(backend.asarray, arrays)), [backend.asarray(g)])
        return list(map(backend.to_numpy, found))

    return gradients, arrays
