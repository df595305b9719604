"""Faults that were shipped outside attention proper, each as a test against its whole kind.

Those of attention are laws, in `laws/recipes.py`; those of norms, caches and plug-ins stand with their clauses, and
their tests name them: NO-01, NO-02, NO-04 (`test_norm`), FM-02 (`test_gradients`), PR-01 (the suite's own tests).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attnspec
from attnspec import random

from . import bounds, oracle, oracle_layers, oracle_random
from .judges import near
from .masks import Array
from .oracle_layers import Value
from .problems import constant, normal, problem
from .trials import Call

U = bounds.UNIT["float32"]

SLOPES = {
    8: [2.0**-n for n in range(1, 9)],
    6: [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3],
    12: [*(2.0**-n for n in range(1, 9)), 2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5],
    1: [2.0**-8],
    2: [2.0**-4, 2.0**-8],
    3: [2.0**-4, 2.0**-8, 2.0**-2],
}


@pytest.mark.clause("SCORE-5")
@pytest.mark.parametrize("heads", SLOPES)
def test_bw_04_alibi_has_the_published_slopes(backend: Any, heads: int) -> None:
    """ml-explore/mlx#3071. The query stands at position 3, so that key j is 3 - j away."""
    slopes, distance = np.array(SLOPES[heads]), np.array([3.0, 2, 1, 0, 1])
    bias = -slopes[:, None, None] * distance
    call = Call(constant(0, heads, 1, 1), constant(0, heads, 5, 1), constant(0, heads, 5, 1), bias=bias, want="weights")
    q, k, at = backend.asarray(call.q), backend.asarray(call.k), backend.asarray(np.array([3], np.int32))
    weights = np.asarray(backend.to_numpy(attnspec.attention_weights(q, k, bias=attnspec.alibi(heads), q_positions=at)))
    exact = oracle.attention(call)
    allowed = bounds.weights(exact, "float32", bounds.Slack(product_of_a_slope(bias)))
    verdict = near("weights", weights, exact.weights, allowed)
    assert verdict.ok, verdict.message


def product_of_a_slope(bias: Array) -> Array:
    """The slope and its product with the distance round once each."""
    return 2 * U * np.abs(bias)


@pytest.mark.clause("SCORE-5")
def test_biases_add_up(backend: Any) -> None:
    call = problem(lead=())
    distance = -np.abs(np.arange(7)[None, :] - np.arange(5)[:, None])
    dense, sloped = normal(4, 6, 5, 7), np.array(SLOPES[6])[:, None, None] * distance
    call = call.but(bias=dense + sloped)
    composed = attnspec.alibi(6) + backend.asarray(dense)
    got = attnspec.attention(*map(backend.asarray, (call.q, call.k, call.v)), bias=composed)
    exact = oracle.attention(call)
    slack = bounds.Slack(product_of_a_slope(sloped) + U * np.abs(call.bias))
    verdict = near("out", np.asarray(backend.to_numpy(got)), exact.out, bounds.out(exact, "float32", slack=slack))
    assert verdict.ok, verdict.message


@pytest.mark.clause("DROPOUT-1")
def test_do_01_a_layer_without_dropout_is_the_same_every_time(backend: Any) -> None:
    """pytorch/pytorch#124464. There is no mode: the same arguments give the same bits."""
    shapes = ((8, 2, 4), (8, 2, 4), (8, 2, 4), (2, 4, 8))
    params = attnspec.MultiHeadParams(*(backend.asarray(normal(n, *shape)) for n, shape in enumerate(shapes)))
    x = backend.asarray(normal(7, 5, 8))
    option = attnspec.Dropout(0.5, random.key(3))
    plain, dropped, again = (
        backend.to_numpy(attnspec.multi_head_attention(params, x, dropout=d)) for d in (None, option, None)
    )
    np.testing.assert_array_equal(plain, again)
    assert np.any(plain != dropped)


@pytest.mark.clause("SCORE-1")
def test_aa_03_arrays_without_axes_widen_nothing(backend: Any) -> None:
    """pytorch/pytorch#58736. Options as 0-d arrays give what numbers give, in the dtype of the inputs."""
    q, k, v = (backend.asarray(normal(n, 2, 5, 4)) for n in range(3))
    half, two = (backend.asarray(np.array(x, np.float32)) for x in (0.5, 2.0))
    by_array = attnspec.attention(q, k, v, scale=half, softcap=two)
    by_number = attnspec.attention(q, k, v, scale=0.5, softcap=2.0)
    assert by_array.dtype == by_number.dtype == q.dtype
    np.testing.assert_array_equal(backend.to_numpy(by_array), backend.to_numpy(by_number))
    eps = attnspec.layer_norm(q, eps=backend.asarray(np.array(1e-3, np.float32)))
    assert eps.dtype == q.dtype


