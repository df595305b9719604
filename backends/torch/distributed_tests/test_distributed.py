"""A sequence split over the ranks of a group has the answers, the gradients and the bits of one that is not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attnspec_numpy.backend
import numpy as np
import pytest
import torch
from attnspec_conformance.judges import gradients_within_bound, within_bound
from attnspec_conformance.operands import Operands
from attnspec_conformance.problems import zigzag
from attnspec_conformance.shard_cases import CALLS, D, E, G, H, K, Q
from attnspec_conformance.trials import Call, Result
from attnspec_torch import backend, distributed
from attnspec_torch.distributed import Way
from ranks import Ranks  # type: ignore[import-not-found]
from shares import Share, even, uneven  # type: ignore[import-not-found]

import attnspec
from attnspec import blocks, reproducible

Start = Callable[[int], Ranks]
WAYS = ("ring", "all_to_all", "split_keys")


@pytest.mark.parametrize("shares", [even, uneven])
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("name", CALLS)
def test_answers_and_gradients_are_within_the_bounds_of_the_definition(
    ranks: Start, name: str, how: Way, shares: Callable[..., Share]
) -> None:
    call, n = CALLS[name], 4
    share = shares(how, n, Q, K)
    forward, back = together(share, ranks(n).run(answered, share, call))
    for want, result, judge in ((call.but(want="lse"), forward, within_bound), (call, back, gradients_within_bound)):
        verdict = judge(want)((result,))
        assert verdict.ok, verdict.message


def answered(rank: int, share: Share, call: Call) -> tuple[Any, ...]:
    """out and lse of a rank's queries, and what its loss adds to the gradients of the undivided arrays."""
    operands = Operands(backend, call.but(want="lse"), {"lse": partial(share.attend, rank)})
    inputs = [x.requires_grad_() for x in operands.arrays[:3]]
    results = operands.function(*inputs, *operands.arrays[3:])
    given = zip((call.dout, call.dlse), results, (-2, -1), strict=True)
    # Where every rank has the whole result, one of the losses counts.
    counts = share.Q is not None or rank == 0
    cotangents = [share.rows(rank, torch.as_tensor(x), axis).to(y.dtype) * counts for x, y, axis in given]
    gradients = torch.autograd.grad(results, inputs, cotangents)
    return tuple(backend.to_numpy(x) for x in (*results, *gradients)), tuple(
        str(x.dtype).removeprefix("torch.") for x in (*results, *gradients)
    )


def together(share: Share, answers: Any) -> tuple[Result, Result]:
    """The answer of all ranks to the undivided call."""
    parts = list(zip(*(found for found, _ in answers), strict=True))
    out_dtype, lse_dtype, *rest = answers[0][1]
    out, lse = share.together(parts[0], -2), share.together(parts[1], -1)
    gradients: dict[str, Any] = dict(zip(("dq", "dk", "dv"), map(sum, parts[2:]), strict=True))
    return Result(out=out, lse=lse, dtype=out_dtype, lse_dtype=lse_dtype), Result(
        **gradients, dtype=" and ".join(sorted(set(rest)))
    )


def loss(attend: Callable[..., Any], *arrays: Any) -> Any:
    """Of rows of scores, entries for keys, numbers for heads, single numbers."""
    q, k, v, pairs, of_keys, rows, table, slopes, sink, scale, softcap, rate = arrays
    bias = attnspec.as_bias(pairs) + of_keys + rows + attnspec.relative_bias(table) + attnspec.alibi(slopes)
    drop = attnspec.Dropout(rate, attnspec.random.key(3))
    out, lse = attend(
        q, k, v, mask=attnspec.causal(5), bias=bias, sink=sink, scale=scale, softcap=softcap, dropout=drop
    )
    return torch.sin(out).sum() + torch.cos(lse).sum()


def option_arrays() -> list[torch.Tensor]:
    rng = np.random.default_rng(1)
    shapes = ((H, Q, D), (G, K, D), (G, K, E), (Q, K), (K,), (H, Q, 1), (H, 3), (H,), (H,), (), (), ())
    return [torch.as_tensor(rng.uniform(0.5, 0.9, s)).requires_grad_() for s in shapes]


