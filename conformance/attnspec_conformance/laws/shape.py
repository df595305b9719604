"""SHAPE: what fits together, and what the arrays may be like."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .. import masks
from ..judges import both, is_exactly, refused, same_bits, untouched, within_bound
from ..problems import beyond_a_tile, constant, normal, problem, some_mask
from ..trials import Trial, law


@law("SHAPE-1")
def axes_that_do_not_fit_are_refused_with_their_sizes() -> Iterator[Trial]:
    call = problem(H=6, D=4, K=7, E=3)
    yield Trial((call.but(k=normal(1, 2, 6, 7, 8)),), refused("D=4", "D=8"))
    yield Trial((call.but(v=normal(1, 2, 6, 9, 3)),), refused("K=7", "K=9"))
    yield Trial((call.but(v=normal(1, 2, 6, 5, 3)),), refused("K=7", "K=5"))
    yield Trial((call.but(v=normal(1, 2, 2, 7, 3)),), refused("G=6", "G=2"))
    yield Trial((problem(H=6, G=4),), refused("H=6", "G=4"))
    yield Trial((problem(H=2, G=6),), refused("H=2", "G=6"))
    yield Trial((call.but(k=normal(1, 3, 6, 7, 4), v=normal(1, 3, 6, 7, 3)),), refused("(2,)", "(3,)"))


@law("SHAPE-2")
def every_axis_has_a_size_of_its_own() -> Iterator[Trial]:
    for call in (
        problem(),
        problem(lead=(2, 3), H=2, Q=1, D=1, E=9),
        problem(lead=(3,), H=3, Q=3, K=3, D=3, E=3),
    ):
        for want in ("out", "lse", "weights"):
            asked = call.but(want=want)
            yield Trial((asked,), within_bound(asked))


@law("SHAPE-2")
def leading_axes_broadcast_from_the_right() -> Iterator[Trial]:
    call = problem(lead=(2, 3))
    shared = call.but(k=normal(1, 3, 6, 7, 4), v=normal(2, 1, 1, 6, 7, 3))
    yield Trial((shared,), within_bound(shared))
    one_batch = problem().but(q=normal(3, 6, 5, 4))
    yield Trial((one_batch,), within_bound(one_batch))


@law("SHAPE-2")
def rank_two_is_one_head_without_batch() -> Iterator[Trial]:
    call = problem(lead=(), H=1)
    flat = call.but(q=call.q[0], k=call.k[0], v=call.v[0], want="lse")
    yield Trial((flat,), within_bound(flat))
    with_sink = flat.but(sink=np.float32(0.5))
    yield Trial((with_sink,), within_bound(with_sink))
    weights = flat.but(want="weights")
    yield Trial((weights,), within_bound(weights))


@law("SHAPE-2")
def empty_axes_give_empty_or_zero_answers() -> Iterator[Trial]:
    for sizes in ({"K": 0}, {"Q": 0}, {"E": 0}, {"lead": (0,)}, {"lead": (2, 0)}, {"Q": 0, "K": 0}):
        call = problem(**sizes, want="lse")
        yield Trial((call,), within_bound(call))
    nothing_seen = problem(K=0, want="lse")
    zero, minus = np.zeros((2, 6, 5, 3)), np.full((2, 6, 5), -np.inf)
    yield Trial((nothing_seen,), is_exactly(out=zero, lse=minus))


@law("SHAPE-2")
def width_zero_is_the_plain_mean() -> Iterator[Trial]:
    call = problem(D=0, K=4)
    column = constant(1.0, 2, 6, 4, 3) * np.array([1, 2, 4, 9], np.float32)[:, None]
    yield Trial((call.but(v=column),), is_exactly(out=np.full((2, 6, 5, 3), 4.0)))


def _precision(dtype: str) -> Iterator[Trial]:
    for want in ("lse", "weights"):
        for call in (
            problem(3, dtype=dtype, want=want),
            problem(4, G=3, K=67, D=16, dtype=dtype, size=3.0, want=want),
        ):
            yield Trial((call,), within_bound(call))


@law("SHAPE-3")
def float32_is_accurate() -> Iterator[Trial]:
    yield from _precision("float32")


@law("SHAPE-3", needs=("float64",))
def float64_stays_float64_throughout() -> Iterator[Trial]:
    yield from _precision("float64")


@law("SHAPE-3", needs=("float16",))
def float16_is_computed_in_float32_and_rounded_once() -> Iterator[Trial]:
    yield from _precision("float16")


@law("SHAPE-3", needs=("bfloat16",))
def bfloat16_is_computed_in_float32_and_rounded_once() -> Iterator[Trial]:
    yield from _precision("bfloat16")


@law("SHAPE-4")
def layout_in_memory_does_not_matter() -> Iterator[Trial]:
    call = problem(6)
    for layout in ("transposed", "reversed", "strided"):
        laid = call.but(layout=layout, want="lse")
        yield Trial((laid,), both(within_bound(laid), untouched))


@law("SHAPE-4")
def read_only_inputs_give_the_bits_of_writable_ones() -> Iterator[Trial]:
    call = beyond_a_tile(want="lse")
    yield Trial((call, call.but(layout="readonly")), both(same_bits(), untouched))


@law("SHAPE-4")
def no_input_is_ever_written_to() -> Iterator[Trial]:
    options = {"bias": normal(3, 5, 7), "sink": normal(4, 6), "mask": some_mask(5, 2, 6, 5, 7)}
    for want in ("lse", "weights"):
        call = problem(6, want=want, **options)
        yield Trial((call, call), both(same_bits(), untouched))
    tiled = beyond_a_tile(mask=masks.Causal(3), bias=normal(4, 525))
    yield Trial((tiled, tiled), both(same_bits(), untouched))
