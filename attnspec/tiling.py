"""How the axes of a call are cut: blocks of heads, tiles of queries and keys, and the loops over them.

The walk (`blocks.py`) and the walk back (`backward.py`) say what is done with a tile; which tiles there are, in which
order they come, and whether a framework records the loop, is decided here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from ._compat import Array
from .numerics import Numerics
from .parts import Block, blocks, joined
from .request import Request
from .rules import Status
from .shapes import Span
from .struct import arrays_in

# How the axes are cut. 512 x 512 scores of float32 are 1 MB, which stays in a core's cache; heads and batch are not
# looped over (on arrays sharded over devices that would make every device do all the work), so many of them make
# the tiles smaller. Where the walk is recorded into a program, its length there is bounded: by scans over the tiles
# of a few stripes of queries, or, without a scan, by 8 x 8 larger tiles.
_SIDE = 512
_AREA = 2**18
_TOTAL = 2**21
_STRIPES = 4
_UNROLLED = 8


def in_parts(
    request: Request, numerics: Numerics, compute: Callable[[Request], tuple[Array, ...]]
) -> tuple[Array, ...]:
    """`compute(part)` for each block of the axes (..., H), its results put together along them."""
    found = [(block, compute(part)) for block, part in parts(request, numerics)]
    if len(found) == 1:
        return found[0][1]
    each = zip(*(results for _, results in found), strict=True)
    return tuple(joined(request.xp, [(block, x) for (block, _), x in zip(found, xs, strict=True)]) for xs in each)


def parts(request: Request, numerics: Numerics, *more: Array) -> list[tuple[Block, Request]]:
    """The call in blocks of a few heads where its arrays, and what goes with them, have values, else whole."""
    axes = request.axes
    area = max(1, min(axes.Q, _SIDE) * min(axes.K, _SIDE))
    plain = not (request.portable or numerics.whole) and request.host.concrete(*arrays_in("", request).values(), *more)
    many = _AREA // area if plain else math.prod(axes.scores[:-2])
    found = blocks(axes, max(1, many))
    return [(block, request if len(found) == 1 else request.part(block)) for block in found]


def over_queries(
    request: Request, numerics: Numerics, rows: Callable[[Span, Span, Any], tuple[tuple[Array, ...], Any]], carry: Any
) -> tuple[tuple[Array, ...], Any]:
    """`results, carry = rows(tile, stripe, carry)` for each tile of queries; the results along their second last axis.

    Visibility is decided for a stripe. Usually each tile is one; in a recorded walk a stripe is many tiles, scanned.
    """
    xp, Q = request.xp, request.axes.Q
    height, _ = tile_shape(request, numerics)
    scan = request.host.scan if recorded(request) else None
    stripe_height = height
    if scan is not None:
        stripes = 1 if request.mask is None else _STRIPES
        stripe_height = max(1, -(-Q // (stripes * height))) * height
    parts: list[tuple[Array, ...]] = []
    for start in range(0, max(1, Q), stripe_height):
        stripe = request.q_span(start, min(stripe_height, Q - start))
        whole = stripe.size // height
        if scan is not None and whole > 1:

            def step(carry: Any, n: Array, stripe: Span = stripe) -> tuple[Any, tuple[Array, ...]]:
                results, carry = rows(request.q_span(n * height, height), stripe, carry)
                return carry, results

            carry, stacked = scan(step, carry, start // height, start // height + whole)
            parts.append(tuple(_unstacked(xp, x) for x in stacked))
            start += whole * height
        rest = stripe.size if start == stripe.start else stripe.size % height
        if rest or not Q:
            results, carry = rows(request.q_span(start, rest), stripe, carry)
            parts.append(results)
    return _joined(xp, parts), carry


def key_spans(request: Request, numerics: Numerics, q: Span) -> Iterator[tuple[Span, Status]]:
    """The tiles of keys, each with what is known of its visibility to the queries."""
    _, width = tile_shape(request, numerics)
    for start in range(0, request.axes.K, width):
        k = request.k_span(start, min(width, request.axes.K - start))
        yield k, status_of(request, q, k)


def tile_shape(request: Request, numerics: Numerics) -> tuple[int, int]:
    """(queries, keys) of a tile."""
    axes = request.axes
    heads = max(1, math.prod(axes.lead) * axes.H)
    area = max(256, min(_AREA, _TOTAL // heads))
    rows = max(1, min(axes.Q, _SIDE, math.isqrt(area)))
    columns = max(1, area // rows)
    if recorded(request) and request.host.scan is None:
        rows, columns = max(rows, -(-axes.Q // _UNROLLED)), max(columns, -(-axes.K // _UNROLLED))
    rows, columns = numerics.tile(rows, columns)
    return rows, max(1, min(axes.K, columns))


def recorded(request: Request) -> bool:
    """Whether the walk becomes part of a program."""
    return request.host.traced(request.q, request.k, request.v)


def over_keys(
    request: Request,
    numerics: Numerics,
    stripe: Span,
    step: Callable[[Any, Span, Status], tuple[Any, tuple[Array, ...]]],
    carry: Any,
    nothing: Callable[[Span], tuple[Array, ...]],
) -> tuple[Any, tuple[Array, ...]]:
    """`carry, results = step(carry, tile, status)` for each tile of keys; the results along their second last axis.

    Tiles that are known to be invisible are not computed: `nothing(span)` stands for their results. Where the walk is
    recorded, runs of alike tiles are scanned.
    """
    scan = request.host.scan if recorded(request) else None
    _, width = tile_shape(request, numerics)
    parts = []
    for run in _runs(list(key_spans(request, numerics, stripe)), width):
        status = run[0][1]
        if status == "none":
            parts.append(nothing(request.k_span(run[0][0].start, sum(k.size for k, _ in run))))
        elif scan is None or len(run) == 1:
            for k, _ in run:
                carry, results = step(carry, k, status)
                parts.append(results)
        else:
            first = run[0][0].start // width

            def body(carry: Any, n: Array, status: Status = status) -> tuple[Any, tuple[Array, ...]]:
                return step(carry, request.k_span(n * width, width), status)

            carry, stacked = scan(body, carry, first, first + len(run))
            parts.append(tuple(_unstacked(request.xp, x) for x in stacked))
    return carry, _joined(request.xp, parts or [nothing(request.k_span(0, 0))])


def _runs(tiles: list[tuple[Span, Status]], width: int) -> Iterator[list[tuple[Span, Status]]]:
    """Consecutive full tiles of one status together, a shorter last tile by itself."""
    run: list[tuple[Span, Status]] = []
    for tile in tiles:
        if run and (tile[1] != run[0][1] or tile[0].size != width):
            yield run
            run = []
        run.append(tile)
    if run:
        yield run


def _joined(xp: Any, parts: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    """Each of the results, its pieces put together along the second axis from the end."""
    return tuple(x[0] if len(x) == 1 else xp.concat(list(x), axis=-2) for x in zip(*parts, strict=True))


def _unstacked(xp: Any, x: Array) -> Array:
    """(n, ..., q, E) -> (..., n q, E)."""
    x = xp.moveaxis(x, 0, -3)
    return xp.reshape(x, (*x.shape[:-3], x.shape[-3] * x.shape[-2], x.shape[-1]))


def status_of(request: Request, q: Span, k: Span) -> Status:
    """Of mask and bias together."""
    if request.bias is not None and request.bias.status(q, k) == "none":
        return "none"
    return "all" if request.mask is None else request.mask.status(q, k)
