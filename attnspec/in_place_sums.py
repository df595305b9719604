"""Attention in place, one part: what its rows sum up over the tiles of their keys, and which of them can be trusted."""

from __future__ import annotations

import math
from functools import reduce
from operator import and_
from typing import Any, NamedTuple

from ._compat import Array, dtype_name
from .blocks import finished_rows
from .dropout import keep_tile, kept_scale
from .fast import EAGER, FAST, grouped_matmul, narrowed
from .host import beside
from .in_place_tiles import FEW, Tile, Unit, is_shared, longest_of, operations, products, with_column
from .numerics import Operands
from .parts import Block
from .request import Request
from .shapes import Span

# Between these totals no weight that counts beside the largest is subnormal, and none is near float32's limits.
LEAST, MOST = 2.0**-20, 2.0**100

# In rows with exponentials that are hardly normal numbers, so that their products with values are.
_RAISED = 2.0**26

# The least normal numbers.
_TINY = {"float32": 2.0**-126, "float64": 2.0**-1022}

Rows = tuple[Array, Array, Array, Array]  # out, lse, reference, total


class Part(NamedTuple):
    """A block of the axes (..., H), computed as one."""

    whole: Request
    unit: Unit
    block: Block
    request: Request  # of the block, scaled
    operands: Operands
    looked: bool  # all of q, k and v was looked at; if not, what comes out shows whether they are finite
    longest: dict[tuple[Any, int], float]  # the lengths of the longest keys of tiles
    as_it_is: bool  # k and v need neither cleaning nor widening nor scaling
    sharing: bool  # the mask and the positions are those of the whole call

    @classmethod
    def of(cls, whole: Request, unit: Unit, block: Block) -> Part:
        request = unit.scaled.part(block)
        as_given = Operands(request.q, request.k, request.v, None, None, None)
        as_it_is, sharing = unit.is_in_queries and _as_it_is(as_given), is_shared(request, whole)
        part = cls(whole, unit, block, request, as_given, False, {}, as_it_is, sharing)
        return part if unit.is_in_queries else part.cleaned()

    def cleaned(self) -> Part:
        """The same after a look at its arrays."""
        operands = FAST.prepare(self.request)
        as_it_is = self.unit.is_in_queries and _as_it_is(operands)
        return self._replace(operands=operands, looked=True, as_it_is=as_it_is)


def _as_it_is(operands: Operands) -> bool:
    finite = operands.bad_k is None and operands.bad_v is None
    return finite and all(dtype_name(x) in ("float32", "float64") for x in (operands.k, operands.v))


class _Scored(NamedTuple):
    """The scores of a tile, and what is known of them."""

    scores: Array
    least: float | None  # of these
    finite: Array | None  # where the bias is not -inf, None for everywhere
    veil: Any  # that of it
    lowered: Array | None  # half of what was left out of the scores of a row


