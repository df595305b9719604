"""The walk over tiles of queries and keys: how attention is computed, at any length.

For each tile of queries: start with no keys, take in one tile of keys after another, finish. A tile in which nothing
is visible is not computed; nothing of size Q x K exists. The dense case is the walk with one tile, a decoding step
the walk with few rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ._compat import Array
from .dropout import keep_tile, kept_scale
from .host import on
from .masks import Status
from .numerics import Numerics, Operands, Partial, bias_tile
from .request import Request
from .shapes import Axes, Span


class Seen(NamedTuple):
    """What the rows of a tile have seen so far, boolean (..., H, q, 1)."""

    any: Array  # a visible key
    bad_score: Array  # a visible key that is not finite
    bad_value: Array  # a visible value that is not finite


def attend(request: Request, numerics: Numerics) -> tuple[Array, Array]:
    """(out (..., H, Q, E), lse (..., H, Q)) in the dtype of the computation."""
    xp = request.xp
    operands = numerics.prepare(request)
    outs, lses = [], []
    for q in query_spans(request):
        part, seen = row_sums(request, numerics, operands, q)
        out, lse = numerics.finish(part)
        if request.dropout is not None:
            out = out * kept_scale(request.dropout, out)
        nan_lse, nan_out = _broken(xp, operands, q, part, seen)
        outs.append(xp.where(nan_out, math.nan, out))
        lses.append(xp.where(nan_lse[..., 0], math.nan, lse))
    if len(outs) == 1:
        return outs[0], lses[0]
    return xp.concat(outs, axis=-2), xp.concat(lses, axis=-1)


def weights(request: Request, numerics: Numerics) -> Array:
    """The weights (..., H, Q, K), before dropout, in the dtype of the computation."""
    xp = request.xp
    operands = numerics.prepare(request)
    rows = []
    for q in query_spans(request):
        part, seen = row_sums(request, numerics, operands, q)
        broken, _ = _broken(xp, operands, q, part, seen)
        tiles = [xp.zeros((*request.axes.scores[:-2], q.size, 0), dtype=part.total.dtype, **on(request.device))]
        for k, status in key_spans(request, q):
            scores, _ = _scores(request, numerics, operands, q, k, status)
            tiles.append(xp.where(broken, math.nan, numerics.weigh(part, scores)))
        rows.append(xp.concat(tiles, axis=-1))
    return rows[0] if len(rows) == 1 else xp.concat(rows, axis=-2)


def row_sums(request: Request, numerics: Numerics, operands: Operands, q: Span) -> tuple[Partial, Seen]:
    """The sums of one tile of queries over all the keys that it may see."""
    xp, axes = request.xp, request.axes
    q_tile = q.of(operands.q, -2)
    nothing = xp.zeros((*axes.lead, axes.H, q.size, 1), dtype=xp.bool, **on(request.device))
    carry = (numerics.start(request, q_tile), Seen(nothing, nothing, nothing))

    def step(carry: tuple[Partial, Seen], k: Span, status: Status) -> tuple[Partial, Seen]:
        part, seen = carry
        scores, visible = _scores(request, numerics, operands, q, k, status)
        keep = None if request.dropout is None else keep_tile(request.dropout, request, q, k)
        part = numerics.partial(part, scores, k.of(operands.v, -2), keep)
        return part, _look(xp, seen, visible, operands, k)

    return _over_keys(request, q, step, carry)


def _scores(
    request: Request, numerics: Numerics, operands: Operands, q: Span, k: Span, status: Status
) -> tuple[Array, Array | None]:
    """(scores, -inf where masked; what is visible, None for all)."""
    xp = request.xp
    visible = bias = None
    if request.mask is not None and status != "all":
        visible = request.mask.tile(q, k, xp=xp, device=request.device)
    if request.bias is not None:
        bias, finite = bias_tile(request.bias, q, k, request)
        if finite is not None:
            visible = finite if visible is None else visible & finite
    scores = numerics.score(request, q.of(operands.q, -2), k.of(operands.k, -2), bias)
    return scores if visible is None else xp.where(visible, scores, -math.inf), visible


def _look(xp: Any, seen: Seen, visible: Array | None, operands: Operands, k: Span) -> Seen:
    """What the rows have seen after one more tile of keys."""

    def sees(flag: Array | None, so_far: Array) -> Array:
        if flag is None:
            return so_far
        flag = k.of(flag, -1)
        return so_far | xp.any(flag if visible is None else visible & flag, axis=-1, keepdims=True)

    some = xp.ones_like(seen.any) if visible is None else seen.any | xp.any(visible, axis=-1, keepdims=True)
    return Seen(some, sees(operands.bad_k, seen.bad_score), sees(operands.bad_v, seen.bad_value))


def _broken(xp: Any, operands: Operands, q: Span, part: Partial, seen: Seen) -> tuple[Array, Array]:
    """Rows whose lse, and whose out, is NaN (MASK-7)."""
    # A row that saw keys and yet has no sum: every score overflowed to -inf, and the answer is not known.
    nan_lse = seen.bad_score | (seen.any & (part.total == 0))
    if operands.bad_q is not None:
        nan_lse = nan_lse | (q.of(operands.bad_q, -2) & seen.any)
    return nan_lse, nan_lse | seen.bad_value


# How the axes are cut. 512 x 512 scores of float32 are 1 MB, which stays in a core's cache; heads and batch are not
# looped over (on arrays sharded over devices that would make every device do all the work), so many of them make
# the tiles smaller.
_SIDE = 512
_AREA = 2**18
_TOTAL = 2**21
_UNROLLED = 8


def tile_shape(axes: Axes, recorded: bool, fold: bool) -> tuple[int, int]:
    """(queries, keys) of a tile.

    Where the walk is recorded into a program its length is bounded: at most 32 tiles of queries whose tiles of keys
    are folded, or, without a fold, 8 x 8 tiles.
    """
    heads = max(1, math.prod(axes.lead) * axes.H)
    area = max(256, min(_AREA, _TOTAL // heads))
    rows = max(1, min(axes.Q, _SIDE, math.isqrt(area)))
    columns = max(1, area // rows)
    if recorded:
        rows = max(rows, -(-axes.Q // (4 * _UNROLLED if fold else _UNROLLED)))
        columns = columns if fold else max(columns, -(-axes.K // _UNROLLED))
    return rows, max(1, min(axes.K, columns))


def query_spans(request: Request) -> Iterator[Span]:
    """The tiles of queries; an empty one if there are none."""
    rows, _ = _tiles(request)
    for start in range(0, max(1, request.axes.Q), rows):
        yield request.q_span(start, min(rows, request.axes.Q - start))


def key_spans(request: Request, q: Span) -> Iterator[tuple[Span, Status]]:
    """The tiles of keys, each with what is known of its visibility to the queries."""
    _, columns = _tiles(request)
    for start in range(0, request.axes.K, columns):
        k = request.k_span(start, min(columns, request.axes.K - start))
        yield k, _status(request, q, k)


def _over_keys(
    request: Request, q: Span, step: Callable[[Any, Span, Status], Any], carry: Any
) -> Any:
    """Take in the tiles of keys that are not known to be invisible; recorded, runs of alike tiles are folded."""
    fold = request.host.fold if _recorded(request) else None
    _, columns = _tiles(request)
    for run in _runs(list(key_spans(request, q)), columns):
        status = run[0][1]
        if status == "none":
            continue
        if fold is None or len(run) < 3:
            for k, _ in run:
                carry = step(carry, k, status)
        else:
            first = run[0][0].start // columns

            def body(carry: Any, n: Array, status: Status = status) -> Any:
                return step(carry, request.k_span(n * columns, columns), status)

            carry = fold(body, carry, first, first + len(run))
    return carry


def _runs(tiles: list[tuple[Span, Status]], columns: int) -> Iterator[list[tuple[Span, Status]]]:
    """Consecutive full tiles of one status together, a shorter last tile by itself."""
    run: list[tuple[Span, Status]] = []
    for tile in tiles:
        if run and (tile[1] != run[0][1] or tile[0].size != columns):
            yield run
            run = []
        run.append(tile)
    if run:
        yield run


def _tiles(request: Request) -> tuple[int, int]:
    return tile_shape(request.axes, _recorded(request), request.host.fold is not None)


def _recorded(request: Request) -> bool:
    return request.host.traced(request.q, request.k, request.v)


def _status(request: Request, q: Span, k: Span) -> Status:
    """Of mask and bias together."""
    mask: Status = "all" if request.mask is None else request.mask.status(q, k)
    if request.bias is not None and request.bias.status(q, k) == "none":
        return "none"
    return mask
