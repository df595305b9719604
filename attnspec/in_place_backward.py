"""The walk back on arrays that may be written to: two tiles at a time, overwritten from scores to their gradients.

    p = exp(s - reference),  s - reference = [q, -reference] [k, 1]^T
    ds = p (dp - delta),     dp - delta    = [g, -delta] [v, 1]^T

in the letters of `backward.py`. What is subtracted from a row is one more term of the products that make it, which
costs less than a pass over the tile. A key that is hidden from all queries has 0 in the place of its 1, too: its
weights are exp(0) and its ds are 0, so that no tile has to be masked for it.

Only rows that `in_place.attend` summed up as they are take part. What the others give is left to the walk of
`backward.py`; a row's own sums decide about it, and nothing is in them that it may not see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import groupby
from typing import Any

from ._compat import Array, widened
from .fast import EAGER, FAST, all_finite, is_in_queries, stacked, unstacked
from .host import on
from .in_place_tiles import SIDE, Tile, Unit, is_shared, longest_of, operations, tiles_of, with_column
from .numerics import Operands
from .parts import Block, part_of, places_of
from .request import Request
from .rules import Status
from .shapes import Span, is_number
from .struct import arrays_in
from .tiling import parts

Arrays = Sequence[Array]
Walk = Callable[[Request, Arrays, Arrays, Array], Arrays]

_AREA = 2**17  # two tiles of float32 are 1 MB, which stays in a core's cache
_STRIPE = 2048  # queries that are made ready at once: in few operations, and in memory that does not grow with them


def suits(request: Request, cotangents: Arrays) -> bool:
    """Whether a call can be walked back so: its arrays have values, and its options are of the usual kind."""
    if request.host.in_place is None or request.portable or not math.prod(request.axes.scores):
        return False
    simple = request.bias is None and request.softcap is None and request.dropout is None
    simple = simple and is_number(request.scale) and (request.sink is None or is_number(request.sink))
    if not (simple and all(map(is_in_queries, (request.scale, request.scale / math.log(2.0))))):
        return False
    return request.host.concrete(*arrays_in("", request).values(), *cotangents)


def gradients(request: Request, results: Arrays, cotangents: Arrays, walk: Walk) -> dict[str, Array]:
    """Those of q, k and v, for all leading axes of the call.

    `walk(part, results, cotangents, plain)` gives what the rows that are not `plain` add to them, () for nothing.
    """
    xp, axes, tiles = request.xp, request.axes, _Tiles(request)
    dtype, place = widened(request.q[..., :0, :0]).dtype, on(request.device)
    shapes = {"q": (axes.H, axes.Q, axes.D), "k": (axes.G, axes.K, axes.D), "v": (axes.G, axes.K, axes.E)}
    found = {name: xp.empty((*axes.lead, *shape), dtype=dtype, **place) for name, shape in shapes.items()}

    def of_keys(entry: tuple[Block, Request]) -> Block:
        return places_of((*axes.lead, axes.G), entry[0], 0, axes)

    def task(entries: tuple[Block, list[tuple[Block, Request]]]) -> None:
        keys, some = entries
        # Pages that a system gives away as zeros cost it twice where they are read before they are written to.
        for name, place in (("k", keys), ("v", keys), *(("q", block) for block, _ in some)):
            found[name][(*place, ...)] = 0.0
        for block, part in some:
            of_results, given = (
                [part_of(x, block, x.ndim - len(block)) for x in arrays] for arrays in (results, cotangents)
            )
            places = [found[name][(*place, ...)] for name, place in (("q", block), ("k", keys), ("v", keys))]
            _Part(part, tiles, places, of_results).add(given, walk)

    # Parts of one group of heads add to the same keys: one after another, whatever threads there are.
    cut = groupby(parts(request, EAGER), of_keys)
    operations(request).each(task, [(keys, list(some)) for keys, some in cut])
    return found


class _Tiles:
    """The masks of a call tile by tile. All heads come by each of them, so the last few are kept."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.kept = lru_cache(32)(self._made)

    def of(self, part: Request) -> Callable[[Span, Span, Status], Tile]:
        """Those of a part of the call."""
        if is_shared(part, self.request):
            return lambda q, k, status: self.kept((q.start, q.size), (k.start, k.size), status)
        return partial(Tile, part)

    def _made(self, q: tuple[int, int], k: tuple[int, int], status: Status) -> Tile:
        return Tile(self.request, self.request.q_span(*q), self.request.k_span(*k), status)


