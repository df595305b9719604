"""Two more ways over the ranks of a group: heads in exchange for the sequence, and keys that stay."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch

import attnspec
from attnspec import reproducible
from attnspec._compat import Array
from attnspec.backward import attend_backward
from attnspec.derivative import differentiable
from attnspec.fast import FAST
from attnspec.request import Request
from attnspec.rows import OF_NO_KEYS, Fast, Rows, no_gradient, of_no_keys
from attnspec.shards import Lies, Tile, options_of
from attnspec.struct import arrays_in, with_arrays

from .agreement import Call, positions_of
from .ring import Tensors, once, part_of
from .rows import InOrder
from .wires import Wires


@dataclass(frozen=True, eq=False)
class AllToAll:
    """All heads of a shard of the sequence become some heads of all of it, and back ("Ulysses")."""

    wires: Wires
    call: Call

    def attend(self, request: Request, *, same_bits: bool) -> Rows:
        """(out, lse) of this rank's queries."""
        attention = reproducible.attention_with_lse if same_bits else attnspec.attention_with_lse
        whole = self._some_heads(request)
        out, lse = attention(whole.q, whole.k, whole.v, **options_of(whole))
        lies = {"out": Lies(queries=-2, heads=-3), "lse": Lies(queries=-1, heads=-2)}
        back = self._moved({"out": out, "lse": lse}, lies, self._to_rows, self._to_heads)
        return back["out"], back["lse"]

    def _some_heads(self, request: Request) -> Request:
        """The call of this rank's heads, with the whole sequence."""
        arrays, lies, axes = arrays_in("", request), self.call.lies, request.axes
        along = {n: x for n, x in arrays.items() if lies[n].queries is not None or lies[n].keys is not None}
        found = self._moved(along, lies, self._to_heads, self._to_rows)
        for name, x in arrays.items():
            if name not in along and lies[name].heads is not None:
                found[name] = x.chunk(self.wires.n, dim=lies[name].heads)[self.wires.me]
        whole: Request = with_arrays("", request, found)
        if request.dropout is not None:
            scores = (*axes.lead, axes.H, sum(self.call.Q), sum(self.call.K))
            heads = axes.H // self.wires.n
            starts, sizes = [0] * len(scores), list(scores)
            starts[-3], sizes[-3] = heads * self.wires.me, heads
            whole = replace(whole, dropout=request.dropout.part(scores, starts, sizes))
        q, k = (positions_of(list(chain(*runs)), request.device) for runs in (self.call.q_runs, self.call.k_runs))
        return replace(
            whole,
            q_positions=whole.q_positions if q is None else q,
            k_positions=whole.k_positions if k is None else k,
        )

    def _moved(self, arrays: Tensors, lies: Mapping[str, Lies], there: Move, back: Move) -> Tensors:
        """The arrays exchanged, those with gradients by one function: the way back is the same on every rank."""

        def forward(given: Tensors) -> Rows:
            return tuple(there(x, lies[name]) for name, x in given.items())

        def backward(given: Tensors, _: Rows, cotangents: Rows) -> Mapping[str, Array]:
            of_each = dict(zip(given, cotangents, strict=True))
            return once(lambda of_each: {name: back(x, lies[name]) for name, x in of_each.items()}, of_each)

        floats = {name: x for name, x in arrays.items() if x.is_floating_point()}
        found = dict(
            zip(floats, differentiable(forward, backward, floats, always=True, reverse_only=True), strict=True)
        )
        return {name: found[name] if name in found else there(x, lies[name]) for name, x in arrays.items()}

    def _to_heads(self, x: torch.Tensor, lies: Lies) -> torch.Tensor:
        """This rank's heads of an array over the whole sequence; all of it where it has no heads."""
        n, along, lengths = self.wires.n, *self._split(lies)
        pieces = [x] * n if lies.heads is None else x.chunk(n, dim=lies.heads)
        return torch.cat(self._exchanged(pieces, along, lengths), dim=along)

    def _to_rows(self, x: torch.Tensor, lies: Lies) -> torch.Tensor:
        """All heads of an array over this rank's part of the sequence; the sum of what all have, without heads."""
        along, lengths = self._split(lies)
        pieces = x.split(lengths, dim=along)
        found = self._exchanged(pieces, along, [lengths[self.wires.me]] * self.wires.n)
        return torch.stack(found).sum(0) if lies.heads is None else torch.cat(found, dim=lies.heads)

    def _split(self, lies: Lies) -> tuple[int, list[int]]:
        """The axis of the sequence, and what of it each rank has."""
        if lies.queries is not None:
            return lies.queries, list(self.call.Q)
        assert lies.keys is not None
        return lies.keys, list(self.call.K)

    def _exchanged(self, pieces: Sequence[torch.Tensor], along: int, lengths: Sequence[int]) -> list[torch.Tensor]:
        """Piece r to rank r, and from each rank one of that length."""
        shape = list(pieces[0].shape)
        shapes = [(*shape[:along], length, *shape[along:][1:]) for length in lengths]
        return self.wires.exchange(pieces, shapes)


