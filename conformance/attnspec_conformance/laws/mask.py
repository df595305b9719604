"""MASK: who may attend to whom, and that nothing else can be observed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import masks
from ..judges import both, is_exactly, refused, same_bits, within_bound
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
    yield problem(K=0, want="lse")
    late = masks.Both(masks.Causal(), masks.Inverse(masks.Padding(np.array([2, 4], INT))))
    yield heads(mask=late)


@law("MASK-5")
def a_query_without_keys_has_zero_output_and_infinite_lse() -> Iterator[Trial]:
    for n, call in enumerate(_empty_rows()):
        yield Trial((call,), within_bound(call))
        if n % 2:
            yield Trial((call.but(want="weights"),), within_bound(call.but(want="weights")))


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


def _garbage(call: Call, hidden: Array, *values: float) -> Iterator[Call]:
    """The call with keys, values and biases that nobody sees replaced."""
    for value in values:
        k, v = call.k.copy(), call.v.copy()
        k[..., hidden, :] = value
        v[..., hidden, :] = value
        yield call.but(k=k, v=v)


FINITE = (0.0, -1.0, 1e30, float(np.finfo(np.float32).max), -float(np.finfo(np.float32).max), 1e-40)
OTHER = (np.nan, np.inf, -np.inf)
HIDDEN = np.array([1, 4, 6])


def _hiding(hidden: Array, K: int) -> masks.Dense:
    seen: Array = np.ones(K, bool)
    seen[hidden] = False
    return masks.Dense(seen)


def _masked_everywhere(*values: float) -> Iterator[Trial]:
    for call, hidden in (
        (problem(3), HIDDEN),
        (problem(3, H=6, G=2), HIDDEN),
        (beyond_a_tile(), np.array([0, 3, 511, 512, 524])),
    ):
        masked = call.but(mask=_hiding(hidden, call.k.shape[-2]))
        for want in ("lse", "weights"):
            asked = masked.but(want=want)
            yield Trial((asked, *_garbage(asked, hidden, *values)), same_bits())


def _masked_for_some(*values: float) -> Iterator[Trial]:
    """A key that some queries see: the rows of the others must not change, whatever that key holds."""
    seen: Array = np.ones((5, 7), bool)
    seen[:3, [2, 5]] = False
    call = problem(4, mask=masks.Dense(seen), bias=np.zeros((5, 7), np.float32), want="lse")
    for value in values:
        (changed,) = _garbage(call, np.array([2, 5]), value)
        yield Trial((call, changed), same_bits("out", "lse", rows=3))
        in_bias = call.but(bias=np.where(seen, np.float32(0), np.float32(value)))
        yield Trial((call, in_bias), same_bits())
        weights = call.but(want="weights")
        yield Trial((weights, changed.but(want="weights")), same_bits("weights", rows=3))


def _last_of_many(*values: float) -> Iterator[Trial]:
    """The last of so many keys that a shortcut pays, which the last queries alone may see, and no other tells."""
    for lead, H in (((), 1), ((2,), 6)):
        for K in (96, 130):
            for mask, rows in ((masks.Causal(), K - 1), (masks.Window(40, 3), K - 4)):
                for size in (0.3, 1.0):
                    call = problem(7, lead=lead, H=H, Q=K, K=K, size=size, mask=mask, want="lse")
                    changed = _garbage(call, np.array([K - 1]), *values)
                    yield Trial((call, *changed), same_bits("out", "lse", rows=rows))


@law("MASK-6a", jitted=True)
def what_the_last_of_many_keys_holds_does_not_choose_the_arithmetic_of_others() -> Iterator[Trial]:
    yield from _last_of_many(1e4, 1e30)


@law("MASK-6b")
def a_nan_in_the_last_of_many_keys_does_not_choose_the_arithmetic_of_others() -> Iterator[Trial]:
    yield from _last_of_many(np.nan)


@law("MASK-6a")
def masked_keys_cannot_be_observed() -> Iterator[Trial]:
    yield from _masked_everywhere(*FINITE)


@law("MASK-6a", jitted=True)
def keys_hidden_from_some_queries_cannot_be_observed_by_them() -> Iterator[Trial]:
    yield from _masked_for_some(float(np.finfo(np.float32).max))


@law("MASK-6a")
def no_finite_number_is_observed_by_queries_that_may_not_see_it() -> Iterator[Trial]:
    yield from _masked_for_some(*FINITE)


@law("MASK-6a")
def every_kind_of_mask_hides() -> Iterator[Trial]:
    largest = float(np.finfo(np.float32).max)
    for mask, rows in (
        (masks.Causal(), 5),
        (masks.Window(1, 1), 5),
        (masks.Padding(np.array([5, 5], INT)), 5),
        (masks.Segments(np.zeros((2, 5), INT), np.array([[0, 0, 0, 0, 0, 1, 2]] * 2, INT)), 5),
    ):
        call = problem(5, mask=mask, want="lse")
        (changed,) = _garbage(call, np.array([6]), largest)
        yield Trial((call, changed), same_bits("out", "lse", rows=rows))


@law("MASK-6a")
def a_finite_fill_cannot_stand_in_for_a_mask() -> Iterator[Trial]:
    """A fill of -1e4 wins where visible scores are near -16384, the lowest number where they are as low."""
    q, k = constant(64, 2, 4), constant(-64, 5, 4)
    k[3] = 64
    call = Call(q=q, k=k, v=normal(1, 5, 3), scale=1.0, mask=_hiding(np.array([3]), 5), want="lse")
    yield Trial((call,), within_bound(call))
    lowest = constant(float(np.finfo(np.float32).min), 2, 3)
    low = uniform_values([1, 3, 8], Q=2, bias=lowest, mask=_hiding(np.array([2]), 3))
    yield Trial((low,), is_exactly(out=constant(2, 2, 1)))


@law("MASK-6b")
def masked_nan_and_infinity_cannot_be_observed() -> Iterator[Trial]:
    yield from _masked_everywhere(*OTHER)


@law("MASK-6b")
def nan_hidden_from_some_queries_cannot_be_observed_by_them() -> Iterator[Trial]:
    yield from _masked_for_some(*OTHER)


@law("MASK-6b")
def unwritten_slots_behind_the_length_are_never_read() -> Iterator[Trial]:
    call = problem(6, mask=masks.Padding(np.array([3, 3], INT)), want="lse")
    short = call.but(k=call.k[..., :3, :], v=call.v[..., :3, :], mask=None)
    for poisoned in _garbage(call, np.arange(3, 7), *OTHER):
        yield Trial((call, poisoned), both(same_bits(), lambda results: within_bound(short)(results[1:])))


@law("MASK-7", jitted=True)
def a_visible_nan_reaches_exactly_the_rows_that_see_it() -> Iterator[Trial]:
    for call in _visible(np.nan):
        yield Trial((call,), within_bound(call))


@law("MASK-7")
def visible_infinity_becomes_nan_and_never_a_number() -> Iterator[Trial]:
    for value in (np.inf, -np.inf):
        for call in _visible(value):
            yield Trial((call,), within_bound(call))


def _visible(value: float) -> Iterator[Call]:
    """Something non-finite in one query, key or value, seen by some rows of a causal call."""
    call = heads(mask=masks.Causal())
    for name, row in (("q", 1), ("k", 3), ("v", 2)):
        x = getattr(call, name).copy()
        x[1, 2, row, 0] = value
        yield call.but(**{name: x})
        yield call.but(**{name: x}, want="weights") if name != "v" else call.but(v=x, sink=normal(3, 6))
