"""Kernels behind other conventions: put into their own words, and what they answer put back."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from attnspec_conformance import masks, oracle
from attnspec_conformance.adapted import Adapted
from attnspec_conformance.adapters import Adapter, Flag, Pairs, Sides
from attnspec_conformance.clauses import CLAUSES
from attnspec_conformance.laws import LAWS
from attnspec_conformance.verdict import judge_all
from verdicts import failed

import attnspec
from attnspec.errors import AttnspecError

SHARD = {clause for clause in CLAUSES if clause.startswith("SHARD")}  # of those who divide calls
NAMES = {name: name for name in ("bias", "scale", "softcap", "sink", "keep", "rate")}
UNBOUNDED = -7


def kernel(q, k, v, *, hidden=None, causal=False, window=None, added=None, keep=None, rate=0, **options):
    """attnspec behind other conventions: bottom right, windows that count the query, hidden pairs, what is kept."""
    mask = attnspec.causal(align="end") if causal else None
    if window is not None:
        sides = (None if side == UNBOUNDED else side - 1 for side in window)
        mask = attnspec.window(*sides, align="end")
    if hidden is not None:
        mask = ~hidden
    if added is not None:
        options["bias"] = added
    out, lse = attnspec.attention_with_lse(q, k, v, mask=mask, **options)
    if keep is not None and rate:
        weights = attnspec.attention_weights(q, k, mask=mask, **options).astype(np.float64)
        shared = np.repeat(v.astype(np.float64), q.shape[-3] // k.shape[-3], axis=-3)
        out = (np.where(keep, weights / (1 - min(rate, 0.99)), 0.0) @ shared).astype(q.dtype)
    return out, lse


def heads_last(q, k, v, **options):
    """(B, S, H, D), lse (B, S, H) to base 2."""
    out, lse = kernel(*(np.moveaxis(x, -2, -3) for x in (q, k, v)), **options)
    with np.errstate(over="ignore"):
        return np.moveaxis(out, -3, -2), np.moveaxis(lse, -1, -2) / lse.dtype.type(math.log(2))


def packed(q, k, v, *, starts, ends, **options):
    """(B * S, H, D), lse (H, B * Q), each sequence on its own."""
    if k.shape[0] != v.shape[0] or len(starts) != len(ends):
        raise ValueError("k and v have different lengths")
    outs, lses = [np.zeros((0, q.shape[1], v.shape[2]), q.dtype)], [np.zeros((q.shape[1], 0), np.float32)]
    for b in range(len(starts) - 1):
        rows, keys = slice(starts[b], starts[b + 1]), slice(ends[b], ends[b + 1])
        out, lse = kernel(*(np.moveaxis(x, 0, 1) for x in (q[rows], k[keys], v[keys])), **options)
        outs.append(np.moveaxis(out, 0, 1))
        lses.append(lse)
    return np.concatenate(outs), np.concatenate(lses, axis=1)


HEADS_LAST = Adapter(
    name="heads last",
    kernel=heads_last,
    capabilities=("float64",),
    layout="BSHD",
    grouped=True,
    mask=Pairs("hidden", means="hidden"),
    causal=Flag("causal", align="end"),
    window=Sides("window", align="end", counts_itself=True, unbounded=UNBOUNDED),
    lse="2",
    lse_heads_first=False,
    arguments=NAMES,
    refusals=(AttnspecError,),
)


def test_conventions_are_translated_both_ways():
    """A faultless kernel behind every convention at once fails nothing; what it has no words for is not passed."""
    report = judge_all(Adapted(HEADS_LAST), cases=20)
    assert not failed(report)
    unsupported = {clause for clause, tally in report.by_clause().items() if not tally.passed}
    assert unsupported == {"SOFTMAX-4", "SCORE-2", "PATH-2", "MASK-6c", *SHARD}
    assert set(report.required) & unsupported == {"SOFTMAX-4"}


def by_heads(along, n):
    """The kernel on one worker's heads after the other's."""

    def kernel(q, k, v, **options):
        parts = [
            heads_last(*part, **options) for part in zip(*(np.split(x, n, axis=-2) for x in (q, k, v)), strict=True)
        ]
        outs, lses = zip(*parts, strict=True)
        return np.concatenate(outs, axis=-2), np.concatenate(lses, axis=-1)

    return kernel if along == "heads" else None


def with_the_first_heads_alone(along, n):
    def kernel(*arrays, **options):
        out, lse = heads_last(*arrays, **options)
        return np.where(np.arange(out.shape[-2])[:, None] * n < out.shape[-2], out, 0), lse

    return kernel if along == "heads" else None


@pytest.mark.parametrize(("shards", "expected"), [(by_heads, set()), (with_the_first_heads_alone, {"SHARD-1"})])
def test_shards_are_judged_where_an_adapter_divides(shards, expected):
    """What it does not divide is not asked, nor what has a mask of pairs, which is that of all heads."""
    adapter = replace(HEADS_LAST, shards=shards, capabilities=("float64", "shards"), mask=None, arguments={})
    report = judge_all(Adapted(adapter), [LAWS["heads_among_workers_have_their_undivided_answer"]])
    assert failed(report) == expected
    assert expected or report.by_clause()["SHARD-1"].passed


def weights_of(q, k, v, *, hidden=None, keep=None, rate=0, **options):
    q, k = (np.moveaxis(x, -2, -3) for x in (q, k))
    return attnspec.attention_weights(q, k, mask=None if hidden is None else ~hidden, **options)


def averaged(*arrays, **named):
    weights = weights_of(*arrays, **named)
    return np.broadcast_to(weights.mean(-3, keepdims=True), weights.shape)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (weights_of, set()),
        (averaged, {"SOFTMAX-4"}),
    ],
    ids=["per head", "averaged over heads"],
)
def test_weights_are_judged_where_an_adapter_gives_them(weights, expected):
    adapter = replace(HEADS_LAST, causal=None, window=None, weights=weights)
    report = judge_all(Adapted(adapter), LAWS.values(), clauses=["SOFTMAX-4"])
    assert failed(report) == expected
    assert report.by_clause()["SOFTMAX-4"].passed or expected


@pytest.mark.parametrize(
    ("claim", "clause"),
    [
        ({"mask": Pairs("hidden", means="attends")}, "MASK-1"),
        ({"causal": Flag("causal", align="start")}, "MASK-4"),
        ({"window": Sides("window", counts_itself=False, unbounded=UNBOUNDED)}, "MASK-4"),
        ({"lse": "e"}, "SOFTMAX-3"),
        ({"grouped": False, "layout": "BHSD", "lse_heads_first": True}, "SHAPE-2"),
    ],
    ids=["polarity", "alignment", "window", "base", "layout"],
)
def test_a_wrong_claim_about_a_convention_is_failed_by_its_clause(claim, clause):
    adapter = replace(HEADS_LAST, **claim)
    assert clause in failed(judge_all(Adapted(adapter), LAWS.values(), clauses=[clause]))


def test_masks_of_pairs_mean_what_the_rules_mean():
    """The two readings of a rule, one pair at a time and all at once, for every mask that the laws ask about."""
    compared = 0
    for call in {id(call): call for law in LAWS.values() for trial in law.all_trials for call in trial.calls}.values():
        if call.mask is None or call.bias is not None or isinstance(call.mask, masks.Dense):
            continue
        visible = oracle.attention(call).visible
        array = masks.pairs(call.mask, visible.shape, call.q_positions, call.k_positions)
        np.testing.assert_array_equal(np.broadcast_to(array, visible.shape), visible)
        compared += 1
    assert compared > 50


def test_a_float_mask_and_a_bias_share_one_argument():
    adapter = Adapter("added", lambda *x, **named: kernel(*x, **named)[0], mask=Pairs("added", means="added"))
    report = judge_all(Adapted(adapter), LAWS.values(), clauses=["SCORE-5", "MASK-3"])
    assert not failed(report)
    assert all(report.by_clause()[clause].passed for clause in ("SCORE-5", "MASK-3"))


def test_packed_sequences_end_where_padding_begins():
    adapter = Adapter("packed", packed, layout="packed", packed=("starts", "ends"), lse="e", grouped=True)
    report = judge_all(Adapted(adapter), LAWS.values(), clauses=["MASK-5", "SHAPE-2", "SCORE-3"])
    assert not failed(report)
    judged = {entry.law for entry in report.entries if entry.outcome == "passed"}
    assert "fm_04_a_sequence_of_length_zero_is_an_empty_row" in judged


def test_what_cannot_be_expressed_is_unsupported_with_the_reason():
    adapter = Adapter("bare", lambda q, k, v: kernel(q, k, v)[0])
    report = judge_all(Adapted(adapter), LAWS.values())
    tallies = report.by_clause()
    assert tallies["SOFTMAX-2"].outcome == "unsupported"
    assert "it takes no sink" in tallies["SOFTMAX-2"].reasons
    assert tallies["SOFTMAX-3"].outcome == "unsupported"
    assert tallies["SHAPE-1"].passed
    assert not failed(report)
    assert not report.conforms()


def test_a_kernel_with_randomness_of_its_own_is_asked_for_the_rates_at_which_nothing_is_random():
    def dropping(q, k, v, *, rate=0.0):
        return kernel(q, k, v)[0] * (0 if rate == 1 else 1 / (1 - rate))

    honest = Adapter("own randomness", dropping, arguments={"rate": "rate"})
    broken = replace(honest, kernel=lambda *x, rate=0.0: kernel(*x)[0] * np.nan_to_num(1 / (1 - np.float64(rate))))
    with np.errstate(divide="ignore"):
        right, wrong = (judge_all(Adapted(x), LAWS.values(), clauses=["DROPOUT-1"]) for x in (honest, broken))
    assert failed(right) == set()
    assert right.by_clause()["DROPOUT-1"].passed >= 2
    assert failed(wrong) == {"DROPOUT-1"}


def test_a_kernel_that_gives_none_in_the_place_of_lse_fails_and_the_message_says_so():
    adapter = Adapter("half an answer", lambda q, k, v: (kernel(q, k, v)[0], None), lse="e")
    report = judge_all(Adapted(adapter), LAWS.values(), clauses=["SOFTMAX-3"])
    assert failed(report) == {"SOFTMAX-3"}
    assert any("half an answer gave None for lse" in entry.message for entry in report.entries)
