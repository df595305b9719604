"""Calls of so many heads and so long that an implementation may compute them in parts: nothing of that shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import attnspec

from . import bounds, masks, oracle_random
from .judges import near, within_bound
from .masks import Dropout
from .problems import integers, normal, problem, some_mask
from .subjects import BackendSubject
from .trials import Call

B, H, G, Q, K = 2, 6, 3, 230, 240


def long(seed: int, **options: Any) -> Call:
    """Three groups of two heads, in a batch of two."""
    return problem(seed, lead=(B,), H=H, G=G, Q=Q, K=K, D=4, E=3, **options)


CALLS = {
    "plain": long(1),
    "small scores": long(2, scale=2.0**-6, sink=normal(3, H)),
    "offsets": long(4, mask=masks.Causal(np.array([-3, 20], np.int32)), scale=2.0**-6),
    "lengths": long(5, mask=masks.Both(masks.Padding(np.array([0, 133], np.int32)), masks.Causal())),
    "segments": long(6, mask=masks.Segments(integers(7, B, Q, low=0, high=3), integers(8, B, K, low=0, high=3))),
    "a mask for each item": long(9, mask=some_mask(10, B, 1, Q, K)),
    "a mask for each head": long(11, mask=masks.Inverse(some_mask(12, H, 1, K))),
    "biases": long(13, bias=normal(14, B, H, 1, K), sink=normal(15, B, H), softcap=3.0),
    "a bias for all": long(16, bias=normal(17, Q, 1)),
    "positions": long(
        20,
        mask=masks.Window(5, 9),
        q_positions=integers(21, B, Q, low=0, high=K).astype(np.int32),
        k_positions=np.arange(K, dtype=np.int32),
    ),
    "one group": problem(22, lead=(B,), H=H, G=1, Q=Q, K=K, D=4, E=3, mask=masks.Causal()),
    "no key for anybody": problem(23, lead=(B,), H=H, G=G, Q=Q, K=0, D=4, E=3),
}


ROWS = [0, 101, Q - 1]


def some_rows(call: Call) -> Call:
    """The same question about a few of its queries, which the oracle answers in no time."""
    shape = (B, H, Q, call.k.shape[-2])
    mask, bias = call.mask, call.bias
    if mask is not None:
        seen = np.broadcast_to(masks.pairs(mask, shape, call.q_positions, call.k_positions), shape)
        mask = masks.Dense(seen[..., ROWS, :])
    if bias is not None:
        bias = np.broadcast_to(bias, shape)[..., ROWS, :]
    return call.but(q=call.q[..., ROWS, :], mask=mask, bias=bias, q_positions=None, k_positions=None)


@pytest.mark.clause("PATH-1", "SCORE-3", "MASK-3")
@pytest.mark.parametrize("name", CALLS)
def test_a_long_call_of_many_heads_has_the_answer_of_the_definition(backend: Any, name: str) -> None:
    call = CALLS[name].but(want="lse")
    whole = BackendSubject(backend).forward(call)
    assert whole.out is not None, whole.message
    assert whole.lse is not None
    answer = replace(whole, out=whole.out[..., ROWS, :], lse=whole.lse[..., ROWS])
    verdict = within_bound(some_rows(call))((answer,))
    assert verdict.ok, verdict.message


@pytest.mark.clause("DROPOUT-3", "DROPOUT-2")
def test_the_draw_over_a_long_call_of_many_heads_is_that_of_its_whole_index_space(backend: Any) -> None:
    """By the weights that the backend itself gives: beside them out has the roundings of one sum over the keys."""
    call, rate = CALLS["plain"], 0.25
    subject = BackendSubject(backend)
    weights = subject.forward(call.but(want="weights")).weights
    out = subject.forward(call.but(dropout=Dropout(rate, 19))).out
    keep = oracle_random.bernoulli(oracle_random.key(19), 1 - rate, (B, H, Q, K))
    kept, v = np.where(keep, weights, 0.0) / (1 - rate), np.repeat(call.v.astype(np.float64), H // G, axis=-3)
    bound = (2 * K + 12) * bounds.UNIT["float32"] * (np.where(keep, weights, 0.0) / (1 - rate) @ np.abs(v))
    verdict = near("out", out, kept @ v, bound)
    assert verdict.ok, verdict.message


@pytest.mark.clause("PATH-1", "SCORE-5")
def test_rules_with_a_row_for_each_head_are_those_of_each_head_alone(backend: Any) -> None:
    """Products of small integers are exact, so that the order in which a row is added up is all that may differ."""
    q, k = (backend.asarray(np.round(2 * x).astype(np.float32)) for x in (CALLS["plain"].q, CALLS["plain"].k))
    table, slopes = (backend.asarray(normal(seed, *shape)) for seed, shape in ((24, (H, 41)), (25, (H,))))
    bias = attnspec.relative_bias(table) + attnspec.alibi(slopes)
    whole = attnspec.attention_weights(q, k, bias=bias)

    def plain(x: Any) -> Any:
        return np.asarray(backend.to_numpy(x)).astype(np.float64)

    for h in range(H):
        alone = attnspec.relative_bias(table[h : h + 1, :]) + attnspec.alibi(slopes[h : h + 1])
        g = h // (H // G)
        part = attnspec.attention_weights(q[:, h : h + 1, ...], k[:, g : g + 1, ...], bias=alone)
        wanted = plain(part)
        verdict = near(
            "weights", plain(whole[:, h : h + 1, ...]), wanted, 2 * (K + 12) * bounds.UNIT["float32"] * wanted
        )
        assert verdict.ok, verdict.message


@pytest.mark.needs("vjp", "in_place")
@pytest.mark.clause("PATH-1")
@pytest.mark.parametrize("implementation", ["auto", "portable"])
@pytest.mark.parametrize("options", [{}, {"scale": 2.0**-6}])
def test_recording_changes_no_bit_of_a_long_call_either(
    backend: Any, implementation: str, options: dict[str, Any]
) -> None:
    q, k, v = (backend.asarray(x) for x in (CALLS["plain"].q, CALLS["plain"].k, CALLS["plain"].v))

    def attend(q: Any, k: Any, v: Any) -> Any:
        return attnspec.attention_with_lse(q, k, v, implementation=implementation, **options)

    def weigh(q: Any, k: Any) -> tuple[Any]:
        return (attnspec.attention_weights(q, k, **options),)

    if implementation == "portable" and "autodiff" not in backend.capabilities:
        pytest.skip("plain operations are not recorded where the framework does not differentiate")
    for function, operands in ((attend, (q, k, v)), (weigh, (q, k))):
        recorded, _ = backend.vjp(function, *operands)
        for one, other in zip(function(*operands), recorded, strict=True):
            np.testing.assert_array_equal(backend.to_numpy(one), backend.to_numpy(other))


@pytest.mark.clause("SHAPE-1", "SHAPE-2")
@pytest.mark.parametrize("size", [1.0, 20.0])  # the larger scores have exponentials that overflow
@pytest.mark.parametrize(("heads", "rows"), [(H, 5), (1, 66)])
def test_values_may_have_leading_axes_that_queries_and_keys_lack(
    backend: Any, heads: int, rows: int, size: float
) -> None:
    call = problem(26, lead=(B,), H=heads, Q=rows, K=rows, size=size, mask=masks.Causal(), want="lse")
    call = call.but(q=call.q[0], k=call.k[0])
    verdict = within_bound(call)((BackendSubject(backend).forward(call),))
    assert verdict.ok, verdict.message


@pytest.mark.clause("SHAPE-2")
def test_no_heads_give_no_answers(backend: Any) -> None:
    x = backend.asarray(np.zeros((0, 3, 2), np.float32))
    assert tuple(attnspec.attention(x, x, x, mask=attnspec.causal()).shape) == (0, 3, 2)
