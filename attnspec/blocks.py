"""The walk over tiles of queries and keys: how attention is computed, at any length.

For each tile of queries: start with no keys, take in one tile of keys after another, finish. A tile in which nothing
is visible is not computed; nothing of size Q x K exists. The dense case is the walk with one tile, a decoding step
the walk with few rows.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ._compat import Array, cast
from .dropout import keep_tile, kept_scale
from .host import on
from .numerics import Numerics, Operands, Partial, bias_tile
from .request import Request
from .rules import Status
from .shapes import Span, is_number
from .tiling import in_parts, key_spans, over_keys, over_queries


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
    numerics = numerics.suited(request)
    operands = numerics.prepare(request)

    def rows(q: Span, stripe: Span, carry: None) -> tuple[tuple[Array, ...], None]:
        return finished_rows(request, numerics, operands, q, stripe), carry

    (out, lse, reference, total), _ = over_queries(request, numerics, rows, None)
    return out, lse[..., 0], reference, total


def finished_rows(
    request: Request, numerics: Numerics, operands: Operands, q: Span, stripe: Span
) -> tuple[Array, Array, Array, Array]:
    """The results of `attend` for one tile of queries, part of a stripe; lse has a last axis of length 1."""
    xp = request.xp
    part, seen = row_sums(request, numerics, operands, q, stripe)
    out, lse = numerics.finish(part)
    if request.dropout is not None:
        out = out * kept_scale(request.dropout, out)
    nan_lse, nan_out = broken(None if operands.bad_q is None else q.of(operands.bad_q, -2), part, seen)
    lse = lse[..., None] if request.sink is None else xp.where(seen.any, lse[..., None], of_sink(request, lse))
    out, lse = xp.where(nan_out, math.nan, out), xp.where(nan_lse, math.nan, lse)
    return out, lse, part.reference, part.total


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
