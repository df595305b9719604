"""What ranks cannot do together all of them refuse alike, before anything is sent; nobody is left waiting."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

import pytest
import torch
from attnspec_torch import distributed
from attnspec_torch.distributed import Way
from attnspec_torch.wires import Wires
from ranks import Ranks  # type: ignore[import-not-found]

import attnspec
from attnspec.errors import AttnspecError, DTypeError, MaskError, OptionError, ShapeError

Start = Callable[[int], Ranks]


class Own:
    """A mask of somebody's own."""

    def tile(self, q: Any, k: Any, /, *, xp: Any, device: Any) -> Any:
        return xp.ones((1, 1), dtype=xp.bool)

    def status(self, q: Any, k: Any, /) -> str:
        return "some"


def q_of(rank: int, *shape: int) -> dict[str, Any]:
    return {"q": torch.ones(shape)} if rank else {}


ALL: dict[str, tuple[type[Exception], str, Callable[[int], dict[str, Any]]]] = {
    "no such way": (OptionError, "one of 'ring', 'all_to_all', 'split_keys'", lambda rank: {"how": "star"}),
    "heads": (ShapeError, "H=6 does not divide into 4 ranks.*takes any number", lambda rank: {"how": "all_to_all"}),
    "groups": (ShapeError, "G=2 does not divide into 4 ranks",
               lambda rank: {"how": "all_to_all", "q": torch.ones(2, 4, 3, 4)}),
    "chunks": (ShapeError, r"K=\(5, 5, 5, 5\).*multiple of 256 on each but the last",
               lambda rank: {"reproducible": True}),
    "own rule": (OptionError, "rank 0: mask holds a Foreign", lambda rank: {"mask": Own()}),
    "columns": (ShapeError, r"mask has shape \(12, 7\).*\(\.\.\., H, Q, K\) = \(2, 6, 12, 20\)",
                lambda rank: {"mask": torch.ones(3, 7, dtype=torch.bool)}),
    "a mask of each rank's own block": (ShapeError, r"\(3, 5\) on every rank.*with columns for all 20 keys",
                                        lambda rank: {"mask": torch.ones(3, 5, dtype=torch.bool)}),
    "all columns of few queries": (ShapeError, "columns of the rank's own keys",
                                   lambda rank: {"how": "split_keys", "mask": torch.ones(3, 20, dtype=torch.bool)}),
    "aligned to the end": (OptionError, "positions align by themselves",
                           lambda rank: {"mask": attnspec.causal(align="end"), "q_positions": range(3)}),
    "of NumPy": (DTypeError, r"q is a ndarray.*torch\.as_tensor", lambda rank: {"q": torch.ones(2, 6, 3, 4).numpy()}),
}  # fmt: skip
ONE: dict[str, tuple[type[Exception], str, Callable[[int], dict[str, Any]]]] = {
    "width": (ShapeError, r"rank 2: scores need equal widths", lambda rank: q_of(rank == 2, 2, 6, 3, 5)),
    "batch": (ShapeError, r"q has shape \(3, 6, 3, 4\) on rank 2 and \(2, 6, 3, 4\) on rank 0",
              lambda rank: q_of(rank == 2, 3, 6, 3, 4) | ({"k": torch.ones(3, 2, 5, 4), "v": torch.ones(3, 2, 5, 4)}
                                                         if rank == 2 else {})),
    "option": (OptionError, r"rank 1 has softcap=2\.0, rank 0 has softcap=None",
               lambda rank: {"softcap": 2.0} if rank == 1 else {}),
    "way": (OptionError, "rank 3 has how='split_keys', rank 0 has how='ring'",
            lambda rank: {"how": "split_keys"} if rank == 3 else {}),
    "an array": (OptionError, "rank 0 has no array sink", lambda rank: {"sink": torch.ones(6)} if rank == 1 else {}),
    "dtype": (OptionError, "rank 1 has k of dtype float64",
              lambda rank: dict.fromkeys("qkv", torch.ones(2, 2, 5, 4, dtype=torch.float64)) if rank == 1
              else {"q": torch.ones(2, 2, 3, 4)}),
    "mask": (MaskError, "rank 1: mask has dtype", lambda rank: {"mask": torch.ones(3, 20)} if rank == 1 else {}),
    "positions": (ShapeError, "rank 1: q_positions have shape", lambda rank: {"q_positions": range(3 + (rank == 1))}),
    "gradients": (OptionError, "rank 1 has gradients of q, rank 0 has gradients of nothing",
                  lambda rank: {"q": torch.ones(2, 6, 3, 4, requires_grad=rank == 1)}),
}  # fmt: skip


@pytest.mark.parametrize("name", [*ALL, *ONE])
def test_every_rank_refuses_alike_what_one_or_all_cannot_do(ranks: Start, name: str) -> None:
    error, says, _ = (ALL | ONE)[name]
    found = ranks(4).run(refused, name)
    assert found == [found[0]] * 4
    kind, message = found[0]
    assert kind is error
    assert re.search(says, message), message


