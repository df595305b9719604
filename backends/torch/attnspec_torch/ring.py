"""Attention of a sequence that is split over the ranks of a group: keys travel, queries stay.

Each rank holds a shard of the queries and a shard of the keys. In n rounds every shard of keys visits every rank, and
what was seen of it is merged into the rows there. Nothing of size Q x K exists on any rank, in the backward pass
neither: it makes the weights again from the final sums of the rows, and the gradients of the keys travel with them. The
shard of the next round is on its way while this one is computed with.

Shards are cut where positions are not consecutive, and a pair of pieces of which no query can see a key is not
computed. So a zigzag order, in which each rank holds a piece from the beginning and one from the end, gives all the
same to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from attnspec import reproducible
from attnspec._compat import Array, widened
from attnspec.backward import attend_backward
from attnspec.derivative import differentiable
from attnspec.errors import OptionError
from attnspec.fast import FAST
from attnspec.reproducible.steady import CHUNK
from attnspec.request import Request
from attnspec.rows import OF_NO_KEYS, RESULTS, Fast, Rows, no_gradient, of_no_keys
from attnspec.shards import Lies, Tile, may_see
from attnspec.struct import arrays_in

from .agreement import Call, Positions, positions_of
from .host import scope
from .rows import InOrder
from .wires import Shape, Wires

T = TypeVar("T")
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class Ring:
    """The ranks of a group, each of which hands on to the next one, and how the arrays of a call lie."""

    wires: Wires
    call: Call

    def attend(self, request: Request) -> Rows:
        """(out, lse, reference, total) of this rank's queries."""
        return differentiable(self._forward, self._backward, request, always=True, reverse_only=True)

    def attend_in_order(self, request: Request) -> Rows:
        """(out, lse) in reproducible mode: each rank takes in the shards of keys in their order.

        All need the same shard at the same time then, so it is sent to all by the one that has it.
        """
        return differentiable(self._in_order, no_gradient, request, always=True, reverse_only=True)

    def _forward(self, request: Request) -> Rows:
        rows = tuple(x.clone(memory_format=torch.contiguous_format) for x in Fast.start(request))
        for source, moved in self._visiting(self._moving(arrays_in("", request))):
            for tile, part in self._pairs(request, moved, source):
                old = tuple(tile.of(x, RESULTS[0]) for x in rows)
                for x, y in zip(old, Fast.merge(part, old, Fast.of_keys(part)), strict=True):
                    x.copy_(y)
        return Fast.finish(request, rows)

    def _backward(self, request: Request, results: Rows, cotangents: Rows) -> Mapping[str, Array]:
        return once(self._gradients, (request, results, cotangents))

    def _gradients(self, saved: tuple[Request, Rows, Rows]) -> Tensors:
        request, results, cotangents = saved
        arrays = arrays_in("", request)
        wide = widened(request.q).dtype
        floats = {name: x for name, x in arrays.items() if x.is_floating_point() and name not in OF_NO_KEYS}
        kept = {n: torch.zeros(x.shape, dtype=wide, device=x.device) for n, x in floats.items()}
        travels = list(self._moving(floats))
        home = None
        for source, moved in self._visiting(self._moving(arrays)):
            found = {n: torch.zeros(moved[n].shape, dtype=wide, device=moved[n].device) for n in travels}
            for tile, part in self._pairs(request, moved, source):
                of_rows = [tile.of(x, lies) for x, lies in zip((*results, *cotangents), RESULTS * 2, strict=True)]
                gradients = attend_backward((part, tuple(of_rows[:4]), tuple(of_rows[4:])), FAST)
                for name, x in (kept | found).items():
                    tile.of(x, self.call.lies[name]).add_(gradients[name[1:]])
            if home is not None:
                for name, x in zip(travels, home.arrived(), strict=True):
                    found[name] += x
            home = self.wires.hop(list(found.values()), list(self._shapes(found, self._before(source)).values()))
        assert home is not None  # there is at least one rank
        kept |= zip(travels, home.arrived(), strict=True)
        return {name[1:]: x for name, x in kept.items()} | of_no_keys(request, results, cotangents)

    def _in_order(self, request: Request) -> Rows:
        rows = InOrder.start(request)
        moving = self._moving(arrays_in("", request))
        coming = self._from(0, moving)
        for source in range(self.wires.n):
            moved = dict(zip(moving, coming.arrived(), strict=True))
            if source + 1 < self.wires.n:
                coming = self._from(source + 1, moving)
            for part in self._chunks(request, moved, source):
                rows = InOrder.merge(rows, InOrder.of_keys(part))
        return reproducible.finish(rows)

    def _from(self, source: int, moving: Tensors) -> Any:
        return self.wires.broadcast(list(moving.values()), list(self._shapes(moving, source).values()), source)

    def _visiting(self, moved: Tensors) -> Iterator[tuple[int, Tensors]]:
        """Whose keys are here, and what came with them, round by round; this rank's own are the first."""
        names, source = list(moved), self.wires.me
        for _ in range(self.wires.n - 1):
            before = self._before(source)
            hop = self.wires.hop(list(moved.values()), list(self._shapes(moved, before).values()))
            yield source, moved
            source, moved = before, dict(zip(names, hop.arrived(), strict=True))
        yield source, moved

    def _before(self, rank: int) -> int:
        n: int = self.wires.n
        return (rank - 1) % n

    def _moving(self, arrays: Mapping[str, torch.Tensor]) -> Tensors:
        """What travels: all that has entries for keys alone."""
        lies = self.call.lies
        return {n: x for n, x in arrays.items() if lies[n].keys is not None and lies[n].queries is None}

    def _shapes(self, moving: Tensors, rank: int) -> dict[str, Shape]:
        """Those that they have on a rank."""
        found = {name: list(x.shape) for name, x in moving.items()}
        for name, shape in found.items():
            shape[self.call.lies[name].keys or 0] = self.call.K[rank]
        return {name: tuple(shape) for name, shape in found.items()}

    def _pairs(self, request: Request, moved: Tensors, source: int) -> Iterator[tuple[Tile, Request]]:
        """Each pair of a piece of this rank's queries and one of the shard's keys that it may see, as a call."""
        for q, Q, first in self.call.q_runs[self.wires.me]:
            for k, K, other in self.call.k_runs[source]:
                tile = Tile(q, Q, k, K, self.call.q_start(self.wires.me), self.call.k_start(source))
                part = part_of(tile, request, moved, self.call.lies, _consecutive(first, Q), _consecutive(other, K))
                if part is not None:
                    yield tile, part

    def _chunks(self, request: Request, moved: Tensors, source: int) -> Iterator[Request]:
        """The chunks of 256 keys of a shard that some query may see, in order, as calls of all queries."""
        Q, K = self.call.Q[self.wires.me], self.call.K[source]
        queries = positions_of(self.call.q_runs[self.wires.me], request.device)
        keys = positions_of(self.call.k_runs[source], request.device)
        for k in range(0, K, CHUNK):
            tile = Tile(0, Q, k, min(CHUNK, K - k), self.call.q_start(self.wires.me), self.call.k_start(source))
            here = None if keys is None else keys[k : k + CHUNK]
            part = part_of(tile, request, moved, self.call.lies, queries, here)
            if part is not None:
                yield part


