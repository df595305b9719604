"""The walk back: the gradients of attention, tile by tile, from its output and the sums of its rows.

For cotangents g of out and h of lse, the weights p, and dropout's factors f (0, or 1 / (1 - rate)) of each pair:

    dp_ij = f_ij g_i . v_j        delta_i = g_i . out_i - h_i        ds_ij = p_ij (dp_ij - delta_i)
    dv_j = sum_i f_ij p_ij g_i    dq_i = scale sum_j ds_ij k_j       dk_j = scale sum_i ds_ij q_i

with the slope of the softcap between ds and dq, dk; the gradient of a bias is ds, and that of a sink -delta times its
own weight. The weights are made again from the scores, so nothing of size Q x K exists but the gradient of a bias of
that size. A masked pair takes part in nothing, whatever its numbers (MASK-6c); a row that is NaN gives NaN to its
query and to every key that it sees (MASK-7).

Source: Dao, "FlashAttention-2", 2023.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from . import in_place_backward
from ._compat import Array, cast, turned, widened
from .blocks import masked_scores, row_totals
from .derivative import summed_to
from .dropout import keep_tile, kept_scale
from .fast import EAGER, FAST
from .host import on
from .numerics import Numerics, Operands, Partial
from .parts import Block, joined, part_of, places_of
from .request import Request
from .rules import Status
from .shapes import Span, is_number
from .struct import arrays_in
from .terms import Spread
from .tiling import over_keys, over_queries, parts

Gradients = dict[str, Array]


class Rows(NamedTuple):
    """What the walk back needs of each row: (..., H, Q, 1), and wider where it says so.

    delta and the cotangents are divided by the row's total, which the weights then need not be.
    """

    reference: Array
    total: Array
    delta: Array
    bad: Array | None  # the row is NaN; None: none is
    of_out: Array  # (..., H, Q, E), the cotangent of out, times the factor of dropout where a weight is kept
    of_weights: Array | None = None  # (..., H, Q, K), that of the weights

    @classmethod
    def divided(cls, request: Request, part: tuple[Array, Array], *of_row: Array, bad: Array) -> Rows:
        """From delta and the cotangents of whole weights."""
        xp, (reference, total) = request.xp, part
        whole = xp.where(total == 0, 1.0, total)
        fine = request.host.concrete(bad) and not bool(xp.any(bad))
        delta, *cotangents = (x / whole for x in of_row)
        return cls(reference, total, delta, None if fine else bad, *cotangents)

    def of(self, q: Span) -> Rows:
        """Those of one tile."""
        return Rows(*(None if x is None else q.of(x, -2) for x in self))

    def part(self) -> Partial:
        """The sums that weights are made of."""
        return Partial(self.reference, self.total, self.of_out)


Saved = tuple[Request, tuple[Array, ...], tuple[Array, ...]]


def attend_backward(saved: Saved, numerics: Numerics) -> Gradients:
    """The gradient of each floating array in the request, by its name there.

    `saved` are the request, the results of `blocks.attend` and their cotangents. The reference of a row counts as a
    constant, its total as exp(lse - reference): weights made of them have the right derivatives of every order. Where
    the numerics is not a plain one, whose references are other numbers, both are computed anew.
    """
    request, results, cotangents = saved
    if numerics is FAST and in_place_backward.suits(request, cotangents):
        found = in_place_backward.gradients(request, results, cotangents, _of_others)
        return {name: _shaped(request.xp, x, getattr(request, name).shape) for name, x in found.items()}
    if numerics.plain is not numerics:
        numerics = numerics.plain
        results = (*results[:2], *row_totals(request, numerics))
    gradients = _walk_back(request, numerics, _rows(request, results, cotangents))
    if not (request.dropout is None or is_number(request.dropout.rate)):
        factor = kept_scale(request.dropout, results[0])
        gradients["dropout.rate"] = request.xp.sum(cotangents[0] * results[0]) * factor
    return gradients


def _rows(request: Request, results: Sequence[Array], cotangents: Sequence[Array]) -> Rows:
    (out, lse, reference, total), (g, of_lse, _, of_total) = results, cotangents
    xp = request.xp
    delta = xp.sum(g * out, axis=-1, keepdims=True) - (of_lse[..., None] + of_total * total)
    bad = xp.isnan(lse)[..., None] | xp.any(xp.isnan(out), axis=-1, keepdims=True)
    g = g if request.dropout is None else g * kept_scale(request.dropout, g)
    return Rows.divided(request, (reference, total), delta, g, bad=bad)


def _of_others(
    request: Request, results: Sequence[Array], cotangents: Sequence[Array], done: Array
) -> tuple[Array, ...]:
    """What the rows that are not done add to the gradients of q, k and v, for all leading axes of the call."""
    xp, rows = request.xp, _rows(request, results, cotangents)
    left = ~done & (rows.total != 0)
    left = left if rows.bad is None else left | rows.bad
    if not bool(xp.any(left)):
        return ()
    rows = rows._replace(delta=xp.where(done, 0.0, rows.delta), of_out=xp.where(done, 0.0, rows.of_out))
    found = _over_tiles(request, EAGER, EAGER.prepare(request), rows)
    return *EAGER.pull_scale(request, found["q"], found["k"]), found["v"]


def weights_backward(saved: Saved, numerics: Numerics) -> Gradients:
    """The same for the results of `blocks.weights`: delta_i = sum_j p_ij dp_ij."""
    request, (p, reference, total), (g, _, of_total) = saved
    xp = request.xp
    delta = xp.sum(p * g, axis=-1, keepdims=True) - of_total * total
    bad = xp.any(xp.isnan(p), axis=-1, keepdims=True)
    rows = Rows.divided(request, (reference, total), delta, xp.zeros_like(p[..., :0]), g, bad=bad)
    return _walk_back(request, numerics, rows)


def _walk_back(request: Request, numerics: Numerics, rows: Rows) -> Gradients:
    arrays = arrays_in("", request)
    found: dict[str, list[tuple[Block, Array]]] = {}
    given = [x for x in rows if x is not None]
    # Cotangents may be under a transform that the arrays know nothing of.
    numerics = numerics.suited(request) if request.host.concrete(*given) else numerics
    for block, part in parts(request, numerics, *given):
        of_part = rows if part is request else Rows(*(None if x is None else part_of(x, block, 2) for x in rows))
        for name, x in _of_part(part, numerics, of_part).items():
            found.setdefault(name, []).append((_place(request, name, arrays[f".{name}"].shape, block), x))
    return {name: joined(request.xp, pieces) for name, pieces in found.items()}


def _place(request: Request, name: str, shape: tuple[int, ...], block: Block) -> Block:
    """Where the gradient of a block lies in that of the array."""
    spread = _spread(request)
    trailing = spread[name].trailing if name in spread else {"sink": 0, "scale": 0}.get(name, 2)
    return places_of(shape, block, trailing, request.axes if name in ("k", "v") else None)


def _of_part(request: Request, numerics: Numerics, whole: Rows) -> Gradients:
    xp, operands = request.xp, numerics.prepare(request)
    gradients = _over_tiles(request, numerics, operands, whole)
    if not is_number(request.scale):
        unscaled = numerics.queries(replace(request, scale=1.0), operands, request.q_span(0, request.axes.Q))
        gradients["scale"] = xp.sum(gradients["q"] * unscaled)
    if not (request.sink is None or is_number(request.sink)):
        score = cast(request.sink, whole.total.dtype)[..., None, None] + xp.zeros_like(whole.total)
        gradients["sink"] = -xp.sum(numerics.exponentials(whole.part(), score) * whole.delta, axis=(-1, -2))
    gradients["q"], gradients["k"] = numerics.pull_scale(request, gradients["q"], gradients["k"])
    arrays = arrays_in("", request)
    return {name: _shaped(xp, x, arrays[f".{name}"].shape) for name, x in gradients.items()}


def _over_tiles(request: Request, numerics: Numerics, operands: Operands, whole: Rows) -> Gradients:
    """The gradients of what `queries` and `keys` of the numerics give, and of what scores are made of beside."""
    by_query = [name for name, by in _spread(request).items() if by.by_query]

    def rows(q: Span, stripe: Span, totals: Gradients) -> tuple[tuple[Array, ...], Gradients]:
        found = _of_rows(request, numerics, operands, (q, stripe), whole.of(q))
        return (found["q"], *(found[n] for n in by_query)), {n: x + found[n] for n, x in totals.items()}

    (of_q, *biases), totals = over_queries(request, numerics, rows, _no_totals(request))
    return {"q": of_q, **dict(zip(by_query, biases, strict=True)), **totals}


def _of_rows(
    request: Request, numerics: Numerics, operands: Operands, spans: tuple[Span, Span], rows: Rows
) -> Gradients:
    """What one tile of queries, part of a stripe, adds to each gradient, and its own rows of those of q and bias."""
    xp, G, (q, stripe) = request.xp, request.axes.G, spans
    q_tile = numerics.queries(request, operands, q)
    spread = _spread(request)
    by_key = [name for name, by in spread.items() if by.by_key]

    def step(carry: Gradients, k: Span, status: Status) -> tuple[Gradients, tuple[Array, ...]]:
        k_tile, v_tile = numerics.keys(request, operands, k)
        product = numerics.product(request, q_tile, k_tile)
        scores, visible = masked_scores(request, numerics, product, q, k, status)

        def seen(x: Array) -> Array:
            return x if visible is None else xp.where(visible, x, 0.0)

        p = numerics.exponentials(rows.part(), scores)
        p = p if rows.bad is None else xp.where(rows.bad, math.nan, p)
        of_p = numerics.matmul_of_rows(rows.of_out, v_tile)
        if rows.of_weights is not None:
            of_p = of_p + k.of(rows.of_weights, -1)
        kept = p
        if request.dropout is not None:
            keep = keep_tile(request.dropout, request, q, k)
            kept = xp.where(keep if rows.bad is None else keep | rows.bad, p, 0.0)
            of_p = xp.where(keep, of_p, 0.0)
        of_score = seen(numerics.pull_weights(p, of_p, rows.delta))
        of_product = seen(numerics.pull_score(request, product, of_score))
        found = _of_options(request, q, k, product, of_score)
        found["q"] = numerics.matmul(of_product, _weighed(request, k_tile))
        of_keys = (
            numerics.matmul_of_keys(of_product, _weighed(request, q_tile), G),
            numerics.matmul_of_keys(seen(kept), rows.of_out, G),
            *(turned(found[n]) for n in by_key),
        )
        return {n: x + found[n] for n, x in carry.items()}, of_keys

    no_keys = _of_no_keys(request, q)
    carry = {"q": xp.zeros_like(q_tile) + xp.zeros_like(rows.delta)}
    carry |= {n: x for n, x in no_keys.items() if n not in by_key}

    def nothing(k: Span) -> tuple[Array, ...]:
        of_biases = (no_keys[n] for n in by_key)
        blank = (xp.zeros((*x.shape[:-2], k.size, x.shape[-2]), dtype=x.dtype, **on(request.device)) for x in of_biases)
        return *(_no_gradient(request, k.of(x, -2)) for x in (request.k, request.v)), *blank

    found, (of_k, of_v, *biases) = over_keys(request, numerics, stripe, step, carry, nothing)
    biases = [turned(x) for x in biases]
    return {**found, "k": of_k, "v": of_v, **dict(zip(by_key, biases, strict=True))}


def _weighed(request: Request, x: Array) -> Array:
    """0 for what a scale beyond 1 made infinite: its weight is 0 where nobody sees it, and NaN where somebody does."""
    if is_number(request.scale) and abs(request.scale) <= 1.0:
        return x
    return request.xp.where(request.xp.isfinite(x), x, 0.0)


def _spread(request: Request) -> dict[str, Spread]:
    """How each array among the options that scores are made of lies along them."""
    of_bias = {} if request.bias is None else request.bias.spread()
    of_cap = {} if request.softcap is None or is_number(request.softcap) else {"softcap": Spread(False, False, 0)}
    return {f"bias.{name}": by for name, by in of_bias.items()} | of_cap


def _of_options(request: Request, q: Span, k: Span, product: Array, of_score: Array) -> Gradients:
    """What a tile adds to the gradients of those arrays."""
    xp, found = request.xp, {}
    if request.bias is not None:
        pulled = request.bias.pull(of_score, q, k, xp=xp, device=request.device)
        found = {f"bias.{name}": x for name, x in pulled.items()}
    if not (request.softcap is None or is_number(request.softcap)):
        s = product / cast(request.softcap, product.dtype)
        z = xp.exp(-2.0 * xp.abs(s))
        # tanh(s) - s / cosh(s)^2, 0 where nothing was seen, whatever s is there.
        slope = xp.tanh(s) - xp.where(z == 0, 0.0, s) * 4.0 * z / ((1.0 + z) * (1.0 + z))
        found["softcap"] = xp.sum(xp.where(of_score == 0, 0.0, slope * of_score))
    return found


def _of_no_keys(request: Request, q: Span) -> Gradients:
    """Zeros in the shapes that a tile of these queries and no keys gives."""
    like = widened(request.q)
    shape = (*request.axes.scores[:-2], q.size, 0)
    nothing = request.xp.zeros(shape, dtype=like.dtype, **on(request.device))
    return _of_options(request, q, request.k_span(0, 0), nothing, nothing)


def _no_totals(request: Request) -> Gradients:
    """What the sums over queries start with."""
    xp, spread = request.xp, _spread(request)
    totals = {"k": _no_gradient(request, request.k), "v": _no_gradient(request, request.v)}
    for name, x in _of_no_keys(request, request.q_span(0, 0)).items():
        if not spread[name].by_query:
            shape = (*x.shape[:-1], request.axes.K) if spread[name].by_key else x.shape
            totals[name] = xp.zeros(shape, dtype=x.dtype, **on(request.device))
    return totals


def _no_gradient(request: Request, x: Array) -> Array:
    """Zeros like rows of k or v, for all leading axes of the call; made from x, so that they lie where x does."""
    lead = request.xp.zeros((*request.axes.lead, 1, 1, 1), dtype=widened(x).dtype, **on(request.device))
    return request.xp.zeros_like(widened(x)) + lead


def _shaped(xp: Any, gradient: Array, shape: tuple[int, ...]) -> Array:
    """Without the axes along which the array was broadcast."""
    gradient = summed_to(gradient, (1,) * (gradient.ndim - len(shape)) + tuple(shape))
    return xp.reshape(gradient, shape)
