"""The default numerics: online softmax in float32 or float64 arithmetic.

`Fast` is right everywhere, in recorded programs and under transforms. `Eager` is the same in fewer operations, for
arrays with values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ._compat import Array, dtype_name, namespace, turned, widened
from .host import beside
from .numerics import Numerics, Operands, Partial
from .request import Request
from .shapes import Span, is_number
from .struct import arrays_in


class Fast:
    """Online softmax: a running maximum, and sums rescaled whenever it grows."""

    whole = False

    @property
    def plain(self) -> Numerics:
        return self

    def tile(self, rows: int, columns: int) -> tuple[int, int]:
        return rows, columns

    def suited(self, request: Request) -> Numerics:
        if request.portable or not request.host.concrete(*arrays_in("", request).values()):
            return self
        return EAGER

    def prepare(self, request: Request) -> Operands:
        xp = request.xp
        q, k, v = request.q, request.k, request.v
        # Where values may be looked at, finite inputs (the usual case) need neither flags nor cleaning. Where they
        # may not, cleaning leaves finite numbers as they are: the same bits on both ways.
        if request.host.concrete(q, k, v) and all(map(all_finite, (q, k, v))):
            return Operands(q, k, v, None, None, None)
        bad_q, bad_k, bad_v = (~xp.all(xp.isfinite(widened(x)), axis=-1, keepdims=True) for x in (q, k, v))
        by_key = [turned(for_query_heads(xp, bad, request.axes.H)) for bad in (bad_k, bad_v)]
        return Operands(q, k, v, bad_q, *by_key)

    def queries(self, request: Request, operands: Operands, q: Span) -> Array:
        tile = _cleaned(request.xp, q.of(operands.q, -2), operands.bad_q)
        scale = request.scale
        if not is_number(scale):
            return tile * request.xp.astype(scale, tile.dtype, copy=False)
        to_q, to_k, _ = _shares(scale)
        return tile * to_q if to_k == 1.0 else _apart(request.xp, tile * to_q)

    def keys(self, request: Request, operands: Operands, k: Span) -> tuple[Array, Array]:
        tiles = ((operands.k, operands.bad_k), (operands.v, operands.bad_v))
        key, value = (_cleaned(request.xp, k.of(x, -2), bad) for x, bad in tiles)
        share = _shares(request.scale)[1] if is_number(request.scale) else 1.0
        return key if share == 1.0 else _apart(request.xp, key * share), value

    def start(self, request: Request, q: Array) -> Partial:
        xp, axes = request.xp, request.axes
        # Made from q, not from a shape: on arrays sharded over devices the sums then lie where their rows are.
        total = xp.zeros_like(q[..., :1]) if axes.D else xp.zeros((*q.shape[:-1], 1), dtype=q.dtype, **beside(q))
        if q.shape[:-3] != axes.lead:
            total = xp.broadcast_to(total, (*axes.lead, *q.shape[-3:-1], 1))
        out = total + xp.zeros((axes.E,), dtype=q.dtype, **beside(q))
        if request.sink is None:
            return Partial(total - math.inf, total, out)
        sink = request.sink
        reference = total + sink if is_number(sink) else xp.astype(sink, q.dtype, copy=False)[..., None, None] + total
        return Partial(reference, xp.exp(reference - _shift(xp, reference)), out)

    def product(self, request: Request, q: Array, k: Array) -> Array:
        xp = request.xp
        s = self.matmul_of_rows(q, k)
        for share in _shares(request.scale)[2] if is_number(request.scale) else ():
            s = _apart(xp, s) * share
        return s

    def score(self, request: Request, product: Array, bias: Array | None) -> Array:
        xp = request.xp
        s = product if request.softcap is None else _capped(xp, product, request.softcap)
        return s if bias is None else s + narrowed(xp, bias, s)

    def partial(self, part: Partial, scores: Array, v: Array, keep: Array | None) -> Partial:
        xp = namespace(scores)
        reference = xp.maximum(part.reference, xp.max(scores, axis=-1, keepdims=True))
        shift = _shift(xp, reference)
        p = xp.exp(scores - shift)
        old = xp.exp(part.reference - shift)
        total = part.total * old + xp.sum(p, axis=-1, keepdims=True)
        if keep is not None:
            p = xp.where(keep, p, 0.0)
        return Partial(reference, total, part.out * old + grouped_matmul(xp, p, v))

    def finish(self, part: Partial) -> tuple[Array, Array]:
        xp = namespace(part.total)
        empty = part.total == 0
        total = xp.where(empty, 1.0, part.total)
        lse = xp.where(empty, -math.inf, _shift(xp, part.reference) + xp.log(total))
        return part.out / total, lse[..., 0]

    def weigh(self, part: Partial, scores: Array) -> Array:
        return self.exponentials(part, scores) / namespace(scores).where(part.total == 0, 1.0, part.total)

    def exponentials(self, part: Partial, scores: Array) -> Array:
        xp = namespace(scores)
        return xp.exp(scores - _shift(xp, part.reference))

    def pull_weights(self, p: Array, of_p: Array, delta: Array) -> Array:
        return p * (of_p - delta)

    def matmul(self, a: Array, b: Array) -> Array:
        return grouped_matmul(namespace(a), a, b)

    def matmul_of_rows(self, a: Array, b: Array) -> Array:
        return grouped_matmul(namespace(a), a, turned(b))

    def matmul_of_keys(self, a: Array, b: Array, G: int) -> Array:
        xp = namespace(a)
        return xp.matmul(turned(stacked(xp, a, G)), stacked(xp, b, G))

    def pull_score(self, request: Request, product: Array, gradient: Array) -> Array:
        if request.softcap is not None:
            gradient = gradient * _cap_slope(request.xp, product, request.softcap)
        for share in _shares(request.scale)[2] if is_number(request.scale) else ():
            gradient = _apart(request.xp, gradient) * share
        return gradient

    def pull_scale(self, request: Request, of_queries: Array, of_keys: Array) -> tuple[Array, Array]:
        if not is_number(request.scale):
            return of_queries * request.xp.astype(request.scale, of_queries.dtype, copy=False), of_keys
        to_q, to_k, _ = _shares(request.scale)
        return of_queries * to_q, of_keys * to_k


class Eager(Fast):
    """The same on arrays with values: tiles are overwritten, and rows summed by a product with ones."""

    def suited(self, request: Request) -> Numerics:
        return self

    def partial(self, part: Partial, scores: Array, v: Array, keep: Array | None) -> Partial:
        xp = namespace(scores)
        reference = xp.maximum(part.reference, xp.max(scores, axis=-1, keepdims=True))
        shift = _shift(xp, reference)
        total, out = _sums(xp, xp.exp(_less(scores, shift)), v, keep)
        old = xp.exp(part.reference - shift)
        return Partial(reference, part.total * old + total, part.out * old + out)

    def exponentials(self, part: Partial, scores: Array) -> Array:
        xp = namespace(scores)
        return xp.exp(_less(scores, _shift(xp, part.reference)))

    def pull_weights(self, p: Array, of_p: Array, delta: Array) -> Array:
        gradient = _less(of_p, delta)
        gradient *= p
        return gradient


FAST = Fast()
EAGER = Eager()


def _less(x: Array, y: Array) -> Array:
    """x - y, in the place of x unless the leading axes of y are more."""
    if x.shape[:-1] != y.shape[:-1]:
        return x - y
    x -= y
    return x


def _sums(xp: Any, p: Array, v: Array, keep: Array | None) -> tuple[Array, Array]:
    """sum p over the keys, and sum of the kept p times v."""
    total = xp.matmul(p, xp.ones((p.shape[-1], 1), dtype=p.dtype, **beside(p)))
    return total, grouped_matmul(xp, p if keep is None else xp.where(keep, p, 0.0), v)


def grouped_matmul(xp: Any, a: Array, b: Array, matmul: Callable[[Array, Array], Array] | None = None) -> Array:
    """(..., H, q, x) @ (..., G, x, y): head h with group h // (H // G).

    The queries of a group are stacked, so that its keys are read once.
    """
    H, G, matmul = a.shape[-3], b.shape[-3], matmul or xp.matmul
    if H == G:
        return matmul(a, b)
    return unstacked(xp, matmul(stacked(xp, a, G), b), H)


def stacked(xp: Any, a: Array, G: int) -> Array:
    """(..., H, q, x) -> (..., G, H/G q, x)."""
    *lead, H, q, x = a.shape
    if H == G:
        return a
    # In two steps: of each JAX knows what becomes of axes that are split over devices, of both at once it does not.
    return xp.reshape(xp.reshape(a, (*lead, G, H // G, q, x)), (*lead, G, H // G * q, x))


def unstacked(xp: Any, a: Array, H: int) -> Array:
    """(..., G, H/G q, x) -> (..., H, q, x)."""
    *lead, G, rows, x = a.shape
    if H == G:
        return a
    q = rows // (H // G)
    return xp.reshape(xp.reshape(a, (*lead, G, H // G, q, x)), (*lead, H, q, x))


def _shares(scale: float) -> tuple[float, float, list[float]]:
    """Factors for q, for k, and for the scores, whose product is the scale.

    Up to 1 it goes to q. Beyond, where q * scale might overflow although the score is representable (SCORE-2), and
    where the scale itself is no normal float32, powers of two go to k and, out of all bounds, to the scores.
    """
    if scale == 0 or 2.0**-60 <= abs(scale) <= 1.0:
        return scale, 1.0, []
    mantissa, exponent = math.frexp(scale)
    to_k = max(-100, min(100, exponent // 2))
    to_q = max(-100, min(100, exponent - to_k))
    rest = exponent - to_k - to_q
    steps = [math.copysign(100, rest)] * (abs(rest) // 100) + [math.fmod(rest, 100)] * (rest % 100 != 0)
    return mantissa * 2.0**to_q, 2.0**to_k, [2.0**step for step in steps]


def is_in_queries(scale: float | Array) -> bool:
    """Whether all of the scale is multiplied into the queries."""
    return not is_number(scale) or _shares(scale)[1:] == (1.0, [])


def _apart(xp: Any, x: Array) -> Array:
    """x, kept from being multiplied by the next constant as well: XLA turns x a b into x (a b), which may overflow."""
    return xp.where(x < math.inf, x, math.inf)


def _capped(xp: Any, s: Array, cap: float | Array) -> Array:
    """cap * tanh(s / cap)."""
    if not is_number(cap):
        cap = xp.astype(cap, s.dtype, copy=False)
        return cap * xp.tanh(s / cap)
    cap = _held(cap, s)
    capped = cap * xp.tanh(s / cap)
    # Under a huge cap s / cap is subnormal for ordinary scores, which tanh leaves as they are.
    return capped if cap < 2.0**60 else xp.where(xp.abs(s) < cap * 2.0**-15, s, capped)


def _cap_slope(xp: Any, s: Array, cap: float | Array) -> Array:
    """The derivative of cap * tanh(s / cap), by exponentials: 1 - tanh^2 has no digits left near saturation."""
    cap = xp.astype(cap, s.dtype, copy=False) if not is_number(cap) else _held(cap, s)
    z = xp.exp(-2.0 * xp.abs(s / cap))
    return 4.0 * z / ((1.0 + z) * (1.0 + z))


def _held(cap: float, s: Array) -> float:
    """A cap that float32 does not hold is one that no score reaches, or one that leaves nothing of any."""
    return max(2.0**-100, min(2.0**127, cap)) if dtype_name(s) == "float32" else cap


def all_finite(x: Array) -> bool:
    """By the extremes: no array of flags is made, which in some libraries takes ten times as long."""
    xp, x = namespace(x), widened(x)
    return not math.prod(x.shape) or (math.isfinite(float(xp.max(x))) and math.isfinite(float(xp.min(x))))


def _cleaned(xp: Any, x: Array, bad: Array | None) -> Array:
    """0 for what is not finite: its rows are flagged, and 0 * NaN must not reach those that may not see it (MASK-6)."""
    x = widened(x)
    return x if bad is None else xp.where(xp.isfinite(x), x, 0.0)


def narrowed(xp: Any, bias: Array, scores: Array) -> Array:
    """A wider bias in the dtype of the scores. A finite number stays one: it must not turn into -inf, which masks."""
    if dtype_name(bias) == "float64" and dtype_name(scores) == "float32":
        largest = float(xp.finfo(xp.float32).max)
        bias = xp.where(xp.isfinite(bias), xp.clip(bias, -largest, largest), bias)
    return xp.astype(bias, scores.dtype, copy=False)


def _shift(xp: Any, reference: Array) -> Array:
    """What is subtracted from the scores: 0 in a row that has seen nothing, so that -inf - -inf does not happen."""
    return xp.where(reference == -math.inf, 0.0, reference)


def for_query_heads(xp: Any, flag: Array, H: int) -> Array:
    """(..., G, K, 1) -> (..., H, K, 1)."""
    *lead, G, K, one = flag.shape
    if G == H:
        return flag
    return xp.reshape(xp.broadcast_to(flag[..., None, :, :], (*lead, G, H // G, K, one)), (*lead, H, K, one))
