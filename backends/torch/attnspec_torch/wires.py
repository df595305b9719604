"""What attention sends over a `torch.distributed` group: hops round a ring, exchanges, sums, broadcasts.

Whatever fails on the way ends as one `PeerError`, on every rank that waits for the rest: a process that was killed, by
its closed connection; one that does not come, by the timeout of the group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from attnspec.errors import AttnspecError, OptionError

Shape = tuple[int, ...]


class PeerError(AttnspecError, RuntimeError):
    """Another rank has ended, or did not come within the timeout of the group. The cause is torch's own error."""


@dataclass(frozen=True)
class Hop:
    """Tensors on their way to the next rank, and those of the rank before, which come."""

    wires: Wires
    works: list[Any]
    sent: list[torch.Tensor]  # to be kept, and left alone, until they have gone
    coming: list[torch.Tensor]

    def arrived(self) -> list[torch.Tensor]:
        """Those of the rank before, once they are here."""
        with self.wires.watched():
            for work in self.works:
                work.wait()
        return self.coming


class Wires:
    """A group as one of its ranks sees it: rank `me` of n, which hands on to rank me + 1."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            msg = "no process group: call torch.distributed.init_process_group first, or attnspec.attention alone."
            raise OptionError(msg)
        self.group = dist.group.WORLD if group is None else group
        self.me: int = dist.get_rank(self.group)
        self.n: int = dist.get_world_size(self.group)
        if self.me < 0:
            msg = f"rank {dist.get_rank()} is not in the group, whose ranks are {dist.get_process_group_ranks(group)}."
            raise OptionError(msg)

    def hop(self, tensors: Sequence[torch.Tensor], shapes: Sequence[Shape]) -> Hop:
        """Begin to send these to the next rank, and to receive some in those shapes from the one before."""
        if self.n == 1:
            return Hop(self, [], [], list(tensors))
        sent = [x.contiguous() for x in tensors]
        coming = [x.new_empty(shape) for x, shape in zip(tensors, shapes, strict=True)]
        after, before = (self.me + 1) % self.n, (self.me - 1) % self.n
        moves = [(dist.isend, x, after) for x in sent] + [(dist.irecv, x, before) for x in coming]
        with self.watched():
            works = self._started(moves)
        return Hop(self, works, sent, coming)

    def send(self, tensors: Sequence[torch.Tensor], rank: int) -> None:
        """Hand these to that rank."""
        with self.watched():
            for work in self._started([(dist.isend, x.contiguous(), rank) for x in tensors]):
                work.wait()

    def receive(self, like: Sequence[torch.Tensor], rank: int) -> list[torch.Tensor]:
        """What that rank hands over, in shapes and dtypes like these."""
        coming = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in like]
        with self.watched():
            for work in self._started([(dist.irecv, x, rank) for x in coming]):
                work.wait()
        return coming

    def _started(self, moves: Sequence[tuple[Any, torch.Tensor, int]]) -> list[Any]:
        moved = [
            dist.P2POp(operation, x, group=self.group, group_peer=rank) for operation, x, rank in moves if x.numel()
        ]
        return dist.batch_isend_irecv(moved) if moved else []

    def exchange(self, pieces: Sequence[torch.Tensor], shapes: Sequence[Shape]) -> list[torch.Tensor]:
        """Piece r to rank r, and from each rank one in shape r."""
        if self.n == 1:
            return list(pieces)
        sizes = [torch.Size(shape).numel() for shape in shapes]
        sent = torch.cat([x.reshape(-1) for x in pieces])
        coming = sent.new_empty(sum(sizes))
        with self.watched():
            dist.all_to_all_single(coming, sent, sizes, [x.numel() for x in pieces], group=self.group)
        return [x.reshape(shape) for x, shape in zip(coming.split(sizes), shapes, strict=True)]

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks, on all of them."""
        return self._reduced(x, dist.ReduceOp.SUM)

    def max(self, x: torch.Tensor) -> torch.Tensor:
        """The greatest over the ranks, on all of them."""
        return self._reduced(x, dist.ReduceOp.MAX)

    def _reduced(self, x: torch.Tensor, operation: Any) -> torch.Tensor:
        x = x.contiguous().clone()
        with self.watched():
            dist.all_reduce(x, operation, group=self.group)
        return x

    def broadcast(self, tensors: Sequence[torch.Tensor], shapes: Sequence[Shape], source: int) -> Hop:
        """Begin to give everybody those of one rank, which come in those shapes."""
        if source == self.me:
            coming = [x.contiguous() for x in tensors]
        else:
            coming = [x.new_empty(shape) for x, shape in zip(tensors, shapes, strict=True)]
        with self.watched():
            works = [dist.broadcast(x, group=self.group, group_src=source, async_op=True) for x in coming if x.numel()]
        return Hop(self, works, [], coming)

    def gather_objects(self, x: Any) -> list[Any]:
        """What each rank says, on all of them."""
        found: list[Any] = [None] * self.n
        with self.watched():
            dist.all_gather_object(found, x, group=self.group)
        return found

    @contextmanager
    def watched(self) -> Iterator[None]:
        """What goes wrong with the others is told as that."""
        try:
            yield
        except RuntimeError as error:
            everybody = dist.get_process_group_ranks(self.group)
            msg = (
                f"rank {self.me} of {self.n} (processes {everybody}) waited for the others in vain: one of them has "
                "ended, or did not come within the timeout of the group. Its own output says why, and the cause of "
                "this error how it was noticed. Every rank makes the same calls, backward passes included."
            )
            raise PeerError(msg) from error
