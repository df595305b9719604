"""Calls of torch's fused operation for ALiBi, whose bias, and whose mask if it has one, is a function of j - i.

What is added to the scores is then one line of distances per head: read with steps of 1 along the queries as along the
keys it is a matrix whose rows are those of the queries from the last to the first, and nothing of Q x K is made. So
queries are turned around, and their results are turned back.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnspec.fast import narrowed
from attnspec.positional import Alibi
from attnspec.request import Request
from attnspec.rule_arrays import clamped
from attnspec.rules import And, Padding, Rule, Window
from attnspec.shapes import Span

from .sdpa_calls import LARGEST, LARGEST_LSE, Calls, Operands, Results, attend, operands_of, pull
from .sdpa_plan import Piece

# So many queries at a time where some keys are hidden: of these, those that none of them sees are left out.
_ROWS = 256


class Band(NamedTuple):
    """Query i sees key j where low <= j - i <= high and j < keys."""

    low: int
    high: int
    keys: int


def band_of(request: Request) -> Band | None:
    """Of ALiBi with slopes that are numbers under a mask that is a band; None of any other call."""
    bias, axes = request.bias, request.axes
    if not (isinstance(bias, Alibi) and isinstance(bias.slopes, tuple) and type(bias.offset) is int):
        return None
    if any(isinstance(x, Tensor) for x in (request.q_positions, request.k_positions)):
        return None
    every = Band(1 - axes.Q, axes.K - 1, axes.K)
    return every if request.mask is None else _under(request.mask, every, request)


def _under(rule: Rule, band: Band, request: Request) -> Band | None:
    """The part of a band that a rule shows, if it is one."""
    axes, (q_first, k_first) = request.axes, _firsts(request)
    if isinstance(rule, And):
        first = _under(rule.a, band, request)
        return None if first is None else _under(rule.b, first, request)
    if isinstance(rule, Window) and type(rule.offset) is int:
        middle = clamped(rule.offset) + q_first - k_first + (axes.K - axes.Q if rule.align == "end" else 0)
        low = band.low if rule.left is None else max(band.low, middle - clamped(rule.left))
        high = band.high if rule.right is None else min(band.high, middle + clamped(rule.right))
        return Band(low, high, band.keys)
    if isinstance(rule, Padding) and isinstance(rule.lengths, int | tuple):
        lengths = {rule.lengths} if isinstance(rule.lengths, int) else set(rule.lengths)
        keys = max(0, clamped(lengths.pop()) - k_first)
        return None if lengths else band._replace(keys=min(keys, band.keys))
    return None


def _firsts(request: Request) -> tuple[int, int]:
    q_first, k_first = (0 if x is None else x.start for x in (request.q_positions, request.k_positions))
    return q_first, k_first


class Added(Calls):
    """A call of attention in pieces, to whose scores something is added pair by pair."""

    def looked_at(self) -> Sequence[Tensor]:
        """What has to be tame."""
        return self.given.q, self.read()[0]

    def without(self, bad: Tensor) -> tuple[Operands, Tensor]:
        """0 for keys and values that are bad (B, G, K), and for queries and keys that are too large; as `Calls`."""
        q, k, v = self.given
        large_q, large_k = (~(x.abs().amax(-1) <= LARGEST) for x in (q, k))
        bad = bad | large_k
        k, v = (x.masked_fill(bad[..., None], 0.0) for x in (k, v))
        return Operands(q.masked_fill(large_q[..., None], 0.0), k, v), self.sees(bad) | large_q

    def attended(self, operands: Operands) -> Results:
        """By the fused operation."""
        if self.whole:
            out, lse = self._attend(self.pieces[0], operands)
        else:
            q = operands.q
            out, lse = q.new_zeros(q.shape), q.new_full(q.shape[:-1], -math.inf)
            for piece in self.pieces:
                out[piece.rows], lse[piece.rows] = self._attend(piece, operands)
        # Of such a row the gradients need more than its lse.
        doubt = ~((lse.abs() <= LARGEST_LSE) | (lse == -math.inf))
        return Results(out[..., : self.request.axes.E], lse, doubt if bool(doubt.any()) else None)

    def pulled(self, operands: Operands, g: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, ...]:
        """The gradients of q, k and v; rows whose lse is infinite add nothing."""
        lse = lse.masked_fill(lse == -math.inf, math.inf)
        found = tuple(x.new_zeros(x.shape) for x in operands)
        for piece in self.pieces:
            rows, keys = piece.rows, self._keys(piece)
            part = self._pull(piece, operands, (g[rows], out[rows], lse[rows]))
            for x, place, of_part in zip(found, (rows, keys, keys), part, strict=True):
                x[place] += of_part
        return found

    @abstractmethod
    def _attend(self, piece: Piece, operands: Operands) -> tuple[Tensor, Tensor]:
        """(out, lse) of a piece."""

    @abstractmethod
    def _pull(self, piece: Piece, operands: Operands, rows: tuple[Tensor, Tensor, Tensor]) -> Sequence[Tensor]:
        """The gradients of the queries, keys and values of a piece, by (g, out, lse) of its rows."""

    def _options(self, added: Tensor) -> dict[str, Any]:
        return {"scale": float(self.request.scale), "attn_mask": added}

    def _cut(self, piece: Piece, operands: Operands) -> Sequence[Tensor]:
        q, k, v = operands
        if self.whole:
            return operands
        keys = self._keys(piece)
        return q[piece.rows], k[keys], v[keys]

    def _keys(self, piece: Piece) -> tuple[slice, ...]:
        groups = self.request.axes.H // self.request.axes.G
        return piece.items, slice(piece.heads.start // groups, piece.heads.stop // groups), piece.k


class Distances(Added):
    """A call whose mask and bias are a function of j - i: `bias` is that function, (H, Q + K - 1)."""

    @classmethod
    def of(cls, request: Request) -> Distances:
        """Of a call that has a `band_of`."""
        band, given = band_of(request), operands_of(request)
        assert band is not None
        pieces = list(_pieces(request, band))
        whole = len(pieces) == 1 and (pieces[0].q, pieces[0].k) == (slice(0, request.axes.Q), slice(0, request.axes.K))
        return cls(request, pieces, given, _line(request, band, given.q), whole)

    def sees(self, flags: Tensor) -> Tensor:
        """Of flags of keys (B, G, K), which queries see one: (B, H, Q)."""
        axes, band = self.request.axes, band_of(self.request)
        assert band is not None
        so_far = torch.nn.functional.pad(flags.cumsum(-1), (1, 0))
        rows = torch.arange(axes.Q, device=flags.device)
        first, last = ((rows + n).clamp(0, band.keys) for n in (band.low, band.high + 1))
        return (so_far[..., last] > so_far[..., first]).repeat_interleave(axes.H // axes.G, 1)

    def _attend(self, piece: Piece, operands: Operands) -> tuple[Tensor, Tensor]:
        q, k, v = self._cut(piece, operands)
        out, lse = attend(q.flip(-2), k, v, 0.0, False, **self._options(self._added(piece)))
        return out.flip(-2), lse.flip(-1)

    def _pull(self, piece: Piece, operands: Operands, rows: tuple[Tensor, Tensor, Tensor]) -> Sequence[Tensor]:
        q, k, v = self._cut(piece, operands)
        g, out, lse = rows
        turned = g.flip(-2), q.flip(-2), k, v, out.flip(-2), lse.flip(-1)
        of_q, of_k, of_v = pull(*turned, 0.0, False, **self._options(self._added(piece)))
        return of_q.flip(-2), of_k, of_v

    def _added(self, piece: Piece) -> Tensor:
        """(1, H, q, k), of queries from the last to the first: a view of the line."""
        line = self.bias
        assert line is not None
        shape = 1, line.shape[0], piece.q.stop - piece.q.start, piece.k.stop - piece.k.start
        return line.as_strided(shape, (0, line.shape[1], 1, 1), self.request.axes.Q - piece.q.stop + piece.k.start)


def _line(request: Request, band: Band, like: Tensor) -> Tensor:
    """What is added to a score, by j - i from 1 - Q to K - 1."""
    axes, (q_first, k_first) = request.axes, _firsts(request)
    distances = torch.arange(1 - axes.Q, axes.K, device=like.device)
    # One query, as if it had keys at all of these.
    query = Span(0, 1, axes.Q, distances.new_full((1,), q_first), (q_first, q_first + 1))
    keys = Span(0, len(distances), axes.K, k_first + distances, (k_first + 1 - axes.Q, k_first + axes.K))
    assert request.bias is not None
    line = request.bias.tile(query, keys, xp=request.xp, device=request.device)[:, 0]
    line = narrowed(request.xp, line, like)
    line[:, : max(0, band.low + axes.Q - 1)] = -math.inf
    line[:, max(0, band.high + axes.Q) :] = -math.inf
    return line


def _pieces(request: Request, band: Band) -> Iterator[Piece]:
    """Of queries that see a key, with the keys that one of them sees."""
    axes, (low, high, n) = request.axes, band
    first, last = max(0, -high), min(axes.Q, n - low)
    if low > high or not n:
        return
    sees_all = low <= 1 - axes.Q and high >= n - 1
    for start in range(first, last, axes.Q if sees_all else _ROWS):
        stop = min(last, axes.Q if sees_all else start + _ROWS)
        keys = slice(max(0, start + low), min(n, stop + high))
        yield Piece(slice(0, math.prod(axes.lead)), slice(start, stop), keys, causal=False, heads=slice(0, axes.H))