@pytest.mark.parametrize("shares", [even, uneven])
@pytest.mark.parametrize("how", WAYS)
def test_every_array_of_an_option_has_its_gradient(ranks: Start, how: Way, shares: Callable[..., Share]) -> None:
    """The sum of what it is on the ranks; beside that of the undivided call."""
    arrays, n = option_arrays(), 4
    wanted = torch.autograd.grad(loss(attnspec.attention_with_lse, *arrays), arrays)
    found = ranks(n).run(gradients_of_options, shares(how, n, Q, K))
    for parts, other in zip(zip(*found, strict=True), wanted, strict=True):
        np.testing.assert_allclose(sum(parts), other, rtol=1e-11, atol=1e-11)


def gradients_of_options(rank: int, share: Share) -> list[Any]:
    arrays = option_arrays()
    number = loss(partial(share.attend, rank), *arrays) * (share.Q is not None or rank == 0)
    return [x.numpy() for x in torch.autograd.grad(number, arrays, materialize_grads=True)]


def test_what_no_query_can_see_is_not_computed_and_zigzag_gives_all_the_same_to_do(ranks: Start) -> None:
    n = 4
    assert ranks(n).run(computed, n, "in order") == [3, 7, 11, 15]  # halves of shards: 1 + 2, 3 + 4, ...
    assert ranks(n).run(computed, n, "zigzag") == [2 * n + 1] * n
    assert ranks(n).run(computed, n, "of each item") == [4, 8, 12, 16]  # whole shards, by their least and greatest


def computed(rank: int, n: int, order: str) -> int:
    """How many tiles of 16 x 16 a rank computes."""
    q = torch.ones(1, 1, 32, 2)
    place = torch.as_tensor(zigzag(32 * n, n)).split(32)[rank]
    place = place if order == "zigzag" else torch.arange(32 * rank, 32 * rank + 32)[None, :]
    options = {} if order == "in order" else dict.fromkeys(("q_positions", "k_positions"), place)
    with pytest.MonkeyPatch.context() as patch:
        tiles: list[Any] = []
        take_in = blocks.take_in

        def counted(*args: Any) -> Any:
            tiles.append(args)
            return take_in(*args)

        patch.setattr("attnspec.tiling._AREA", 0)
        patch.setattr(blocks, "take_in", counted)
        distributed.attention(q, q, q, mask=attnspec.causal(), **options)
    return len(tiles)


LONG = 1380  # keys: four shares of 256 and more, of which the last is cut
MANY: dict[str, dict[str, Any]] = {
    "causal, biased": {"mask": attnspec.causal(align="end"), "bias": attnspec.alibi(8), "sink": 0.5},
    "lengths, dropout": {
        "mask": attnspec.padding([700]), "dropout": attnspec.Dropout(0.3, attnspec.random.key(1)),
    },
    "keys in two pieces": {
        "mask": attnspec.causal(700), "k_positions": np.roll(np.arange(LONG), 300),
    },
}  # fmt: skip
OF_LONG = {1: [LONG], 2: [1024, 356], 3: [512, 256, 612], 4: [512, 256, 256, 356]}


def long(dtype: str) -> list[Any]:
    rng = np.random.default_rng(2)
    shapes = (1, 8, 12, 8), (1, 4, LONG, 8), (1, 4, LONG, 5)
    return [attnspec_numpy.backend.asarray(rng.standard_normal(s), dtype=dtype) for s in shapes]


QUICK = [("ring", 2, "float32"), ("ring", 4, "float64"), ("all_to_all", 2, "float32"), ("split_keys", 4, "float32")]