class _Part:
    """A part of the call, and where its gradients are summed."""

    def __init__(self, request: Request, tiles: _Tiles, found: Arrays, results: Arrays) -> None:
        xp, self.request, self.xp, self.ops = request.xp, request, request.xp, operations(request)
        self.tile_of = tiles.of(request)
        self.of_q, self.of_k, self.of_v = found
        self.unit = Unit.of(request)
        self.results, self.plain = results, _plain(xp, *results)
        self.all_plain = bool(xp.all(self.plain))
        if self.all_plain and request.mask is None:  # what a plain row sees is finite
            self.operands = Operands(request.q, request.k, request.v, None, None, None)
        else:
            self.operands = FAST.prepare(request)
        self.with_ones = [
            with_column(xp, x, 1.0) for x in FAST.keys(request, self.operands, request.k_span(0, request.axes.K))
        ]

    def add(self, cotangents: Arrays, walk: Walk) -> None:
        """The gradients of the part to what is there."""
        request, Q = self.request, self.request.axes.Q
        for start in range(0, Q, _STRIPE):
            q = request.q_span(start, min(_STRIPE, Q - start))
            rows = self._rows(q, cotangents)
            if not self.all_plain:
                rows = [self.xp.where(q.of(self.plain, -2), x, 0.0) for x in rows]
            self._stripe(q, rows)
        if not self.all_plain:
            others = walk(request, self.results, cotangents, self.plain)
            for total, more in zip((self.of_q, self.of_k, self.of_v), others, strict=False):
                total += more

    def _rows(self, q: Span, cotangents: Arrays) -> list[Array]:
        """Of some rows: [q, -reference] in the unit of the exponentials, [g, -delta] divided by the totals."""
        xp, (out, _, *sums), (g, of_lse, _, of_total) = self.xp, self.results, cotangents
        given = (out, *sums, g, of_lse[..., None], of_total)
        out, reference, total, g, of_lse, of_total = (q.of(x, -2) for x in given)
        delta = xp.vecdot(g, out)[..., None] - (of_lse + of_total * total)
        share = 1.0 / total
        if self.ops.exp2 is not None:
            whole = xp.round(reference / math.log(2.0))
            share *= xp.exp((whole * _LN2[0] - reference) + whole * _LN2[1])
            reference = whole
        queries = FAST.queries(self.unit.scaled, self.operands, q)
        if queries.shape[:-3] != delta.shape[:-3]:
            queries = queries + xp.zeros_like(delta)
        of_weights = with_column(xp, g, -delta)
        of_weights *= share
        return [with_column(xp, queries, -reference), of_weights]

    def _least(self, of_scores: Array) -> float | None:
        """A bound of all of a stripe's scores less their references; None where there is none.

        Hidden keys are in it. It decides about nothing but how exp is computed, whose bits are the same in every way.
        """
        xp = self.xp
        queries, keys = (longest_of(xp, x[..., :-1]) for x in (of_scores, self.with_ones[0]))
        least = -4.0 - queries * keys - float(xp.max(xp.abs(of_scores[..., -1])))
        return least if math.isfinite(least) else None

    def _stripe(self, stripe: Span, rows: list[Array]) -> None:
        """What a stripe of queries gives to all gradients."""
        request, least = self.request, self._least(rows[0])
        for start in range(0, stripe.size, SIDE):
            q = request.q_span(stripe.start + start, min(SIDE, stripe.size - start))
            of_block = self._stacked(rows, slice(start, start + q.size))
            for tile_q, k, status in tiles_of(request, q, max(1, _AREA // q.size)):
                tile, of_tile = self.tile_of(tile_q, k, status), of_block
                if tile.empty:
                    continue
                if tile_q.size < q.size:
                    at = tile_q.start - stripe.start
                    of_tile = self._stacked(rows, slice(at, at + tile_q.size))
                self._tile(tile, least, *of_tile)
            of_q = self.of_q[..., slice(q.start, q.stop), :]
            of_q *= request.scale

    def _stacked(self, rows: list[Array], at: slice) -> list[Array]:
        return [stacked(self.xp, x[..., at, :], self.request.axes.G) for x in rows]

    def _tile(self, tile: Tile, least: float | None, of_scores: Array, of_weights: Array) -> None:
        """What a tile gives to all gradients."""
        xp, axes = self.xp, self.request.axes
        queries_at, keys_at = slice(tile.q.start, tile.q.stop), slice(tile.k.start, tile.k.stop)
        keys, values = (x[..., keys_at, :] for x in self.with_ones)
        if tile.of_keys is not None:
            keys, values = keys * tile.of_keys, values * tile.of_keys
        p, _ = self.unit.exp(unstacked(xp, of_scores @ keys.mT, axes.H), least, tile.visible)
        p = stacked(xp, p if tile.veil is None else self.ops.hide(p, tile.veil), axes.G)
        of_values = p.mT @ of_weights[..., :-1]
        if tile.of_keys is not None:
            of_values = _without_hidden(xp, tile.of_keys, of_values)
        of_score = of_weights @ values.mT
        of_score *= p
        if tile.veil is not None:
            of_score = stacked(xp, self.ops.hide(unstacked(xp, of_score, axes.H), tile.veil), axes.G)
        _add(self.of_q, queries_at, unstacked(xp, of_score @ keys[..., :-1], axes.H))
        of_keys = of_score.mT @ of_scores[..., :-1]
        of_keys *= self.unit.size
        _add(self.of_k, keys_at, of_keys)
        _add(self.of_v, keys_at, of_values)


def _plain(xp: Any, out: Array, lse: Array, reference: Array, total: Array) -> Array:
    """The rows that can be made again as they were summed up: those of `in_place.attend` are known by their sums.

    References are whole numbers there, and totals e**-0.5 to e**0.5. A row that is NaN may have such sums, too, of what
    was cleaned for it.
    """
    finite = xp.isfinite(lse)[..., None]
    if not all_finite(out):
        finite &= xp.all(xp.isfinite(out), axis=-1, keepdims=True)
    return finite & (xp.round(reference) == reference) & (xp.abs(reference) < 128.0) & (total > 0.5) & (total < 2.0)


def _without_hidden(xp: Any, flags: Array, of_values: Array) -> Array:
    """Without what weights of exp(0) gave to the values of hidden keys."""
    return xp.where(flags == 0, 0.0, of_values)


# Their sum is log(2); a small whole number times the first is exact.
_LN2 = 355 / 512, math.log(2.0) - 355 / 512


def _add(total: Array, rows: slice, more: Array) -> None:
    some = total[..., rows, :]
    some += more
