"""MASK-1 to MASK-5: who may attend to whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import masks
from ..judges import is_exactly, refused, within_bound
from ..masks import Array
from ..problems import beyond_a_tile, constant, exact_logits, normal, problem, some_mask, uniform_values
from ..trials import Call, Trial, law

INT = np.int32


@law("MASK-1")
def true_means_may_attend() -> Iterator[Trial]:
    call = uniform_values([1, 2, 4, 8], Q=3, mask=masks.Dense(np.array([True, False, True, False])))
    yield Trial((call,), is_exactly(out=constant(2.5, 3, 1)))
    one = exact_logits(mask=some_mask(3, 5, 7, share=0.3), want="lse")
    yield Trial((one,), within_bound(one))


@law("MASK-2", jitted=True)
def a_mask_broadcasts_from_the_right() -> Iterator[Trial]:
    for shape in ((2, 6, 5, 7), (2, 1, 1, 7)):
        call = heads(mask=some_mask(1, *shape))
        yield Trial((call,), within_bound(call))


@law("MASK-2")
def a_mask_may_lack_or_have_single_axes() -> Iterator[Trial]:
    for shape in ((), (7,), (1,), (5, 7), (5, 1), (6, 1, 1), (6, 5, 7), (2, 6, 1, 7), (2, 1, 5, 1)):
        call = heads(mask=some_mask(2, *shape))
        yield Trial((call,), within_bound(call))


@law("MASK-2")
def rank_three_is_heads_queries_keys_where_batch_equals_heads() -> Iterator[Trial]:
    call = problem(lead=(3,), H=3, want="lse", mask=some_mask(3, 3, 5, 7))
    yield Trial((call,), within_bound(call))
    square = problem(lead=(3,), H=3, Q=3, K=3, want="lse", mask=some_mask(4, 3, 3, 3))
    yield Trial((square,), within_bound(square))


@law("MASK-2")
def a_mask_that_does_not_fit_is_refused_with_its_shape() -> Iterator[Trial]:
    for shape in ((6,), (5, 6), (4, 7), (2, 5, 7), (3, 6, 5, 7), (2, 2, 6, 5, 7)):
        call = problem(mask=some_mask(1, *shape))
        yield Trial((call,), refused(str(shape)[1:-1].rstrip(",")))


def heads(**options: Any) -> Call:
    """B = 2, H = 6, Q = 5, K = 7."""
    return problem(want="lse", **options)


RULES: dict[str, masks.Mask] = {
    "causal": masks.Causal(1),
    "window": masks.Window(2, 1),
    "padding": masks.Padding(np.array([6, 3], INT)),
    "segments": masks.Segments(
        np.array([[0, 0, 1, 1, 2], [0, 1, 1, 2, 2]], INT),
        np.array([[0, 0, 0, 1, 1, 1, 2], [0, 1, 1, 2, 2, 3, 3]], INT),
    ),
    "array": some_mask(9, 2, 6, 5, 7),
}


@law("MASK-3")
def any_two_masks_compose() -> Iterator[Trial]:
    names = list(RULES)
    for n, name in enumerate(names):
        one, other = RULES[name], RULES[names[(n + 1) % len(names)]]
        for mask in (masks.Both(one, other), masks.Either(one, masks.Inverse(other))):
            call = heads(mask=mask)
            yield Trial((call,), within_bound(call))


@law("MASK-3")
def causal_composes_with_masks_and_biases_of_single_axes() -> Iterator[Trial]:
    """Padding beside causal: what may lack the axis of queries says nothing about which of them is meant."""
    real: Array = np.ones((2, 1, 1, 7), bool)
    real[0, ..., 2], real[1, ..., 4:] = False, False
    for array in (real, real[1, 0, 0]):
        masked = heads(mask=masks.Both(masks.Causal(), masks.Dense(array)))
        biased = heads(mask=masks.Causal(), bias=normal(7, *array.shape))
        for call in (masked, biased):
            yield Trial((call,), within_bound(call))


@law("MASK-3")
def nothing_is_ignored_because_something_else_was_given() -> Iterator[Trial]:
    everything = masks.Both(masks.Both(RULES["causal"], RULES["padding"]), RULES["array"])
    bias = normal(5, 6, 5, 7)
    bias[1, 2, 3] = -np.inf
    call = heads(mask=everything, bias=bias, sink=normal(6, 6), softcap=2.0)
    yield Trial((call,), within_bound(call))
    for part in ({"mask": None}, {"bias": None}, {"sink": None}, {"softcap": None}):
        less = call.but(**part)
        yield Trial((less,), within_bound(less))


@law("MASK-4", jitted=True)
def causal_counts_from_the_first_key_unless_told_otherwise() -> Iterator[Trial]:
    for mask in (masks.Causal(), masks.Causal(align="end"), masks.Causal(np.array([2, -1], INT))):
        call = problem(mask=mask, want="lse")
        yield Trial((call,), within_bound(call))


@law("MASK-4")
def causal_sees_one_more_key_with_each_query() -> Iterator[Trial]:
    corners = (masks.Causal(), masks.Causal(align="end"), masks.Causal(1, align="end"))
    offsets = tuple(map(masks.Causal, (2, -3, -100, 100)))
    for Q, K, rules in ((5, 7, corners + offsets), (7, 5, corners)):
        for mask in rules:
            call = exact_logits(Q=Q, K=K, mask=mask, want="lse")
            yield Trial((call,), within_bound(call))


@law("MASK-4")
def a_window_is_inclusive_on_both_sides() -> Iterator[Trial]:
    sides = ((1, 0), (0, 0), (2, 1), (None, 0), (0, None), (None, None), (3, None))
    moved: tuple[tuple[int, masks.Align], ...] = ((2, "start"), (0, "end"), (-1, "end"))
    for n, (left, right) in enumerate(sides):
        for mask in (masks.Window(left, right), masks.Window(left, right, *moved[n % 3])):
            call = exact_logits(mask=mask, want="lse")
            yield Trial((call,), within_bound(call))
    batched = heads(mask=masks.Window(1, 1, np.array([0, 3], INT)))
    yield Trial((batched,), within_bound(batched))


@law("MASK-4")
def positions_move_the_rules_with_the_rows() -> Iterator[Trial]:
    q_positions, k_positions = np.array([9, 3, 4, 8, 0], INT), np.array([0, 8, 2, 3, 9, 5, 1], INT)
    moved = {"q_positions": q_positions, "k_positions": k_positions}
    for mask in (masks.Causal(), masks.Window(2, 1), masks.Both(masks.Causal(1), masks.Padding(INT(6)))):
        call = exact_logits(mask=mask, want="lse", **moved)
        yield Trial((call,), within_bound(call))
    alone = call.but(want="out"), call.but(want="weights")
    yield Trial(alone, within_bound(*alone))


@law("MASK-4", jitted=True)
def every_item_of_a_batch_may_have_positions_of_its_own() -> Iterator[Trial]:
    q_positions = np.array([[9, 3, 4, 8, 0], [1, 2, 3, 4, 5]], INT)
    k_positions = np.array([[0, 8, 2, 3, 9, 5, 1], [7, 6, 5, 4, 3, 2, 1]], INT)
    for mask in (masks.Causal(), masks.Window(2, 1)):
        call = exact_logits(mask=mask, q_positions=q_positions, k_positions=k_positions, want="lse")
        yield Trial((call,), within_bound(call))


@law("MASK-4", "PATH-1")
def a_range_of_positions_means_what_an_array_of_them_means() -> Iterator[Trial]:
    for mask in (masks.Causal(), masks.Window(2, 1)):
        call = exact_logits(mask=mask, q_positions=range(6, 11), k_positions=range(3, 10), want="lse")
        arrays = call.but(q_positions=np.arange(6, 11, dtype=INT), k_positions=np.arange(3, 10, dtype=INT))
        yield Trial((call, arrays), within_bound(call, arrays))
    far = beyond_a_tile(mask=masks.Window(9, 9), q_positions=range(40, 553), k_positions=range(20, 545), want="lse")
    yield Trial((far,), within_bound(far))


def _empty_rows() -> Iterator[Call]:
    hidden: Array = np.full((5, 7), 0, np.float32)
    hidden[[1, 3]] = -np.inf
    rows: Array = np.ones((5, 7), bool)
    rows[[0, 4]] = False
    yield heads(mask=masks.Dense(rows))
    yield heads(mask=masks.Dense(np.zeros((1,), bool)))
    yield heads(bias=hidden)
    yield heads(bias=hidden, mask=masks.Dense(rows))
    yield heads(mask=masks.Padding(np.array([0, 4], INT)))
    yield heads(mask=masks.Causal(-3))
    yield heads(mask=masks.Window(0, 0, 5))
    late = masks.Both(masks.Causal(), masks.Inverse(masks.Padding(np.array([2, 4], INT))))
    yield heads(mask=late)


@law("MASK-5")
def a_query_without_keys_has_zero_output_and_infinite_lse() -> Iterator[Trial]:
    for n, call in enumerate(_empty_rows()):
        yield Trial((call,), within_bound(call))
        if n % 2:
            yield Trial((call.but(want="weights"),), within_bound(call.but(want="weights")))


@law("MASK-5")
def no_keys_at_all_are_an_empty_row() -> Iterator[Trial]:
    call = problem(K=0, want="lse")
    yield Trial((call,), within_bound(call))


@law("MASK-5", jitted=True)
def empty_rows_of_any_route_are_zero_beside_full_ones() -> Iterator[Trial]:
    call = heads(mask=masks.Both(masks.Causal(-1), masks.Padding(np.array([0, 4], INT))))
    yield Trial((call,), within_bound(call))


@law("MASK-5")
def an_empty_row_does_not_look_at_its_query() -> Iterator[Trial]:
    call = heads(mask=masks.Causal(-2))
    q = call.q.copy()
    q[..., :2, :] = np.nan
    yield Trial((call.but(q=q),), within_bound(call.but(q=q)))