@pytest.mark.parametrize("name", MANY)
@pytest.mark.parametrize(
    ("how", "n", "dtype"),
    [
        *QUICK,
        *(
            pytest.param(how, n, dtype, marks=pytest.mark.slow)
            for how in WAYS for n in OF_LONG for dtype in ("float16", "float32", "float64")
            if (how, n, dtype) not in QUICK and not (how == "all_to_all" and n == 3)
        ),
    ],
)  # fmt: skip
def test_bits_of_reproducible_mode_do_not_depend_on_the_ranks(
    ranks: Start, how: Way, n: int, dtype: str, name: str
) -> None:
    arrays = long(dtype)
    wanted = reproducible.attention_with_lse(*arrays, **MANY[name])
    share = Share(how, None if how == "split_keys" else [12 - n + 1] + [1] * (n - 1), OF_LONG[n])
    found = ranks(n).run(identical, share, arrays, name)
    for parts, other, axis in zip(zip(*found, strict=True), wanted, (-2, -1), strict=True):
        one = share.together(parts, axis)
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()


def identical(rank: int, share: Share, arrays: list[Any], name: str) -> tuple[Any, ...]:
    given = map(torch.as_tensor, arrays)
    options = {n: torch.as_tensor(x) if isinstance(x, np.ndarray) else x for n, x in MANY[name].items()}
    return tuple(x.numpy() for x in share.attend(rank, *given, reproducible=True, **options))


def test_bits_of_gradients_neither_where_heads_are_exchanged(ranks: Start) -> None:
    arrays = [x[..., :300, :] for x in long("float32")]
    share = Share("all_to_all", [5, 7], [100, 200])
    found = ranks(2).run(identical_gradients, share, arrays)
    given = [torch.as_tensor(x).requires_grad_() for x in arrays]
    number = (reproducible.attention(*given, mask=attnspec.causal(9)) ** 2).sum()
    for parts, other in zip(zip(*found, strict=True), torch.autograd.grad(number, given), strict=True):
        assert sum(parts).tobytes() == other.numpy().tobytes()


def identical_gradients(rank: int, share: Share, arrays: list[Any]) -> list[Any]:
    given = [torch.as_tensor(x).requires_grad_() for x in arrays]
    out, _ = share.attend(rank, *given, mask=attnspec.causal(9), reproducible=True)
    return [x.numpy() for x in torch.autograd.grad((out**2).sum(), given)]


@pytest.mark.parametrize("how", WAYS)
def test_what_is_masked_cannot_be_observed_from_another_rank(ranks: Start, how: Way) -> None:
    """Neither in results nor in gradients, to the bit, whatever the masked keys and values are."""
    plain, odd = (ranks(2).run(masked, how, odd) for odd in (False, True))
    for one, other in zip(plain, odd, strict=True):
        assert [x.tobytes() for x in one] == [x.tobytes() for x in other]


def masked(rank: int, how: Way, odd: bool) -> list[Any]:
    """The second half of the keys of rank 1 is hidden by lengths, its first key from one query by a mask."""
    share = even(how, 2, 6, 16)
    rng = np.random.default_rng(5)
    q, k, v = (torch.as_tensor(rng.standard_normal(s, dtype=np.float32)) for s in ((2, 6, 3), (2, 16, 3), (2, 16, 4)))
    hidden = torch.ones(6, 16, dtype=torch.bool)
    hidden[:, 8] = False
    if odd:
        k[:, 12:], v[:, 12:] = torch.nan, torch.inf
        k[:, 8], v[:, 8] = torch.inf, 3e38
    inputs = [x.requires_grad_() for x in (q, k, v)]
    results = share.attend(rank, *inputs, mask=attnspec.padding(12) & hidden)
    gradients = torch.autograd.grad([x.sum() for x in results], inputs)
    return [x.detach().numpy() for x in (*results, *gradients)]


@pytest.mark.parametrize("how", WAYS)
def test_what_is_visible_and_not_finite_makes_its_rows_nan_and_no_others(ranks: Start, how: Way) -> None:
    share = even(how, 2, 6, 16)
    found = ranks(2).run(with_a_bad_key, share)
    out, lse = (share.together(parts, axis) for parts, axis in zip(zip(*found, strict=True), (-2, -1), strict=True))
    # Key 9, of rank 1, is bad, value 2, of rank 0, and query 3 of one head; query i sees the keys up to 2 i.
    assert np.isnan(lse).tolist() == [[False] * 5 + [True], [False] * 3 + [True, False, True]]
    assert np.isnan(out).all(-1).tolist() == [[False] + [True] * 5] * 2
    assert np.isfinite(out[:, :1]).all()


