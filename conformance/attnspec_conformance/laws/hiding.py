"""MASK-6 and MASK-7: what a query may not see cannot be observed, what it sees is never hidden."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .. import masks
from ..judges import both, is_exactly, same_bits, within_bound
from ..masks import Array
from ..problems import beyond_a_tile, constant, normal, problem, uniform_values
from ..trials import Call, Trial, law
from .mask import heads

INT = np.int32


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
    # Kernels that choose their way by the widths are to be asked on both.
    q = call.q.copy()
    q[1, 2, 1, 0] = value
    yield call.but(q=q, v=call.k)
