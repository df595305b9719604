"""Calls of more queries and keys than are computed at once: edges of rules, and keys so far away that little counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attnspec

from . import bounds, masks, oracle
from .judges import near
from .masks import Array
from .problems import normal
from .trials import Call

H, Q, K, SLOPE = 4, 512, 1100, 0.25  # the slope of the first of 4 heads


def numbers(backend: Any, x: Any) -> Array:
    return np.asarray(backend.to_numpy(x))


def attend(backend: Any, q: Array, k: Array, v: Array, **options: Any) -> list[Array]:
    made = map(backend.asarray, (q, k, v))
    return [numbers(backend, x) for x in attnspec.attention_with_lse(*made, **options)]


def right(out: Array, call: Call) -> None:
    """Against the oracle's answer to the call."""
    exact = oracle.attention(call)
    verdict = near("out", out.astype(np.float64), exact.answer["out"], bounds.out(exact, call.dtype))
    assert verdict.ok, verdict.message


def by_distance(rows: Array) -> Array:
    """What `alibi(H)` adds to the scores of these queries in the first head."""
    return -SLOPE * np.abs(np.arange(K) - rows[:, None]).astype(np.float32)


@pytest.mark.clause("MASK-4")
@pytest.mark.parametrize(("mask", "low", "high"), [
    (attnspec.causal(), -K, 0),
    (attnspec.causal(101), -K, 101),
    (attnspec.window(90, 7), -90, 7),
    (attnspec.window(90, 300, offset=-45), -135, 255),
])  # fmt: skip
def test_a_rule_cuts_long_rows_where_it_says(backend: Any, mask: Any, low: int, high: int) -> None:
    q, k, v = normal(1, Q + 88, 3), normal(2, Q + 89, 3), normal(3, Q + 89, 2)
    out, _ = attend(backend, q, k, v, mask=mask)
    rows = np.array([0, 127, 128, 255, 256, 257, 300, 511, 512, 513, 599])
    ahead = np.arange(len(k)) - rows[:, None]
    right(out[rows], Call(q[rows], k, v, mask=masks.Dense((ahead >= low) & (ahead <= high))))


@pytest.mark.clause("SCORE-5")
def test_a_bias_by_distance_is_that_of_its_formula_along_long_rows(backend: Any) -> None:
    q, k, v = normal(1, H, Q, 3), normal(2, H, K, 3), normal(3, H, K, 2)
    out, _ = attend(backend, q, k, v, bias=attnspec.alibi(H))
    rows = np.array([0, 200, 511])
    right(out[0, rows], Call(q[0, rows], k[0], v[0], bias=by_distance(rows)))


@pytest.mark.clause("SCORE-5")
@pytest.mark.parametrize(("offset", "G"), [(-700, 2), (-90, 4), (300, 2), (1500, 4)])
def test_a_bias_by_distance_counts_from_where_the_queries_stand(backend: Any, offset: int, G: int) -> None:
    q, k, v = normal(1, H, Q + 300, 3), normal(2, G, K, 3), normal(3, G, K, 2)
    out, _ = attend(backend, q, k, v, bias=attnspec.alibi(H, offset=offset))
    rows = np.array([0, 256, 511, Q + 299])
    distance = np.abs(np.arange(K) - rows[:, None] - offset)
    for head in range(H):
        bias = -(SLOPE ** (head + 1)) * distance.astype(np.float32)
        group = head // (H // G)
        right(out[head, rows], Call(q[head, rows], k[group], v[group], bias=bias))


@pytest.mark.clause("SCORE-5", "SOFTMAX-3")
def test_keys_far_on_either_side_count_by_their_distance_alone(backend: Any) -> None:
    q, k, v = (0.0 * normal(1, H, n, 1) for n in (Q, K, K))
    for offset in (-300, K - Q + 300):
        _, lse = attend(backend, q, k, v, bias=attnspec.alibi(H, offset=offset))
        distance = np.abs(np.arange(K) - np.arange(Q)[:, None] - offset)
        for head in range(H):
            exact = np.logaddexp.reduce(-(SLOPE ** (head + 1)) * distance.astype(float), axis=-1)
            assert np.allclose(lse[head], exact, rtol=1e-5, atol=1e-5)