class Sums:
    """What the rows of a part have summed up so far."""

    def __init__(self, part: Part, q: Span) -> None:
        request, self.part = part.request, part
        self.xp, self.ops = request.xp, operations(request)
        self.q = q if part.sharing else request.q_span(q.start, q.size)
        self.queries = FAST.queries(request, part.operands, q)
        lead = request.axes.lead
        if self.queries.shape[:-3] != lead:
            zeros = self.xp.zeros((*lead, 1, 1, 1), dtype=self.queries.dtype, **beside(self.queries))
            self.queries = self.queries + zeros
        self.few = request.axes.Q < FEW
        self.longest = math.inf if self.few or part.looked else longest_of(self.xp, self.queries)
        self.total: Array | None = None
        self.out: Array | None = None
        self.finite = True  # the queries, and the keys so far
        self.doubtful: Array | None = None
        self.lost: Array | None = None  # rows of which an exponential was too small to be kept
        if part.operands.bad_q is not None:
            self.doubtful = self._marked(None, q.of(part.operands.bad_q, -2), _ALL)

    def shares(self, tile: Tile) -> bool:
        """Whether other parts read arrays that are made for this one, too, and are as large as the tile."""
        request, unit = self.part.request, self.part.unit
        of_bias = request.bias is not None and not tile.is_in_lines(request, unit)
        return self.part.sharing and (of_bias or tile.veil is not None)

    def take_in(self, shared: Tile) -> None:
        """One more tile."""
        part, request, operands, k = self.part, self.part.request, self.part.operands, shared.k
        tile = shared if part.sharing else shared.of(request)
        if tile.empty or not self.finite:
            return
        xp, ops = self.xp, self.ops
        rows = _ALL if tile.q.size == self.q.size else slice(tile.q.start - self.q.start, tile.q.stop - self.q.start)
        queries = self.queries if rows is _ALL else self.queries[..., rows, :]
        if part.as_it_is:
            keys, values = k.of(operands.k, -2), k.of(operands.v, -2)
        else:
            keys, values = FAST.keys(request, operands, k)
        least = self._least(k, keys)
        if self._vanishes(tile, least, values):
            self.lost = self._marked(self.lost, self._that_see(tile), rows)
            return
        if tile.is_deep(request, part.unit):
            for quarter in shared.quarters():
                self.take_in(quarter)
            return
        if tile.of_keys is not None:
            keys, values = _of_visible(xp, tile.of_keys, keys, values, simple=part.as_it_is)
        scored = self._scored(tile, queries, keys, least)
        p, lost = part.unit.exp(scored.scores, scored.least, _both(tile.visible, scored.finite))
        raised = None
        if lost is not None:
            self.lost = self._marked(self.lost, lost, rows)
            raised = xp.where(lost, xp.asarray(_RAISED, dtype=p.dtype, **beside(p)), 1.0)
            p *= raised
        for hidden in (tile.veil, scored.veil):
            p = p if hidden is None else ops.hide(p, hidden)
        total = xp.matmul(p, tile.ones)
        if request.dropout is not None:
            p = ops.hide(p, ops.veil(keep_tile(request.dropout, request, tile.q, k), p))
        out = grouped_matmul(xp, p, values)
        if raised is not None:
            total, out = total / raised, out / raised
        if scored.lowered is not None:
            gone = self._lowered(scored.lowered, total, out, values)
            if gone is not None:
                self.lost = self._marked(self.lost, gone & self._that_see(tile), rows)
        self._add(total, out, rows)
        for flag in (operands.bad_k, operands.bad_v):
            if flag is not None:
                seen = self._of_rows(k.of(flag, -1), tile.visible, scored.finite)
                self.doubtful = self._marked(self.doubtful, seen, rows)

    def _scored(self, tile: Tile, queries: Array, keys: Array, least: float | None) -> _Scored:
        """The scores of a tile; `least` is a bound of the products."""
        xp, part, request = self.xp, self.part, self.part.request
        line = tile.lines(request.bias) if tile.lines is not None and tile.is_in_lines(request, part.unit) else None
        if line is not None:
            queries, keys = with_column(xp, queries, line.slopes), with_column(xp, keys, line.of_keys)
            least = None if least is None else least - line.fall
        scores = products(xp, queries, keys) if part.unit.is_in_queries else FAST.product(request, queries, keys)
        if least is None and not part.looked:
            least, most = self.ops.extremes(scores)
            self.finite = math.isfinite(least) and math.isfinite(most)
        if line is not None:
            return _Scored(scores, least, None, None, 0.5 * part.unit.size * line.of_queries)
        bias, finite, veil = tile.bias_of(request)
        if request.softcap is not None or bias is not None:
            scores = _plus(xp, FAST.score(request, scores, None), bias)
            lowest = -math.inf if request.bias is None else request.bias.bounds(tile.q, tile.k)[0]
            least = None if least is None or lowest == -math.inf else least + lowest
        return _Scored(scores, least, finite, veil, None)

    def _least(self, k: Span, keys: Array) -> float | None:
        """No score is less, by Cauchy and Schwarz; None where the scores themselves have to be looked at.

        Hidden keys are in it. It decides about nothing but how exp is computed, whose bits are the same in every way.
        """
        if self.few or self.part.looked:
            return None
        longest, of_tile = self.part.longest, (k.start, k.size)
        if of_tile not in longest:
            longest[of_tile] = longest_of(self.xp, keys)
        least = -self.longest * longest[of_tile] * (1.0 + 2.0**-10)
        self.finite = math.isfinite(least)
        return least

    def _vanishes(self, tile: Tile, least: float | None, values: Array) -> bool:
        """Whether nothing is left of the sums of a tile's exponentials, and nothing in its values is NaN or infinite.

        A bias that says how large it may be (`Term.bounds`) has no -inf, which would hide keys.
        """
        request = self.part.request
        bias = request.bias
        if bias is None or least is None or request.softcap is not None:
            return False
        _, most = bias.bounds(tile.q, tile.k)
        edge = math.log(0.5 * _TINY[dtype_name(values)] / tile.k.size) / self.part.unit.size - 2.0**-20 * (
            abs(most) - least
        )
        return most - least < edge and self._is_finite(values)

    def _lowered(self, half: Array, total: Array, out: Array, values: Array) -> Array | None:
        """Multiply sums by exp(2 half), which may be subnormal; in which rows nothing is left of them, None for none.

        What would be left is no normal number, nor is any of what it is the sum of; to compute with it takes long. The
        sums of such a row are 0, as where the tile `_vanishes`, unless a value is not finite, which has to be noticed.
        """
        xp, gone, tiny = self.xp, None, _TINY[dtype_name(total)]
        half = xp.exp(half)
        total *= half
        total *= half
        if not self.ops.extremes(total)[0] >= tiny:
            gone = total < tiny
            half = xp.where(gone, 0.0, half)
            total *= xp.astype(~gone, total.dtype)
            if self._is_finite(values):
                self.ops.hide(out, self.ops.veil(~gone, out))
        out *= half
        out *= half
        return gone

    def _add(self, total: Array, out: Array, rows: slice) -> None:
        if rows is _ALL and self.total is None:
            self.total, self.out = total, out
            return
        if self.total is None or self.out is None:
            shapes = ((*x.shape[:-2], self.q.size, x.shape[-1]) for x in (total, out))
            self.total, self.out = (self.xp.zeros(shape, dtype=out.dtype, **beside(out)) for shape in shapes)
        for x, more in ((self.total, total), (self.out, out)):
            some = x[..., rows, :]
            some += more

    def _that_see(self, tile: Tile) -> Array:
        """The rows that see any key of a tile."""
        return self._of_rows(self.xp.ones((1, 1), dtype=self.xp.bool, **beside(self.queries)), tile.visible)

    def _of_rows(self, *seen: Array | None) -> Array:
        """The rows that have a key for which all of these are true."""
        return self.xp.any(reduce(and_, (x for x in seen if x is not None)), axis=-1, keepdims=True)

    def _marked(self, so_far: Array | None, more: Array, rows: slice) -> Array:
        if so_far is None:
            shape = (*self.queries.shape[:-1], 1)
            so_far = self.xp.zeros(shape, dtype=self.xp.bool, **beside(self.queries))
        some = so_far[..., rows, :]
        some |= more
        return so_far

    def finished(self) -> Rows | None:
        """As `blocks.finished_rows`; None: the part has to be cleaned first."""
        part, xp, total, out = self.part, self.xp, self.total, self.out
        if total is None or out is None or not self.finite:
            return self._careful() if part.looked else None
        trusted: Array | bool = True
        if part.request.sink is not None:
            trusted = total > 0
            total = total + xp.exp(FAST.start(part.request, self.queries).reference)
        if self.doubtful is not None:
            trusted = trusted & ~self.doubtful
        if self.lost is not None:  # beside a total of 1 what is lost is within the rounding of float's least numbers
            trusted = trusted & ~(self.lost & (total < 1))
        least, most = self.ops.extremes(total)
        if not (least >= LEAST and most <= MOST and self._is_finite(out)):
            fine = (total >= LEAST) & (total <= MOST) & xp.all(xp.isfinite(out), axis=-1, keepdims=True)
            trusted = trusted & fine
        out /= total
        if part.request.dropout is not None:
            out *= kept_scale(part.request.dropout, out)
        lse = xp.log(total)
        # The walk back knows these rows by it (`in_place_backward._plain`), and divides by totals near 1.
        reference = xp.round(lse)
        rows = out, lse, reference, total * xp.exp(-reference)
        if trusted is True or bool(xp.all(trusted)):
            return rows
        if not part.looked:
            return None
        return tuple(xp.where(trusted, x, y) for x, y in zip(rows, self._careful(), strict=True))

    def _is_finite(self, x: Array) -> bool:
        return not x.shape[-1] or all(map(math.isfinite, self.ops.extremes(x)))

    def _careful(self) -> Rows:
        """The rows by the walk that subtracts their maxima."""
        request = self.part.whole.part(self.part.block)
        return finished_rows(request, EAGER, self.part.operands, self.q, self.q)


_ALL = slice(None)


def _both(a: Array | None, b: Array | None) -> Array | None:
    """Where both are true; None is true everywhere."""
    return b if a is None else a if b is None else a & b


def _plus(xp: Any, scores: Array, bias: Array | None) -> Array:
    """Scores with a bias, in their place."""
    if bias is not None:
        scores += narrowed(xp, bias, scores)
    return scores


def _of_visible(xp: Any, flags: Array, keys: Array, values: Array, *, simple: bool) -> tuple[Array, Array]:
    """Keys and values of which hidden keys have zeros.

    They give exp(0) times 0, finite whatever they hold, and no pass over the scores is needed. Not `simple`: a scale
    may have made keys infinite.
    """
    return keys * flags if simple else xp.where(flags != 0, keys, 0.0), values * flags