def part_of(
    tile: Tile, request: Request, moved: Tensors, lies: Mapping[str, Lies], queries: Positions, keys: Positions
) -> Request | None:
    """The call of a tile, whose rows stand there; None if no query may see a key."""
    if not (tile.Q and tile.K):
        return None
    part = tile.request(request, arrays_in("", request) | moved, lies)
    if not (part.mask is None and part.bias is None):
        part = replace(
            part,
            q_positions=part.q_positions if queries is None else queries,
            k_positions=part.k_positions if keys is None else keys,
        )
    seen = may_see(part)
    return part if seen is None or bool(seen) else None


def _consecutive(first: int | None, size: int) -> range | None:
    return None if first is None else range(first, first + size)


def once(gradients: Callable[[T], Mapping[str, Array]], saved: T) -> Mapping[str, Array]:
    """`gradients(saved)`, which nobody differentiates again: autograd does not see what other ranks send."""
    names: list[str] = []

    def forward(saved: T) -> Rows:
        found = gradients(saved)
        names[:] = found
        return tuple(found.values())

    with scope():
        values = differentiable(forward, _no_second_gradient, saved, always=True, reverse_only=True)
    return dict(zip(names, values, strict=True))


def _no_second_gradient(*saved: Any) -> Mapping[str, Array]:
    msg = "attention over a process group is differentiated once; attnspec.attention has derivatives of all orders."
    raise OptionError(msg)