def with_a_bad_key(rank: int, share: Share) -> tuple[Any, ...]:
    q, k, v = torch.ones(2, 6, 3), torch.ones(2, 16, 3), torch.ones(2, 16, 4)
    k[:, 9, 0], v[:, 2, 1], q[1, 3, 0] = torch.nan, torch.inf, torch.nan
    visible = torch.arange(16) <= 2 * torch.arange(6)[:, None]
    return tuple(x.numpy() for x in share.attend(rank, q, k, v, mask=visible))


@pytest.mark.parametrize("same_bits", [False, True])
@pytest.mark.parametrize("how", WAYS)
def test_without_any_key_rows_are_zero_and_see_the_sink_alone(ranks: Start, how: Way, same_bits: bool) -> None:
    for out, lse in ranks(2).run(of_nothing, how, same_bits):
        assert (out == 0).all()
        assert (lse == 0.5).all()


def of_nothing(rank: int, how: Way, same_bits: bool) -> tuple[Any, ...]:
    q = torch.ones(2, 3 if how == "split_keys" else 3 * rank, 4)
    k, v = torch.ones(2, 0, 4), torch.ones(2, 0, 5)
    out, lse = distributed.attention_with_lse(q, k, v, how=how, reproducible=same_bits, sink=0.5)
    return out.numpy(), lse.numpy()


def test_one_head_without_batch(ranks: Start) -> None:
    q, k, v = (np.random.default_rng(n).standard_normal(s) for n, s in enumerate(((4, 3), (8, 3), (8, 5))))
    share = even("ring", 2, 4, 8)
    found = ranks(2).run(headless, share, (q, k, v))
    wanted = attnspec.attention_with_lse(q, k, v, mask=attnspec.causal(align="end"))
    for parts, other, axis in zip(zip(*found, strict=True), wanted, (-2, -1), strict=True):
        np.testing.assert_allclose(share.together(parts, axis), other, rtol=1e-13)


def headless(rank: int, share: Share, arrays: Any) -> tuple[Any, ...]:
    given = map(torch.as_tensor, arrays)
    return tuple(x.numpy() for x in share.attend(rank, *given, mask=attnspec.causal(align="end")))


def test_a_group_of_some_ranks_and_lists_of_ids(ranks: Start) -> None:
    assert ranks(4).run(in_pairs) == [True] * 4


def in_pairs(rank: int) -> bool:
    """Ranks 0 and 2, and beside them 1 and 3."""
    groups = [torch.distributed.new_group(members, use_local_synchronization=True) for members in ([0, 2], [1, 3])
              if rank in members]  # fmt: skip
    me = torch.distributed.get_rank(groups[0])
    q = torch.arange(24.0).reshape(2, 6, 2) / 24
    own = q[:, 3 * me : 3 * me + 3]
    ids = [0, 0, 1, 1, 1, 2]
    mine = ids[3 * me : 3 * me + 3]
    out = distributed.attention(own, own, own, group=groups[0], mask=attnspec.segments(mine, mine))
    wanted = attnspec.attention(q, q, q, mask=attnspec.segments(ids, ids))[:, 3 * me : 3 * me + 3]
    torch.testing.assert_close(out, wanted)
    return True


def test_compiled_code_leaves_the_call_out_and_agrees(ranks: Start) -> None:
    assert ranks(2).run(compiled) == [True] * 2


def compiled(rank: int) -> bool:
    q = torch.ones(2, 4, 3) * (rank + 1)
    attend = torch.compile(lambda x: distributed.attention(2 * x, x, x, mask=attnspec.causal()) + 1, backend="eager")
    torch.testing.assert_close(attend(q), distributed.attention(2 * q, q, q, mask=attnspec.causal()) + 1)
    return True
