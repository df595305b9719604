"""Attention on arrays that may be written to: sums of exp(score) as it is, in tiles that are overwritten.

Softmax is the same whatever is subtracted from the scores of a row. Here it is nothing, so there is no maximum to look
for and nothing to rescale. A row whose sums come out too small, too large or not finite is taken again by the walk of
`blocks.py`, which subtracts the maximum. A row's own sums decide about it, and nothing is in them that it may not see.

A tile is 512 x 512 scores of one head (1 MB of float32, which stays in a core's cache) or of more heads if they are
shorter; what heads share of a tile, its mask and its bias, is made once for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from operator import and_
from typing import Any, NamedTuple

from ._compat import Array, cast, dtype_name, turned, widened
from .blocks import finished_rows
from .dropout import keep_tile, kept_scale
from .fast import EAGER, FAST, all_finite, grouped_matmul, is_in_queries, stacked
from .host import InPlace, beside, on
from .numerics import Operands
from .parts import Block, blocks
from .request import Request
from .rules import Status
from .shapes import Span, is_number
from .struct import arrays_in
from .tiling import status_of

_SIDE = 512
_TASKS = 8  # at least so many, where there are so many heads: enough to keep a few cores busy

# Between these totals no weight that counts beside the largest is subnormal, and none is near float32's limits.
LEAST, MOST = 2.0**-20, 2.0**100

Rows = tuple[Array, Array, Array, Array]  # out, lse, reference, total


def suits(request: Request) -> bool:
    """Whether the call may be computed so: its arrays have values, and the framework writes in place."""
    if request.host.in_place is None or request.portable:
        return False
    return request.host.concrete(*arrays_in("", request).values())


def attend(request: Request) -> Rows:
    """As `blocks.attend`."""
    xp, axes, ops = request.xp, request.axes, _operations(request)
    dtype, place = _like(request).dtype, on(request.device)
    results = [xp.empty((*axes.scores[:-1], n), dtype=dtype, **place) for n in (axes.E, 1, 1, 1)]
    rows = max(1, min(axes.Q, _SIDE))
    columns = max(1, min(axes.K, _SIDE**2 // rows))
    parts = [_Part.of(request, block) for block in blocks(axes, max(1, _SIDE**2 // (rows * columns)))]

    def tile(task: tuple[int, list[_Part]]) -> None:
        start, some = task
        q = request.q_span(start, min(rows, axes.Q - start))
        for part, found in zip(some, _rows(request, q, columns, some), strict=True):
            fine = _rows(request, q, columns, [part.cleaned()])[0] if found is None else found
            assert fine is not None
            for result, x in zip(results, fine, strict=True):
                result[(*part.block, slice(q.start, q.stop), slice(None))] = x

    if math.prod(axes.scores[:-1]):
        starts = range(0, axes.Q, rows)[::-1]  # under a causal mask the last have the most work
        share = max(1, len(parts) * len(starts) // _TASKS)
        ops.each(tile, [(start, parts[n : n + share]) for start in starts for n in range(0, len(parts), share)])
    out, lse, reference, total = results
    return out, lse[..., 0], reference, total


def _rows(request: Request, q: Span, columns: int, parts: list[_Part]) -> list[Rows | None]:
    """The results of some parts for a tile of queries, None where a part has to be cleaned first."""
    sums = [_Sums(part, q) for part in parts]
    for n in range(0, request.axes.K, columns):
        k = request.k_span(n, min(columns, request.axes.K - n))
        status = status_of(request, q, k)
        if status != "none":
            shared = _Tile(request, q, k, status)
            for of_part in sums:
                of_part.take_in(shared)
    return [of_part.finished() for of_part in sums]


def _operations(request: Request) -> InPlace:
    assert request.host.in_place is not None
    return request.host.in_place


def _like(request: Request) -> Array:
    """In the dtype of the computation."""
    return widened(request.q[..., :0, :0])


class _Part(NamedTuple):
    """A block of the axes (..., H), computed as one."""

    block: Block
    request: Request
    exp: Callable[[Array, float | None], tuple[Array, Array | None]]
    scaled: Request  # the same with a scale that makes of the scores what `exp` takes
    operands: Operands
    looked: bool  # all of k and v was looked at; if not, scores and out show whether they are finite
    as_it_is: bool  # k and v need neither cleaning nor widening
    sharing: bool  # the mask and the positions are those of the whole call

    @classmethod
    def of(cls, whole: Request, block: Block) -> _Part:
        request = whole.part(block)
        exp, exp2, scaled = _operations(whole).exp, _operations(whole).exp2, request
        if exp2 is not None and whole.bias is None and whole.softcap is None:
            scale = request.scale if is_number(request.scale) else cast(request.scale, _like(request).dtype)
            exp, scaled = exp2, replace(request, scale=scale / math.log(2.0))
        sharing = all(getattr(request, n) is getattr(whole, n) for n in ("mask", "q_positions", "k_positions"))
        # One more pass over keys and values costs more than one over the scores of a few queries.
        few = request.axes.Q < _FEW and all_finite(request.q)
        operands = Operands(request.q, request.k, request.v, None, None, None) if few else FAST.prepare(request)
        return cls(block, request, exp, scaled, operands, not few, _as_it_is(request, operands), sharing)

    def cleaned(self) -> _Part:
        """The same after a look at k and v."""
        operands = FAST.prepare(self.request)
        return self._replace(operands=operands, looked=True, as_it_is=_as_it_is(self.request, operands))


def _as_it_is(request: Request, operands: Operands) -> bool:
    finite = operands.bad_k is None and operands.bad_v is None
    return finite and all(dtype_name(x) in ("float32", "float64") for x in (request.k, request.v))


class _Tile:
    """The mask and the bias of a call at a tile of scores: made once for all the parts that share it."""

    def __init__(self, request: Request, q: Span, k: Span, status: Status) -> None:
        xp, place = request.xp, {"xp": request.xp, "device": request.device}
        self.request, self.q, self.k, self.status = request, q, k, status
        self.visible = None if request.mask is None or status == "all" else request.mask.tile(q, k, **place)
        if self.visible is not None and bool(xp.all(self.visible)):
            self.visible = None
        self.empty = self.visible is not None and not bool(xp.any(self.visible))
        self.of_keys = None if self.visible is None or self.empty else _of_keys(request, self.visible, k.size)
        self.veil = None
        if not (self.visible is None or self.empty or self.of_keys is not None):
            self.veil = _operations(request).veil(self.visible, _like(request))
        self.biases = None if request.bias is None else request.bias.tiles(q, k, **place)
        self.bias = (None, None, None)

    def bias_of(self, part: Request) -> tuple[Array | None, Array | None, Any]:
        """(its tile for a part, where that is not -inf, the veil of that), None for none."""
        if self.biases is None or part.bias is None:
            return None, None, None
        if part.bias is self.request.bias and self.bias[0] is not None:
            return self.bias
        bias, finite = self.biases(part.bias), None
        if part.bias.status(self.q, self.k) != "all":
            finite = bias != -math.inf
            finite = None if bool(part.xp.all(finite)) else finite
        found = bias, finite, None if finite is None else _operations(part).veil(finite, _like(part))
        if part.bias is self.request.bias:
            self.bias = found
        return found


def _of_keys(request: Request, visible: Array, keys: int) -> Array | None:
    """1 and 0 (..., k, 1), if a mask says the same to all heads and queries, and there are enough of these.

    Not beside a bias, which would still be added to the scores of hidden keys, whatever it holds.
    """
    by_key = visible.ndim > 0 and visible.shape[-1] == keys and math.prod(visible.shape[-3:-1]) == 1
    if not by_key or request.axes.Q < _FEW or request.bias is not None:
        return None
    xp = request.xp
    rows = visible[..., None, :] if visible.ndim == 1 else visible
    return turned(xp.astype(rows, _like(request).dtype))


_FEW = 64


class _Sums:
    """What the rows of a part have summed up so far."""

    def __init__(self, part: _Part, q: Span) -> None:
        request, self.xp, self.ops = part.request, part.request.xp, _operations(part.request)
        self.part, self.q = part, q if part.sharing else request.q_span(q.start, q.size)
        self.queries = FAST.queries(part.scaled, part.operands, q)
        self.place, lead = beside(self.queries), request.axes.lead
        if self.queries.shape[:-3] != lead:
            self.queries = self.queries + self.xp.zeros((*lead, 1, 1, 1), dtype=self.queries.dtype, **self.place)
        self.total: Array | None = None
        self.out: Array | None = None
        self.finite = True
        bad_q = part.operands.bad_q
        self.doubtful = None if bad_q is None else q.of(bad_q, -2)
        self.lost: Array | None = None  # rows of which an exponential was too small to be kept

    def take_in(self, shared: _Tile) -> None:
        """One more tile of keys."""
        (_, request, exp, scaled, operands, looked, as_it_is, sharing), q = self.part, self.q
        xp, ops, k = self.xp, self.ops, shared.k
        tile = shared if sharing else _Tile(request, q, request.k_span(k.start, k.size), shared.status)
        if tile.empty:
            return
        bias, finite, veil = tile.bias_of(request)
        scale_is_in = is_in_queries(scaled.scale)
        if as_it_is and scale_is_in:
            keys, values = k.of(operands.k, -2), k.of(operands.v, -2)
        else:
            keys, values = FAST.keys(scaled, operands, k)
        ones = xp.ones((k.size, 1), dtype=keys.dtype, **self.place)
        if tile.of_keys is not None:
            keys, values, ones = _of_visible(tile.of_keys, keys, values)
        scores = products(xp, self.queries, keys) if scale_is_in else FAST.product(scaled, self.queries, keys)
        least = None
        if not looked:
            least, most = float(xp.min(scores)), float(xp.max(scores))
            self.finite = self.finite and math.isfinite(least) and math.isfinite(most)
        plain = bias is None and request.softcap is None
        p, sunk = exp(scores, least) if plain else exp(FAST.score(request, scores, bias), None)
        if sunk is not None:
            lost = self._of_rows(sunk, tile.visible, finite)
            self.lost = lost if self.lost is None else self.lost | lost
        for hidden in (tile.veil, veil):
            p = p if hidden is None else ops.hide(p, hidden)
        total = xp.matmul(p, ones)
        if request.dropout is not None:
            p = ops.hide(p, ops.veil(keep_tile(request.dropout, request, q, k), p))
        out = grouped_matmul(xp, p, values)
        if self.total is None or self.out is None:
            self.total, self.out = total, out
        else:
            self.total += total
            self.out += out
        for flag in (operands.bad_k, operands.bad_v):
            if flag is not None:
                bad = self._of_rows(k.of(flag, -1), tile.visible, finite)
                self.doubtful = bad if self.doubtful is None else self.doubtful | bad

    def _of_rows(self, *seen: Array | None) -> Array:
        """The rows of which a pair is all that is said of it."""
        return self.xp.any(reduce(and_, (x for x in seen if x is not None)), axis=-1, keepdims=True)

    def finished(self) -> Rows | None:
        """As `blocks.finished_rows`; None: the part has to be cleaned first."""
        request, operands, looked, q = self.part.request, self.part.operands, self.part.looked, self.q
        xp, total, out = self.xp, self.total, self.out
        if total is None or out is None or not self.finite:
            return finished_rows(request, EAGER, operands, q, q) if looked else None
        trusted: Array | bool = True
        if request.sink is not None:
            trusted = total > 0
            total = total + xp.exp(FAST.start(request, self.queries).reference)
        if self.doubtful is not None:
            trusted = trusted & ~self.doubtful
        if self.lost is not None:  # beside a total of 1 what is lost is within the rounding of float's least numbers
            trusted = trusted & ~(self.lost & (total < 1))
        least, most = float(xp.min(total)), float(xp.max(total))
        if not (least >= LEAST and most <= MOST and bool(xp.all(xp.isfinite(out)))):
            fine = (total >= LEAST) & (total <= MOST) & xp.all(xp.isfinite(out), axis=-1, keepdims=True)
            trusted = trusted & fine
        out /= total
        if request.dropout is not None:
            out *= kept_scale(request.dropout, out)
        lse = xp.log(total)
        reference = xp.round(lse)  # the walk back divides by totals, which then are near 1
        rows = out, lse, reference, total * xp.exp(-reference)
        if trusted is True or bool(xp.all(trusted)):
            return rows
        if not looked:
            return None
        careful = finished_rows(request, EAGER, operands, q, q)
        return tuple(xp.where(trusted, x, y) for x, y in zip(rows, careful, strict=True))


def _of_visible(flags: Array, keys: Array, values: Array) -> tuple[Array, Array, Array]:
    """Keys, values and ones of which hidden keys have zeros.

    They give exp(0) times 0, finite whatever they hold, and no pass over the scores is needed.
    """
    return keys * flags, values * flags, flags


def products(xp: Any, queries: Array, keys: Array) -> Array:
    """Of queries with keys; for a few queries by keys times queries, as then a BLAS need not rearrange the keys."""
    (*lead, H, q, _), G = queries.shape, keys.shape[-3]
    if 1 < H // G * q <= _THIN:
        of_keys = xp.matmul(keys, turned(stacked(xp, queries, G)))
        # Flat and back: a copy in the usual order, which what follows is fast in.
        return xp.reshape(xp.reshape(turned(of_keys), (-1,)), (*lead, H, q, keys.shape[-2]))
    return grouped_matmul(xp, queries, keys.mT)


_THIN = 32
