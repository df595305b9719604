"""SOFTMAX: the normalisation, its logarithm, the sink. (Merging parts is tested in `test_softmax`.)"""

from __future__ import annotations

from collections.abc import Iterator
from math import log

import numpy as np

from .. import masks
from ..judges import is_exactly, is_value, within_bound
from ..problems import constant, exact_logits, normal, problem, some_mask, uniform_values
from ..trials import Call, Trial, law


@law("SOFTMAX-1")
def large_scores_do_not_overflow() -> Iterator[Trial]:
    for size in (100.0, 1e4):
        call = exact_logits(scale=size, want="lse")
        yield Trial((call,), within_bound(call))


@law("SOFTMAX-1")
def a_constant_added_to_every_score_changes_nothing_but_lse() -> Iterator[Trial]:
    for shift in (-3e38, -(2.0**20), 2.0**20, 3e38):
        call = uniform_values([1, 2, 4, 9], Q=3, bias=constant(shift, 3, 1))
        yield Trial((call,), is_exactly(out=constant(4, 3, 1)))


@law("SOFTMAX-1")
def equal_scores_give_uniform_weights() -> Iterator[Trial]:
    call = uniform_values([1, 2, 4, 9], Q=3, want="weights")
    yield Trial((call,), is_exactly(weights=constant(0.25, 3, 4)))
    many = problem(K=300, want="weights", scale=0.0)
    yield Trial((many,), within_bound(many))


@law("SOFTMAX-1")
def an_infinite_score_gives_nan() -> Iterator[Trial]:
    bias = constant(0, 5, 7)
    bias[2, 3] = np.inf
    call = problem(bias=bias, want="lse")
    yield Trial((call,), within_bound(call))


@law("SOFTMAX-2")
def a_sink_takes_part_in_the_denominator_only() -> Iterator[Trial]:
    call = problem(sink=normal(3, 6, size=2.0), want="lse")
    yield Trial((call,), within_bound(call))


@law("SOFTMAX-2")
def a_sink_takes_part_in_the_maximum() -> Iterator[Trial]:
    for sink in (-200.0, -10.0, 0.0, 10.0, 200.0, 1e30):
        call = exact_logits(sink=constant(sink, 6))
        for want in ("lse", "weights"):
            asked = call.but(want=want)
            yield Trial((asked,), within_bound(asked))


@law("SOFTMAX-2")
def an_empty_row_with_a_sink_is_zero_with_lse_of_the_sink() -> Iterator[Trial]:
    sink = normal(3, 6)
    nobody = masks.Dense(np.zeros((5, 7), bool))
    for call in (problem(sink=sink, want="lse", mask=nobody), problem(sink=sink, want="lse", K=0)):
        wanted = np.broadcast_to(sink[:, None], (2, 6, 5))
        yield Trial((call,), is_exactly(out=np.zeros((2, 6, 5, 3)), lse=wanted))


@law("SOFTMAX-3")
def lse_is_the_natural_logarithm_before_dropout() -> Iterator[Trial]:
    call = exact_logits(want="lse", mask=some_mask(1, 5, 7), sink=constant(0.5, 6))
    yield Trial((call,), within_bound(call))
    dropped = call.but(dropout=masks.Dropout(0.25, 5))
    yield Trial((dropped,), within_bound(dropped))


@law("SCORE-1", "SOFTMAX-3", "SOFTMAX-4")
def one_quarter_and_three_quarters_by_hand() -> Iterator[Trial]:
    """Scores 0 and log 3: weights 1/4 and 3/4, so 3 out of values 0 and 4, and log 4 for the sum."""
    call = Call(constant(1, 1, 1), np.array([[0], [1]], np.float32), np.array([[0], [4]], np.float32), scale=log(3))
    asked, weights = call.but(want="lse"), call.but(want="weights")
    yield Trial((asked,), is_value(asked, out=constant(3, 1, 1), lse=np.array([log(4)])))
    yield Trial((weights,), is_value(weights, weights=np.array([[0.25, 0.75]])))


@law("SOFTMAX-3", needs=("bfloat16",))
def lse_of_half_inputs_is_float32() -> Iterator[Trial]:
    call = problem(dtype="bfloat16", K=300, want="lse")
    yield Trial((call,), within_bound(call))


@law("SOFTMAX-4", jitted=True)
def weights_are_per_head_and_sum_to_the_visible_share() -> Iterator[Trial]:
    call = problem(H=6, G=3, mask=some_mask(2, 2, 6, 5, 7), sink=normal(4, 6), want="weights")
    yield Trial((call,), within_bound(call))


@law("SOFTMAX-1")
def the_normaliser_does_not_saturate() -> Iterator[Trial]:
    for keys in (300,):
        call = Call(q=constant(0, 2, 16), k=constant(0, keys, 16), v=constant(1, keys, 1))
        yield Trial((call,), within_bound(call))


@law("SOFTMAX-1", needs=("bfloat16",))
def the_normaliser_does_not_saturate_in_bfloat16() -> Iterator[Trial]:
    call = Call(q=constant(0, 2, 16), k=constant(0, 300, 16), v=constant(1, 300, 1), dtype="bfloat16")
    yield Trial((call,), within_bound(call))