@pytest.mark.clause("SCORE-5")
def test_one_long_key_decides_however_far_it_is(backend: Any) -> None:
    S = 1536
    v: Array = np.zeros((H, S, 1), np.float32)
    v[:, -1] = 1.0
    q, k = np.ones_like(v), v * 1e4
    for mask in (None, attnspec.window(0, None), attnspec.window(S, None)):
        out, _ = attend(backend, q, k.astype(np.float32), v, mask=mask, bias=attnspec.alibi(H))
        assert np.array_equal(out, np.ones_like(out))


@pytest.mark.clause("MASK-7")
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_far_value_that_is_not_finite_reaches_every_row_that_sees_it(backend: Any, value: float) -> None:
    q, k, v = normal(1, H, Q, 3), normal(2, H, K, 3), normal(3, H, K, 2)
    v[0, K - 2, 0] = value
    out, lse = attend(backend, q, k, v, bias=attnspec.alibi(H))
    assert np.isnan(out[0]).all()
    assert np.isfinite(lse).all()
    assert np.isfinite(out[1:]).all()


@pytest.mark.clause("MASK-6a", "MASK-6b")
@pytest.mark.parametrize("value", [np.nan, -np.inf, 3e38, -3e38, 1e-40])
def test_what_is_hidden_among_far_keys_changes_no_bit(backend: Any, value: float) -> None:
    q, k, v = normal(1, H, Q, 3), normal(2, H, K, 3), normal(3, H, K, 2)
    hidden = np.arange(K) % 3 == 1
    seen = backend.asarray(~hidden)
    k[:, hidden], v[:, hidden] = 0.0, 0.0
    clean = attend(backend, q, k, v, mask=seen, bias=attnspec.alibi(H))
    k[:, hidden], v[:, hidden] = value, value
    for one, other in zip(clean, attend(backend, q, k, v, mask=seen, bias=attnspec.alibi(H)), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.clause("MASK-6a")
def test_rows_that_see_nothing_of_far_keys_lose_nothing_in_them(backend: Any) -> None:
    """Of the keys nearby they have next to nothing, and each tile of others is all but lost for those that see it."""
    heads, rows, keys, offset = 8, 256, 2048, 1270
    q, k, v = (normal(n, heads, m, 8) for n, m in ((1, Q), (2, keys), (3, keys)))
    near = np.arange(keys) - np.arange(rows)[:, None] - offset
    seen: Array = np.ones((Q, keys), bool)
    seen[:rows] = (near >= 40) & (near < 80)
    seen[:rows, 1000] = True
    answers = []
    for value in (None, 1e5, 3e38, np.nan):
        changed = k.copy()
        if value is not None:
            changed[:, 5] = value
        bias = attnspec.alibi(heads, offset=offset)
        answers.append(attend(backend, 0.01 * q, 0.01 * changed, v, mask=backend.asarray(seen), bias=bias))
    for found in answers[1:]:
        for x, y in zip(answers[0], found, strict=True):
            np.testing.assert_array_equal(x[:, :rows], y[:, :rows])


@pytest.mark.clause("SCORE-5", "SOFTMAX-1")
@pytest.mark.parametrize(("row", "at", "K"), [
    (Q - 1, K - 1, K), (Q - 1, 1024, K), (0, 512, 768),  # wherever tiles of keys begin and end
])  # fmt: skip
def test_a_far_key_counts_for_what_its_value_is_worth(backend: Any, row: int, at: int, K: int) -> None:
    # exp(-13) is all that the row has of near keys, and exp(-87.5) of the far one, whose value makes it count.
    far = SLOPE * (at - row) - 87.5
    q, k, v = np.full((H, Q, 1), 1.0), np.full((H, K, 1), -13.0), np.zeros((H, K, 1))
    k[:, at], v[:, at] = far, 2.0**60
    q, k, v = (x.astype(np.float32) for x in (q, k, v))
    out, _ = attend(backend, q, k, v, scale=1.0, bias=attnspec.alibi(H))
    rows = np.array([row])
    right(out[0, rows], Call(q[0, rows], k[0], v[0], bias=by_distance(rows)[:, :K], scale=1.0))
