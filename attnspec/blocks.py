"""The walk over tiles of queries and keys: how attention is computed, at any length.

For each tile of queries: start with no keys, take in one tile of keys after another, finish. A tile in which nothing
is visible is not computed; nothing of size Q x K exists. The dense case is the walk with one tile, a decoding step
the walk with few rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ._compat import Array, cast
from .dropout import keep_tile, kept_scale
from .host import on
from .numerics import Numerics, Operands, Partial, bias_tile
from .parts import Block, blocks, joined
from .request import Request
from .rules import Status
from .shapes import Span, is_number
from .struct import arrays_in


class Seen(NamedTuple):
    """What the rows of a tile have seen so far, boolean (..., H, q, 1)."""

    any: Array  # a visible key
    bad_score: Array  # a visible key that is not finite
    bad_value: Array  # a visible value that is not finite


def attend(request: Request, numerics: Numerics) -> tuple[Array, Array, Array, Array]:
    """out (..., H, Q, E) and lse (..., H, Q), and of each row its reference and its total (..., H, Q, 1).

    In the dtype of the computation. The last two are what the walk back (`backward.py`) makes the weights of: from a
    large lse alone they would have the rounding of lse.
    """
    return in_parts(request, numerics, lambda part: _attend(part, numerics))


def _attend(request: Request, numerics: Numerics) -> tuple[Array, Array, Array, Array]:
    xp, numerics = request.xp, numerics.suited(request)
    operands = numerics.prepare(request)

    def rows(q: Span, stripe: Span, carry: None) -> tuple[tuple[Array, ...], None]:
        part, seen = row_sums(request, numerics, operands, q, stripe)
        out, lse = numerics.finish(part)
        if request.dropout is not None:
            out = out * kept_scale(request.dropout, out)
        nan_lse, nan_out = broken(None if operands.bad_q is None else q.of(operands.bad_q, -2), part, seen)
        lse = lse[..., None] if request.sink is None else xp.where(seen.any, lse[..., None], of_sink(request, lse))
        out, lse = xp.where(nan_out, math.nan, out), xp.where(nan_lse, math.nan, lse)
        return (out, lse, part.reference, part.total), carry

    (out, lse, reference, total), _ = over_queries(request, numerics, rows, None)
    return out, lse[..., 0], reference, total


def weights(request: Request, numerics: Numerics) -> tuple[Array, Array, Array]:
    """The weights (..., H, Q, K), before dropout, and the reference and the total of each row, as `attend`."""
    return in_parts(request, numerics, lambda part: _weights(part, numerics))


def _weights(request: Request, numerics: Numerics) -> tuple[Array, Array, Array]:
    xp, axes, numerics = request.xp, request.axes, numerics.suited(request)
    operands = numerics.prepare(request)

    def rows(q: Span, stripe: Span, carry: None) -> tuple[tuple[Array, ...], None]:
        part, seen = row_sums(request, numerics, operands, q, stripe)
        nan_lse, _ = broken(None if operands.bad_q is None else q.of(operands.bad_q, -2), part, seen)
        tiles = [xp.zeros((*axes.lead, axes.H, q.size, 0), dtype=part.total.dtype, **on(request.device))]
        q_tile = numerics.queries(request, operands, q)
        for k, status in key_spans(request, numerics, stripe):
            k_tile, _ = numerics.keys(request, operands, k)
            product = numerics.product(request, q_tile, k_tile)
            scores, _ = masked_scores(request, numerics, product, q, k, status)
            tiles.append(xp.where(nan_lse, math.nan, numerics.weigh(part, scores)))
        return (xp.concat(tiles, axis=-1), part.reference, part.total), carry

    (whole, reference, total), _ = over_queries(request, numerics, rows, None)
    return whole, reference, total


def row_totals(request: Request, numerics: Numerics) -> tuple[Array, Array]:
    """The reference and the total of each row, as `attend` has them."""
    operands = numerics.prepare(request)

    def rows(q: Span, stripe: Span, carry: None) -> tuple[tuple[Array, ...], None]:
        part, _ = row_sums(request, numerics, operands, q, stripe)
        return (part.reference, part.total), carry

    (reference, total), _ = over_queries(request, numerics, rows, None)
    return reference, total


def row_sums(request: Request, numerics: Numerics, operands: Operands, q: Span, stripe: Span) -> tuple[Partial, Seen]:
    """The sums of one tile of queries, part of a stripe, over all the keys that the stripe may see."""
    xp = request.xp
    q_tile = numerics.queries(request, operands, q)
    part = numerics.start(request, q_tile)
    carry = (part, nothing_seen(xp, part))

    def step(carry: tuple[Partial, Seen], k: Span, status: Status) -> tuple[tuple[Partial, Seen], tuple[()]]:
        return take_in(request, numerics, operands, (q, q_tile), carry, k, status), ()

    (part, seen), _ = over_keys(request, numerics, stripe, step, carry, lambda k: ())
    return part, seen


def take_in(
    request: Request, numerics: Numerics, operands: Operands, rows: tuple[Span, Any], so_far: tuple[Partial, Seen],
    k: Span, status: Status,
) -> tuple[Partial, Seen]:  # fmt: skip
    """The sums of a tile of queries after one more tile of keys."""
    (q, q_tile), (part, seen) = rows, so_far
    k_tile, v_tile = numerics.keys(request, operands, k)
    product = numerics.product(request, q_tile, k_tile)
    scores, visible = masked_scores(request, numerics, product, q, k, status)
    keep = None if request.dropout is None else keep_tile(request.dropout, request, q, k)
    part = numerics.partial(part, scores, v_tile, keep)
    return part, _look(request.xp, seen, visible, operands, k)


def of_sink(request: Request, like: Array) -> Array:
    """The lse of rows that see the sink and nothing else: (..., H, q, 1), for `like` (..., H, q)."""
    sink = request.sink if is_number(request.sink) else cast(request.sink, like.dtype)[..., None]
    return (request.xp.zeros_like(like) + sink)[..., None]


def nothing_seen(xp: Any, part: Partial) -> Seen:
    """What rows have seen before the first tile."""
    nothing = xp.zeros_like(part.total, dtype=xp.bool)
    return Seen(nothing, nothing, nothing)


def masked_scores(
    request: Request, numerics: Numerics, product: Array, q: Span, k: Span, status: Status
) -> tuple[Array, Array | None]:
    """(scores of a tile, -inf where masked; what is visible, None for all)."""
    xp = request.xp
    visible = bias = None
    if request.mask is not None and status != "all":
        visible = request.mask.tile(q, k, xp=xp, device=request.device)
    if request.bias is not None:
        bias, finite = bias_tile(request.bias, q, k, request)
        if finite is not None:
            visible = finite if visible is None else visible & finite
    if visible is not None and visible.ndim == 0:
        visible = visible[None]
    scores = numerics.score(request, product, bias)
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


def broken(bad_q: Array | None, part: Partial, seen: Seen) -> tuple[Array, Array]:
    """Rows whose lse, and whose out, is NaN (MASK-7)."""
    # A row that saw keys and yet has no sum: every score overflowed to -inf, and the answer is not known.
    nan_lse = seen.bad_score | (seen.any & (part.total == 0))
    if bad_q is not None:
        nan_lse = nan_lse | (bad_q & seen.any)
    return nan_lse, nan_lse | seen.bad_value


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
