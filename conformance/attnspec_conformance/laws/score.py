"""SCORE: what a score is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .. import masks
from ..judges import is_exactly, same_bits, within_bound
from ..problems import (
    constant,
    exact_logits,
    normal,
    problem,
    rounded,
    small_integers,
    some_mask,
    uniform_values,
)
from ..trials import Call, Trial, law


@law("SCORE-1")
def the_default_scale_is_of_the_head_width() -> Iterator[Trial]:
    call = exact_logits(want="lse")
    yield Trial((call,), within_bound(call))
    rough = problem(1)
    yield Trial((rough,), within_bound(rough))


@law("SCORE-1")
def every_finite_scale_is_legal() -> Iterator[Trial]:
    for scale in (0.0, -0.5, 3, 2.0**-20):
        call = exact_logits(scale=scale, want="lse")
        yield Trial((call,), within_bound(call))


@law("SCORE-1")
def exact_scores_leave_room_for_no_other_scale() -> Iterator[Trial]:
    call = Call(
        q=8 * small_integers(0, 2, 6, 5, 4, high=3),
        k=8 * small_integers(1, 2, 6, 7, 4, high=3),
        v=normal(2, 2, 6, 7, 3),
        want="lse",
    )
    yield Trial((call,), within_bound(call))


def _no_overflow(dtype: str) -> Iterator[Trial]:
    call = Call(
        q=constant(256, 1, 64),
        k=np.stack([constant(256, 64), constant(128, 64)]),
        v=np.array([[1.0], [5.0]], np.float32),
        dtype=dtype,
    )
    yield Trial((call,), is_exactly(out=np.array([[1.0]])))


@law("SCORE-2", needs=("float16",))
def float16_products_do_not_overflow() -> Iterator[Trial]:
    yield from _no_overflow("float16")


@law("SCORE-2", needs=("bfloat16",))
def bfloat16_products_do_not_overflow() -> Iterator[Trial]:
    yield from _no_overflow("bfloat16")


def _large(dtype: str) -> Iterator[Trial]:
    call = problem(5, D=64, K=5, size=64.0, dtype=dtype, scale=2.0**-14, want="lse")
    yield Trial((call,), within_bound(call))


@law("SCORE-2", needs=("float16",))
def large_float16_products_are_accurate() -> Iterator[Trial]:
    yield from _large("float16")


@law("SCORE-2", needs=("bfloat16",))
def large_bfloat16_products_are_accurate() -> Iterator[Trial]:
    yield from _large("bfloat16")


@law("SCORE-3", jitted=True)
def query_heads_share_keys_in_blocks() -> Iterator[Trial]:
    for G in (1, 2, 3):
        call = problem(H=6, G=G, want="lse")
        yield Trial((call,), within_bound(call))


@law("SCORE-3")
def grouped_heads_keep_their_masks_biases_and_sinks_apart() -> Iterator[Trial]:
    call = problem(H=6, G=2, mask=some_mask(1, 2, 6, 5, 7), bias=normal(3, 6, 5, 7), sink=normal(4, 6), want="lse")
    yield Trial((call,), within_bound(call))
    weights = call.but(want="weights")
    yield Trial((weights,), within_bound(weights))


@law("SCORE-4")
def softcap_comes_after_scale_and_before_bias_and_mask() -> Iterator[Trial]:
    for cap in (0.5, 30):
        call = problem(size=2.0, softcap=cap, bias=normal(3, 5, 7, size=2.0), mask=some_mask(4, 5, 7))
        for want in ("lse", "weights"):
            asked = call.but(want=want, scale=0.7)
            yield Trial((asked,), within_bound(asked))


@law("SCORE-4", jitted=True)
def everything_at_once_happens_in_order() -> Iterator[Trial]:
    call = problem(
        H=6,
        G=3,
        size=2.0,
        scale=0.8,
        softcap=1.5,
        bias=normal(3, 2, 1, 5, 7),
        mask=masks.Both(masks.Causal(2), masks.Padding(np.array([6, 3], np.int32))),
        sink=normal(4, 6),
        want="lse",
    )
    yield Trial((call,), within_bound(call))
    dropped = call.but(dropout=masks.Dropout(0.25, 11))
    yield Trial((dropped,), within_bound(dropped))


@law("SCORE-5")
def a_bias_is_added_and_broadcasts_from_the_right() -> Iterator[Trial]:
    for shape in ((7,), (5, 1), (5, 7), (6, 1, 7), (2, 1, 1, 7), (2, 6, 5, 7), (), (1, 1, 1, 1)):
        call = problem(bias=normal(3, *shape), want="lse")
        yield Trial((call,), within_bound(call))


@law("SCORE-5", needs=("float64",))
def a_wider_bias_does_not_widen_the_output() -> Iterator[Trial]:
    call = problem(bias=rounded(normal(3, 5, 7, dtype="float64"), "float64"), bias_dtype="float64", want="lse")
    yield Trial((call,), within_bound(call))


@law("SCORE-5", needs=("float16",))
def a_float32_bias_does_not_widen_float16() -> Iterator[Trial]:
    call = problem(dtype="float16", bias=normal(3, 5, 7), bias_dtype="float32", want="lse")
    yield Trial((call,), within_bound(call))


@law("SCORE-5", "MASK-3")
def minus_infinity_in_a_bias_is_a_mask_to_the_bit() -> Iterator[Trial]:
    seen = some_mask(5, 2, 1, 5, 7).array
    call = problem(want="lse")
    bias = np.where(seen, np.float32(0), np.float32(-np.inf))
    yield Trial((call.but(bias=bias), call.but(mask=masks.Dense(seen), bias=np.zeros_like(bias))), same_bits())


@law("SCORE-5")
def the_most_negative_number_is_only_a_number() -> Iterator[Trial]:
    lowest = float(np.finfo(np.float32).min)
    everywhere = uniform_values([1, 2, 4, 9], Q=2, bias=constant(lowest, 2, 4))
    yield Trial((everywhere,), is_exactly(out=constant(4.0, 2, 1)))
    for bias in (-1e4, -16384.0, -3e4):
        low = exact_logits(bias=constant(bias, 1, 1), want="lse")
        yield Trial((low,), within_bound(low))
