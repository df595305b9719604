"""DROPOUT of the attention weights. (`dropout` of an array is tested in `test_dropout`.)"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .. import masks
from ..judges import is_exactly, same_bits, within_bound
from ..problems import beyond_a_tile, problem, some_mask
from ..trials import Trial, law


@law("DROPOUT-1")
def rate_zero_is_the_identity_to_the_bit() -> Iterator[Trial]:
    call = problem(want="lse")
    yield Trial((call, call.but(dropout=masks.Dropout(0, 3)), call.but(dropout=masks.Dropout(0.0, 4))), same_bits())


@law("DROPOUT-1")
def rate_one_gives_exact_zeros() -> Iterator[Trial]:
    call = problem(dropout=masks.Dropout(1, 3))
    yield Trial((call,), is_exactly(out=np.zeros((2, 6, 5, 3))))


@law("DROPOUT-2", "DROPOUT-3", jitted=True)
def kept_weights_are_scaled_and_chosen_by_threefry() -> Iterator[Trial]:
    call = problem(dropout=masks.Dropout(0.25, 2**40 + 17))
    yield Trial((call,), within_bound(call))


@law("DROPOUT-2")
def dropout_acts_on_weights_after_softmax() -> Iterator[Trial]:
    for rate in (0.1, 0.25, 0.5, 0.9):
        call = problem(5, dropout=masks.Dropout(rate, 7), mask=some_mask(2, 5, 7), want="lse")
        yield Trial((call,), within_bound(call))


@law("DROPOUT-3")
def the_keep_mask_is_the_same_whatever_the_tiling() -> Iterator[Trial]:
    call = beyond_a_tile(mask=masks.Window(20, 20), dropout=masks.Dropout(0.25, 9))
    yield Trial((call,), within_bound(call))


@law("DROPOUT-3")
def the_keep_mask_covers_batch_and_heads() -> Iterator[Trial]:
    call = problem(G=3, dropout=masks.Dropout(0.25, 2**63 + 5))
    yield Trial((call,), within_bound(call))


@law("DROPOUT-3")
def the_keep_mask_counts_rows_whatever_their_positions() -> Iterator[Trial]:
    moved = {"q_positions": np.array([9, 3, 4, 8, 0], np.int32), "k_positions": range(2, 9)}
    call = problem(6, mask=masks.Causal(), dropout=masks.Dropout(0.25, 3), want="lse", **moved)
    yield Trial((call,), within_bound(call))
    late = beyond_a_tile(mask=masks.Window(20, 20), dropout=masks.Dropout(0.25, 9), q_positions=range(12, 525))
    yield Trial((late,), within_bound(late))