def refused(rank: int, name: str) -> tuple[type[Exception], str]:
    given = {"q": torch.ones(2, 6, 3, 4), "k": torch.ones(2, 2, 5, 4), "v": torch.ones(2, 2, 5, 4)}
    given |= (ALL | ONE)[name][2](rank)
    try:
        distributed.attention(**given)
    except AttnspecError as error:
        return type(error), str(error)
    msg = "nothing was refused"
    raise AssertionError(msg)


@pytest.mark.parametrize("how", ["ring", "all_to_all", "split_keys"])
def test_derivatives_that_are_not_offered_are_refused_and_none_is_silently_wrong(ranks: Start, how: Way) -> None:
    assert ranks(2).run(other_derivatives, how) == [True] * 2


def other_derivatives(rank: int, how: Way) -> bool:
    x = torch.ones(2, 256, 3, requires_grad=True)
    q = x if how != "split_keys" else x[:, :2]
    out = distributed.attention(q, x, x, how=how)
    (first,) = torch.autograd.grad((out**2).sum(), x, create_graph=True)
    with pytest.raises(OptionError, match="differentiated once"):
        first.sum().backward()
    if how != "all_to_all":
        out = distributed.attention(q, x, x, how=how, reproducible=True)
        with pytest.raises(OptionError, match='how="all_to_all" has one'):
            out.sum().backward()
    with pytest.raises(OptionError, match="does not reach over a process group"):
        torch.func.grad(lambda q: distributed.attention(q, q, q, how=how).sum())(x.detach())
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.detach(), x.detach())
        with pytest.raises((NotImplementedError, RuntimeError), match="jvp"):
            distributed.attention(dual if how != "split_keys" else dual[:, :2], dual, dual, how=how)
    return True


def test_whoever_is_in_no_group_is_told_so(ranks: Start) -> None:
    x = torch.ones(2, 4, 3)
    with pytest.raises(OptionError, match=r"no process group: call torch\.distributed\.init_process_group"):
        distributed.attention(x, x, x)
    assert ranks(4).run(outside) == [True] * 4


def outside(rank: int) -> bool:
    group = torch.distributed.new_group([0, 2])
    x = torch.ones(2, 4, 3)
    if rank in (0, 2):
        distributed.attention(x, x, x, group=group)
        return True
    with pytest.raises(OptionError, match=rf"rank {rank} is not in the group"):
        distributed.attention(x, x, x, group=group)
    return True


PATIENCE = 5.0


@pytest.mark.parametrize(
    ("how", "when"),
    [
        ("ring", "forward"), ("ring", "backward"),
        *(pytest.param(how, when, marks=pytest.mark.slow)
          for how in ("all_to_all", "split_keys") for when in ("forward", "backward")),
    ],
)  # fmt: skip
def test_when_a_rank_is_killed_in_the_middle_the_others_end_with_an_error(how: Way, when: str) -> None:
    killed, group = 1, Ranks(3, PATIENCE)
    try:
        start = monotonic()
        answers = group.answers(until_killed, how, when, killed)
        taken = monotonic() - start
    finally:
        group.end()
    assert taken < 2 * PATIENCE + 20  # starting takes its time, too
    assert group.processes[killed].exitcode == -signal.SIGKILL
    for rank, answer in enumerate(answers):
        assert answer == (rank != killed, None if rank == killed else "waited in vain")


def until_killed(rank: int, how: Way, when: str, killed: int) -> str:
    """One rank dies in its third call, while the others are in it."""
    x = torch.ones(3, 6, 4, requires_grad=True)
    for step in range(100):
        dies = step == 2 and rank == killed
        try:
            with pytest.MonkeyPatch.context() as patch:
                if dies and when == "forward":
                    patch.setattr(Wires, "watched", killing(Wires.watched, after=2))
                out = distributed.attention(x[:, :2], x, x, how=how)
            if dies:
                out.register_hook(die)
            out.sum().backward()
        except distributed.PeerError as error:
            said = re.search(rf"rank {rank} of 3 .* waited for the others in vain", str(error))
            return "waited in vain" if said and isinstance(error.__cause__, RuntimeError) else str(error)
    return "never noticed"


def killing(function: Callable[..., Any], after: int) -> Callable[..., Any]:
    """The function, in whose place its process dies after so many calls."""
    calls = []

    def instead(*args: Any) -> Any:
        calls.append(args)
        if len(calls) > after:
            die()
        return function(*args)

    return instead


def die(*args: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_rank_that_does_not_come_is_waited_for_as_long_as_the_group_says() -> None:
    group = Ranks(2, PATIENCE)
    try:
        (_, noticed), (_, absent) = group.answers(without_the_last, PATIENCE + 3)
    finally:
        group.end()
    assert absent is None
    assert PATIENCE * 0.9 < noticed < 2 * PATIENCE


def without_the_last(rank: int, away: float) -> float | None:
    """Rank 1 makes one call less."""
    x = torch.ones(3, 6, 4)
    distributed.attention(x, x, x)
    if rank:
        sleep(away)
        return None
    start = monotonic()
    with pytest.raises(distributed.PeerError):
        distributed.attention(x, x, x)
    return monotonic() - start