Move = Callable[[torch.Tensor, Lies], torch.Tensor]


@dataclass(frozen=True, eq=False)
class SplitKeys:
    """Few queries, which every rank has, and keys that stay where they are: a decoding step and its cache."""

    wires: Wires
    call: Call

    def attend(self, request: Request) -> Rows:
        """(out, lse, reference, total), the same on every rank."""
        return differentiable(self._forward, self._backward, request, always=True, reverse_only=True)

    def attend_in_order(self, request: Request) -> Rows:
        """(out, lse) in reproducible mode: the rows travel past the keys, in their order."""
        return differentiable(self._in_order, no_gradient, request, always=True, reverse_only=True)

    def _forward(self, request: Request) -> Rows:
        part = self._part(request)
        rows = Fast.start(replace(request, sink=None)) if part is None else Fast.of_keys(part)
        reference, total, out, *seen = rows
        top = self.wires.max(reference)
        share = torch.exp(reference - torch.where(top == -math.inf, 0.0, top))
        sums = self.wires.sum(torch.cat([total * share, out * share], dim=-1))
        flags = self.wires.max(torch.cat(seen, dim=-1).to(torch.uint8)).to(torch.bool)
        rows = top, sums[..., :1], sums[..., 1:], *flags.split(1, dim=-1)
        return Fast.finish(request, Fast.merge(request, Fast.start(request), rows))

    def _in_order(self, request: Request) -> Rows:
        me, last, part = self.wires.me, self.wires.n - 1, self._part(request)
        chunks = None if part is None else InOrder.of_keys(part)
        rows = InOrder.start(request)
        arrays = arrays_in("", rows)
        if me:
            arrays = dict(zip(arrays, self.wires.receive(list(arrays.values()), me - 1), strict=True))
            rows = with_arrays("", rows, arrays)
        rows = rows if chunks is None else InOrder.merge(rows, chunks)
        tensors = list(arrays_in("", rows).values())
        if me < last:
            self.wires.send(tensors, me + 1)
        found = self.wires.broadcast(tensors, [tuple(x.shape) for x in tensors], last).arrived()
        return reproducible.finish(with_arrays("", rows, dict(zip(arrays, found, strict=True))))

    def _backward(self, request: Request, results: Rows, cotangents: Rows) -> Mapping[str, Array]:
        return once(self._gradients, (request, results, cotangents))

    def _gradients(self, saved: tuple[Request, Rows, Rows]) -> Mapping[str, Array]:
        request, results, cotangents = saved
        # Each rank has a copy of the results, and the cotangents of its copy; the keys here made all of them.
        of_out, of_lse, *rest = cotangents
        sums = self.wires.sum(torch.cat([of_out, of_lse[..., None]], dim=-1))
        part = self._part(request)
        found = (
            {name[1:]: torch.zeros_like(x) for name, x in arrays_in("", request).items() if x.is_floating_point()}
            if part is None
            else attend_backward((part, results, (sums[..., :-1], sums[..., -1], *rest)), FAST)
        )
        own = of_no_keys(request, results, cotangents)
        return {n: x for n, x in found.items() if f".{n}" not in OF_NO_KEYS} | own

    def _part(self, request: Request) -> Request | None:
        """The call of these keys alone; None if no query may see any."""
        me, device = self.wires.me, request.device
        tile = Tile(0, self.call.Q[me], 0, self.call.K[me], 0, self.call.k_start(me))
        places = (positions_of(runs[me], device) for runs in (self.call.q_runs, self.call.k_runs))
        return part_of(tile, request, {}, self.call.lies, *places)
