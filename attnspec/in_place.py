"""Attention on arrays that may be written to: sums of exp(score) as it is, in tiles that are overwritten.

Softmax is the same whatever is subtracted from the scores of a row. Here it is nothing, so there is no maximum to look
for and nothing to rescale. A row whose sums come out too small, too large or not finite is taken again by the walk of
`blocks.py`, which subtracts the maximum. A row's own sums decide about it, and nothing is in them that it may not see.

A tile is 512 x 512 scores of one head (1 MB of float32, which stays in a core's cache) or of more heads if they are
shorter; what heads share of a tile, its mask and its bias, is made once for all of them.
"""

from __future__ import annotations

import math

from .host import on
from .in_place_sums import Part, Rows, Sums
from .in_place_tiles import SIDE, Tile, Unit, like, operations, tiles_of
from .parts import blocks
from .request import Request
from .shapes import Span
from .struct import arrays_in

_SHARED = 8  # parts that share the mask and the bias of their tiles, at most: they are in memory together
_TASKS = 4  # for each worker, if there are so many: for some are longer than others


def suits(request: Request) -> bool:
    """Whether the call may be computed so: its arrays have values, and the framework writes in place."""
    if request.host.in_place is None or request.portable:
        return False
    return request.host.concrete(*arrays_in("", request).values())


def attend(request: Request) -> Rows:
    """As `blocks.attend`."""
    xp, axes, ops = request.xp, request.axes, operations(request)
    dtype, place = like(request).dtype, on(request.device)
    results = [xp.empty((*axes.scores[:-1], n), dtype=dtype, **place) for n in (axes.E, 1, 1, 1)]
    rows = max(1, min(axes.Q, SIDE))
    columns = max(1, min(axes.K, SIDE**2 // rows))
    unit = Unit.of(request)
    parts = [Part.of(request, unit, block) for block in blocks(axes, max(1, SIDE**2 // (rows * columns)))]

    def tile(task: tuple[int, list[Part]]) -> None:
        start, some = task
        q = request.q_span(start, min(rows, axes.Q - start))
        for part, found in zip(some, _rows(unit.scaled, q, columns, some), strict=True):
            fine = _rows(unit.scaled, q, columns, [part.cleaned()])[0] if found is None else found
            assert fine is not None
            for result, x in zip(results, fine, strict=True):
                result[(*part.block, slice(q.start, q.stop), slice(None))] = x

    if math.prod(axes.scores[:-1]):
        starts = range(0, axes.Q, rows)[::-1]  # under a causal mask the last have the most work
        share = max(1, min(_SHARED, len(parts) * len(starts) // (_TASKS * ops.workers())))
        ops.each(tile, [(start, parts[n : n + share]) for start in starts for n in range(0, len(parts), share)])
    out, lse, reference, total = results
    return out, lse[..., 0], reference, total


def _rows(request: Request, q: Span, columns: int, parts: list[Part]) -> list[Rows | None]:
    """The results of some parts for a tile of queries, None where a part has to be cleaned first."""
    sums = [Sums(part, q) for part in parts]
    light: list[list[Tile]] = [[] for _ in sums]
    for found in tiles_of(request, q, columns):
        tile = Tile(request, *found)
        for of_part, later in zip(sums, light, strict=True):
            if of_part.shares(tile):
                of_part.take_in(tile)
            else:
                later.append(tile)
    # Where parts share nothing large they go one by one, so that queries and sums stay in the cache.
    for of_part, later in zip(sums, light, strict=True):
        for tile in later:
            of_part.take_in(tile)
    return [of_part.finished() for of_part in sums]
