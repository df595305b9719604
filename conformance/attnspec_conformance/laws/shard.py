"""SHARD: a call that is divided among workers has the answer of the undivided call.

Asked of whoever declares "shards": attnspec's own functions on parts that merge, and any distributed attention. The
number of workers divides the axes that they divide among themselves; every axis has another length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import masks
from ..judges import gradients_within_bound, gradients_zero, same_bits, within_bound
from ..problems import integers, normal, problem, some_mask, zigzag
from ..trials import Along, Call, Shards, Trial, law

B, H, G, Q, K, D, E = 2, 8, 4, 16, 20, 5, 6
NEEDS = ("shards",)


def divided(seed: int, along: Along = "sequence", n: int | None = None, **options: Any) -> Call:
    """A call to be divided, among as many workers as there are items of the batch, else among four."""
    sizes: dict[str, Any] = {"lead": (B,), "H": H, "G": G, "Q": Q, "K": K, "D": D, "E": E, "want": "lse"} | options
    return problem(seed, **sizes, shards=Shards(along, n or (B if along == "batch" else 4)))


def _within_bound(*calls: Call) -> Iterator[Trial]:
    for call in calls:
        yield Trial((call,), within_bound(call))


@law("SHARD-1", needs=NEEDS)
def a_sequence_among_workers_has_its_undivided_answer() -> Iterator[Trial]:
    yield from _within_bound(divided(1), divided(2, n=2, K=Q, G=H), divided(3, n=1))


@law("SHARD-1", needs=NEEDS)
def keys_among_workers_have_their_undivided_answer() -> Iterator[Trial]:
    yield from _within_bound(divided(4, "keys", Q=3), divided(5, "keys", n=2, Q=1, lead=()))


@law("SHARD-1", needs=NEEDS)
def heads_among_workers_have_their_undivided_answer() -> Iterator[Trial]:
    yield from _within_bound(divided(6, "heads"), divided(7, "heads", n=2, G=H))


@law("SHARD-1", needs=NEEDS)
def a_batch_among_workers_has_its_undivided_answer() -> Iterator[Trial]:
    yield from _within_bound(divided(8, "batch"))


@law("SHARD-1", needs=NEEDS)
def scores_of_two_shards_may_lie_far_apart() -> Iterator[Trial]:
    """By more than exp can hold: one shard alone decides, whichever it is."""
    for along in ("sequence", "keys"):
        call = divided(8, along, Q=8, scale=1.0)
        for shard in (0, 2):
            k = np.array(call.k)
            k[..., shard * K // 4 : (shard + 1) * K // 4, :] *= np.float32(400)
            yield from _within_bound(call.but(k=k))


@law("SHARD-2", needs=NEEDS)
def rules_mean_places_in_the_whole_sequence() -> Iterator[Trial]:
    lengths = masks.Padding(np.array([0, 13]))
    ids = masks.Segments(integers(3, B, Q, low=0, high=2), integers(4, B, K, low=0, high=2))
    for mask in (
        masks.Causal(), masks.Causal(align="end"), masks.Both(lengths, masks.Window(9, 20, np.array([3, -4]))),
        masks.Either(ids, masks.Window(2, 2)), masks.Inverse(masks.Causal(3)),
    ):  # fmt: skip
        yield from _within_bound(divided(10, mask=mask), divided(11, "keys", mask=mask))
    for along in ("heads", "batch"):
        yield from _within_bound(divided(12, along, mask=lengths))


@law("SHARD-2", needs=NEEDS)
def rows_may_be_dealt_out_in_any_order() -> Iterator[Trial]:
    """Zigzag, as a balanced causal ring has them, and keys in no order at all."""
    shuffled = np.argsort(normal(5, K), kind="stable").astype(np.int32)
    dealt = divided(12, mask=masks.Causal(8), q_positions=zigzag(Q, 4), k_positions=shuffled)
    yield from _within_bound(dealt, dealt.but(dropout=masks.Dropout(0.25, 3)))


@law("SHARD-2", needs=NEEDS)
def masks_and_biases_of_pairs_are_divided_like_their_axes() -> Iterator[Trial]:
    yield from _within_bound(
        divided(13, mask=some_mask(5, B, 1, Q, K), bias=normal(6, H, Q, K)),
        divided(14, mask=some_mask(7, K), bias=normal(8, H, Q, 1)),
        divided(15, "keys", mask=some_mask(9, H, 1, K), bias=normal(10, Q, K)),
        divided(16, "heads", mask=some_mask(11, H, Q, K), bias=normal(12, B, 1, 1, K)),
    )


@law("SHARD-2", needs=NEEDS)
def a_sink_counts_once_whatever_the_number_of_shards() -> Iterator[Trial]:
    for along in ("sequence", "keys", "heads"):
        yield from _within_bound(divided(17, along, sink=normal(3, H) + np.float32(2), mask=masks.Causal(-2)))


@law("SHARD-2", "DROPOUT-3", needs=NEEDS)
def shards_drop_what_the_undivided_call_drops() -> Iterator[Trial]:
    for along in ("sequence", "keys", "heads", "batch"):
        yield from _within_bound(divided(18, along, dropout=masks.Dropout(0.25, 2**33 + 5), mask=masks.Causal(9)))


@law("SHARD-3", needs=NEEDS)
def rows_that_see_no_key_of_a_shard_or_of_any() -> Iterator[Trial]:
    only_last = masks.Dense(np.broadcast_to(np.arange(K) >= 3 * K // 4, (Q, K)))
    for mask in (masks.Causal(-6), only_last, masks.Padding(np.array([1, 6])), masks.Padding(0)):
        yield from _within_bound(divided(19, mask=mask), divided(20, "keys", mask=mask))


@law("SHARD-3", needs=NEEDS)
def what_is_hidden_is_hidden_in_every_shard() -> Iterator[Trial]:
    """Keys and values that nobody sees, in one shard and in all: not a bit, whatever they hold."""
    for along in ("sequence", "keys"):
        for lengths in ([7, 18], [10, 10]):
            call = divided(21, along, mask=masks.Padding(np.array(lengths)))
            hidden = (np.arange(K) >= np.array(lengths)[:, None])[:, None, :, None]
            others = (
                call.but(**{name: np.where(hidden, np.float32(value), getattr(call, name)) for name in "kv"})
                for value in (3e38, np.inf, np.nan)
            )
            yield Trial((call, *others), same_bits("out", "lse"))
        seen: Any = np.ones((Q, K), bool)
        seen[: Q // 2, [3, 17]] = False
        call = divided(22, along, mask=masks.Dense(seen))
        others = (
            call.but(**{name: np.where(seen[0, :, None], getattr(call, name), np.float32(value)) for name in "kv"})
            for value in (3e38, np.inf, np.nan)
        )
        yield Trial((call, *others), same_bits("out", "lse", rows=Q // 2))


@law("SHARD-3", needs=NEEDS)
def what_is_not_finite_spoils_exactly_the_rows_that_see_it() -> Iterator[Trial]:
    call = divided(22, mask=masks.Causal(5))
    for name, place in (("q", (1, 3, 13, 2)), ("k", (0, 1, 11, 0)), ("v", (1, 2, 19, 5))):
        for value in (np.nan, np.inf):
            x = np.array(getattr(call, name))
            x[place] = value
            yield from _within_bound(call.but(**{name: x}))


def _differentiated(seed: int, along: Along, **options: Any) -> Call:
    call = divided(seed, along, **options)
    return call.but(want="gradients", dout=normal(6, *call.q.shape[:-1], E), dlse=normal(7, *call.q.shape[:-1]))


@law("SHARD-4", needs=(*NEEDS, "vjp"))
def gradients_come_home_to_the_shards_that_they_belong_to() -> Iterator[Trial]:
    options = {"mask": masks.Causal(6), "dropout": masks.Dropout(0.25, 9), "softcap": 2.0}
    for along in ("sequence", "keys", "heads", "batch"):
        call = _differentiated(23, along, **options)
        yield Trial((call,), gradients_within_bound(call))
    dealt = _differentiated(24, "sequence", q_positions=zigzag(Q, 4), sink=normal(3, H), **options)
    yield Trial((dealt,), gradients_within_bound(dealt))


@law("SHARD-4", needs=(*NEEDS, "vjp"))
def keys_of_a_shard_that_nobody_sees_have_gradients_of_exactly_zero() -> Iterator[Trial]:
    """All ranks take part in the backward pass, those too whose keys were of no use."""
    for along in ("sequence", "keys"):
        call = _differentiated(24, along, mask=masks.Padding(K // 4))
        rows = range(K // 4, K)
        yield Trial((call,), gradients_within_bound(call))
        yield Trial((call,), gradients_zero("dk", rows))
        yield Trial((call,), gradients_zero("dv", rows))


@law("SHARD-5", needs=("shards", "shards_to_the_bit"))
def the_number_of_workers_changes_no_bit() -> Iterator[Trial]:
    """256 keys, or a multiple, for each worker, where keys are divided."""
    sizes: dict[str, Any] = {"H": 6, "G": 3, "Q": 12, "K": 1536, "D": 5, "E": 2, "sink": normal(3, 6)}
    numbers: dict[Along, tuple[int, ...]] = {
        "sequence": (1, 2, 3, 6),
        "keys": (1, 2, 6),
        "heads": (1, 3),
        "batch": (1, 2),
    }
    for dropout in (None, masks.Dropout(0.25, 7)):
        for along, many in numbers.items():
            calls = [divided(25, along, n, mask=masks.Causal(align="end"), dropout=dropout, **sizes) for n in many]
            yield Trial(tuple(calls), same_bits("out", "lse"))