@pytest.mark.clause("DROPOUT-3")
def test_aa_02_words_wrap_and_shift_as_unsigned_ones(backend: Any) -> None:
    """pytorch/pytorch#139124. Keys with the sign bit set draw what the definition draws."""
    for words in ((0xFFFFFFFF, 0x80000000), (0x80000000, 0x9E3779B9), (0xFFFFFFFF, 0xFFFFFFFF)):
        drawn = np.asarray(backend.to_numpy(random.bits(random.wrap(words), (9,), like=backend.like)))
        unsigned = drawn.astype(np.int64) & 0xFFFFFFFF
        np.testing.assert_array_equal(unsigned, oracle_random.bits(words, (9,)))


@pytest.mark.clause("DROPOUT-3")
def test_pr_02_an_entry_is_kept_where_the_uniform_is_below_the_probability(backend: Any) -> None:
    """Dao-AILab/flash-attention#180: u < 1 - p and u >= p keep as many entries, and other ones."""
    rng, x = random.key(5), backend.asarray(constant(1, 400))
    kept = backend.to_numpy(attnspec.dropout(x, 0.4, rng)) > 0
    u = oracle_random.uniform(oracle_random.key(5), (400,))
    np.testing.assert_array_equal(kept, u < np.float32(0.6))
    assert np.any(kept != (u >= np.float32(0.4)))


@pytest.mark.needs("jit")
@pytest.mark.clause("PATH-1")
def test_aa_04_norms_compile_without_looking_at_values(backend: Any) -> None:
    """data-apis/array-api#84."""

    def function(x: Array, gamma: Array, eps: Array) -> Array:
        return attnspec.add_and_norm(x, x * x, gamma, eps=eps)

    x, gamma, eps = normal(1, 3, 8), normal(2, 8), np.float32(1e-3)
    square = x.astype(np.float64) ** 2
    summed = oracle_layers.add(Value.given(x), Value(square, U * square), U)
    wanted = oracle_layers.layer_norm(summed, gamma, None, float(eps), U)
    compiled = backend.jit(function)(*map(backend.asarray, (x, gamma, np.array(eps))))
    verdict = near("y", np.asarray(backend.to_numpy(compiled)), wanted.exact, wanted.error)
    assert verdict.ok, verdict.message


@pytest.mark.clause("PATH-1")
def test_aa_01_axes_are_always_named(backend: Any) -> None:
    """data-apis/array-api-tests#367. Per-batch cache lengths place rows by gathering along an axis."""
    empty = attnspec.Cache.empty(kv_heads=3, capacity=5, key_width=2, lead=(2,), like=backend.like)
    cache = attnspec.Cache(empty.k, empty.v, backend.asarray(np.array([0, 2], np.int32)))
    rows = normal(1, 2, 3, 2, 2)
    made = backend.asarray(rows)
    longer = backend.to_numpy(cache.append(made, made).k)
    np.testing.assert_array_equal(longer[0, :, :2], rows[0])
    np.testing.assert_array_equal(longer[1, :, 2:4], rows[1])
    assert not longer[0, :, 2:].any()
    assert not longer[1, :, :2].any()


@pytest.mark.clause("PATH-1")
def test_mm_01_rules_hold_a_few_numbers_whatever_the_length(backend: Any) -> None:
    """Blaizzy/mlx-embeddings#68: 32 sequences of 32,768 would need 128 GB as one dense float mask."""
    lengths = backend.asarray(np.full(32, 30000, np.int32))
    rule = attnspec.causal() & attnspec.window(4096, 0) & attnspec.padding(lengths)
    q, k = (backend.asarray(constant(0, 32, 1, rows, 1)) for rows in (1, 32768))
    at = backend.asarray(np.array([30000], np.int32))
    _, lse = attnspec.attention_with_lse(q, k, k, mask=rule, q_positions=at)
    exact = oracle.attention(Call(constant(0, 1, 1), constant(0, 4096, 1), constant(0, 4096, 1)))
    wanted, allowed = np.full((32, 1, 1), exact.answer["lse"]), bounds.lse(exact, "float32")
    verdict = near("lse", np.asarray(backend.to_numpy(lse)), wanted, allowed)
    assert verdict.ok, verdict.message
