"""PATH: what should not matter does not."""

from __future__ import annotations

from collections.abc import Iterator

from .. import masks
from ..judges import same_bits, within_bound
from ..problems import beyond_a_tile, constant, normal, problem, some_mask
from ..trials import Call, Trial, law


def _calls() -> Iterator[Call]:
    yield problem()
    yield problem(mask=some_mask(2, 2, 6, 5, 7), bias=normal(3, 5, 7), sink=normal(4, 6))
    yield beyond_a_tile(mask=masks.Causal(3))
    yield problem(dropout=masks.Dropout(0.25, 3))


@law("PATH-1", "SOFTMAX-3")
def asking_for_lse_changes_no_bit_of_the_output() -> Iterator[Trial]:
    for call in _calls():
        yield Trial((call, call.but(want="lse")), same_bits("out"))


@law("PATH-1")
def the_answer_is_right_whichever_implementation_is_asked_for() -> Iterator[Trial]:
    for implementation in ("auto", "portable"):
        call = problem(mask=masks.Causal(1), want="lse", implementation=implementation)
        yield Trial((call,), within_bound(call))


@law("PATH-1")
def tiles_do_not_matter() -> Iterator[Trial]:
    banded = beyond_a_tile(mask=masks.Window(30, 9, align="end"), want="lse")
    yield Trial((banded,), within_bound(banded))
    dense = beyond_a_tile(mask=some_mask(3, 513, 525, share=0.05), sink=normal(4, 1), want="weights")
    yield Trial((dense,), within_bound(dense))
    dense = dense.but(want="lse")
    yield Trial((dense,), within_bound(dense))


@law("PATH-1")
def every_key_counts_among_a_thousand() -> Iterator[Trial]:
    """Equal scores: a lost key is 1e-3 of lse and of the mean of ones and minus ones; a third of that is allowed."""
    keys = 1001
    v = constant(1, keys, 1)
    v[::2] = -1
    call = Call(q=constant(0, 1, 2), k=constant(0, keys, 2), v=v)
    for want in ("lse", "weights"):
        asked = call.but(want=want)
        yield Trial((asked,), within_bound(asked))


@law("PATH-1")
def a_batch_is_its_parts() -> Iterator[Trial]:
    call = problem(3, mask=some_mask(1, 2, 1, 5, 7), want="lse")
    assert isinstance(call.mask, masks.Dense)
    for b in range(2):
        part = call.but(q=call.q[b], k=call.k[b], v=call.v[b], mask=masks.Dense(call.mask.array[b]))
        yield Trial((part,), within_bound(part))
    yield Trial((call,), within_bound(call))


def _declared_rounding(dtype: str) -> Iterator[Trial]:
    """The bound has the unit of a rounding of the weights only where the subject says that it rounds them."""
    call = problem(8, K=130, D=8, dtype=dtype, size=0.1, want="lse")
    yield Trial((call,), within_bound(call))


@law("PATH-2", needs=("bfloat16",))
def bfloat16_weights_are_rounded_only_where_declared() -> Iterator[Trial]:
    yield from _declared_rounding("bfloat16")


@law("PATH-2", needs=("float16",))
def float16_weights_are_rounded_only_where_declared() -> Iterator[Trial]:
    yield from _declared_rounding("float16")
