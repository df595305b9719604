"""The numerics of attention in reproducible mode for float32 and half precision: chunks of keys, each summed exactly.

Keys are taken in chunks of 256, counted from the first one. Within a chunk all sums are sums of integers (`slices`,
`tiles`); chunks are added one after the other, in their order. So neither the size of a tile, nor that of a batch, nor
what is masked can change a bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from .._compat import Array, Namespace, cast, namespace, turned, unwrapped
from ..fast import for_query_heads, grouped_matmul, stacked
from ..host import beside, host_of
from ..numerics import Numerics, Operands, Partial
from ..request import Request
from ..shapes import Span, is_number
from ..struct import arrays_in
from . import elementary, slices
from .arrays import NUMERICS, Held, Identical, Numbers
from .grid import settled
from .steady import CHUNK, STEADY, Steady
from .tiles import BROKEN, LOG_UNIT, NAT, NOWHERE, OCTAVE, Sums, Values, added, chunk, merged, weights


def k_slices(k: Identical) -> tuple[Array, ...]:
    """What attention keeps of each row of k: arrays (..., G, K, any), which a cache can hold in `k.slices`."""
    return slices.k_slices(k.value, eager=host_of(k.value).concrete(k.value))


def v_slices(v: Identical) -> tuple[Array, ...]:
    """The same of v."""
    return slices.v_slices(v.value, eager=host_of(v.value).concrete(v.value))


@dataclass(frozen=True)
class Chunked(Steady):
    """Weights as integers relative to the maximum of their chunk, and exact sums of their products.

    Scores are in units of their own, which `plain` knows nothing of; a `Partial` has its reference in octaves and its
    total in units of the weights. Weights and gradients are those of `plain`.
    """

    # Half-precision q and k fit their slices, and would not when multiplied by the scale; scores of float32 have many
    # digits either way.
    scaled_last: bool
    eager: bool = False

    whole = False

    @property
    def plain(self) -> Numerics:
        return STEADY

    def tile(self, rows: int, columns: int) -> tuple[int, int]:
        return rows, CHUNK * max(1, min(columns // CHUNK, _MANY))

    def suited(self, request: Request) -> Numerics:
        watched = request.portable or not request.host.concrete(*arrays_in("", request).values())
        return self if watched else replace(self, eager=True)

    def prepare(self, request: Request) -> Operands:
        xp = namespace(_numbers(request.q).value)
        q, bad_q = slices.cleaned(_numbers(request.q).value, eager=self.eager)
        k, bad_k = _held(request.k, "k") or k_slices(_numbers(request.k))
        v, powers, bad_v = _held(request.v, "v") or v_slices(_numbers(request.v))
        by_key = (turned(for_query_heads(xp, bad, request.axes.H)) for bad in (bad_k, bad_v))
        flags = [None if self.eager and not bool(xp.any(bad)) else bad for bad in (bad_q, *by_key)]
        flat = self.eager and request.axes.K > 0 and bool(xp.all(powers == powers[..., :1, :]))
        if not self.scaled_last:
            q = q * _unit(request.scale)
            q = q if self.eager else settled(q)
        q = slices.q_slice(q, eager=self.eager)
        near = self.eager and _near(request, q, k, _unit(request.scale) if self.scaled_last else 1.0)
        return Operands(q, k, Values(v, powers, flat, near), *flags)

    def queries(self, request: Request, operands: Operands, q: Span) -> Array:
        return q.of(operands.q, -2)

    def keys(self, request: Request, operands: Operands, k: Span) -> tuple[Array, Values]:
        v: Values = operands.v
        return k.of(operands.k, -2), v._replace(slices=k.of(v.slices, -2), powers=k.of(v.powers, -2))

    def start(self, request: Request, q: Array) -> Partial:
        xp, axes = namespace(q), request.axes
        # Made from q, not from a shape: on arrays sharded over devices the sums then lie where their rows are.
        nothing = xp.sum(xp.zeros_like(q), axis=-1, keepdims=True)
        nothing = xp.broadcast_to(nothing, (*axes.lead, *nothing.shape[-3:]))
        reference, total = nothing + NOWHERE, nothing
        if request.sink is not None:
            sink = request.sink if is_number(request.sink) else unwrapped(request.sink)[..., None, None]
            reference, _, total = weights(xp, _in_units(nothing + sink), eager=False)
        out = nothing + xp.zeros((axes.E,), dtype=nothing.dtype, **beside(nothing))
        return _wrapped(Sums(reference, total, out))

    def product(self, request: Request, q: Array, k: Array) -> Array:
        t = grouped_matmul(namespace(q), q, turned(k))
        if not self.scaled_last:
            return _number(t)
        t = slices.scaled(t, _unit(request.scale), eager=self.eager)
        return _number(t if self.eager else settled(t))

    def score(self, request: Request, product: Array, bias: Array | None) -> Array:
        t = product.value
        if request.softcap is not None:
            t = _capped(t, request.softcap)
        if bias is not None:
            t = t + _in_units(cast(unwrapped(bias), t.dtype))
        return _number(t)

    def partial(self, part: Partial, scores: Array, v: Values, keep: Array | None) -> Partial:
        xp, G, K = namespace(scores.value), v.slices.shape[-3], scores.shape[-1]
        so_far = Sums(*(stacked(xp, x.value, G) for x in part))
        t, keep = (None if x is None else stacked(xp, x, G) for x in (scores.value, keep))
        for width, start, stop in ((CHUNK, 0, K - K % CHUNK), (K % CHUNK, K - K % CHUNK, K)):
            if start < stop:
                tile, kept = (None if x is None else _by_chunk(xp, x[..., start:stop], width) for x in (t, keep))
                rows, powers = (_rows_by_chunk(xp, x[..., start:stop, :], width) for x in (v.slices, v.powers))
                values = v._replace(slices=rows, powers=powers)
                sums, power = chunk(xp, tile, kept, values, eager=self.eager)
                so_far = merged(xp, so_far, sums, power, eager=self.eager)
        return _wrapped(Sums(*(xp.reshape(x, old.shape) for x, old in zip(so_far, part, strict=True))))

    def merge(self, one: Partial, other: Partial) -> Partial:
        xp = namespace(one.total.value)
        return _wrapped(added(xp, *(Sums(*(x.value for x in part)) for part in (one, other))))

    def finish(self, part: Partial) -> tuple[Array, Array]:
        reference, total, out = (x.value for x in part)
        xp = namespace(total)
        empty = total == 0
        total = xp.where(empty, 1.0, total)
        out = out * (1.0 / total)
        log = settled(reference * _LN2) + (settled(elementary.log(total)) - LOG_UNIT)
        lse = xp.where(empty, -math.inf, log)
        return _number(xp.where(xp.abs(out) < _TINY, 0.0, out)), Identical(lse[..., 0], "float32")


NUMERICS.update(float32=Chunked(False), float16=Chunked(True), bfloat16=Chunked(True))

_LN2 = 0.6931471805599453
_TINY = 2.0**-126  # results below it count as 0, as numbers of the inputs do
_MANY = 64  # chunks of a tile: in a recorded program they are added one by one


def _held(x: Any, role: str) -> tuple[Array, ...] | None:
    """The slices that come with the rows of a cache, if they were made for that."""
    return x.slices if isinstance(x, Held) and x.role == role else None


def _numbers(x: Any) -> Any:
    """An array that was no operand, such as one of a closure, as one of numbers."""
    return x if isinstance(x, Numbers) else Identical.of(x)


def _number(x: Array) -> Identical:
    return Identical(x, "float64")


def _wrapped(sums: Sums) -> Partial:
    return Partial(*map(_number, sums))


def _near(request: Request, q: Array, k: Array, unit: Any) -> bool:
    """Whether no score is masked, and all are within 400 octaves of 0."""
    xp, axes = namespace(q), request.axes
    if request.mask is not None or request.bias is not None or axes.Q < _AMORTISED or not axes.D * axes.K:
        return False
    largest = axes.D * float(xp.max(xp.abs(q))) * float(xp.max(xp.abs(k))) * abs(float(unit))
    return largest < 400.0 * OCTAVE


_AMORTISED = 64  # with fewer queries, a pass over the keys costs more than it saves


def _unit(scale: Any) -> Any:
    """What turns a product of q and k into a score in units: scale times units.

    Out of these bounds all scores of float32 numbers are equal or an infinity of octaves apart, and within them their
    products with it are normal numbers.
    """
    if is_number(scale):
        unit = scale * NAT
        return math.copysign(min(abs(unit), 2.0**600), unit) if abs(unit) >= 2.0**-400 else 0.0
    xp, unit = namespace(scale.value), settled(scale.value * NAT)
    return xp.where(xp.abs(unit) < 2.0**-400, 0.0, xp.clip(unit, -(2.0**600), 2.0**600))


def _in_units(x: Array) -> Array:
    """Natural logarithms as scores, on a grid of 2**-46 units; `BROKEN` for +inf and NaN."""
    xp = namespace(x)
    near = xp.clip(xp.where(x < math.inf, x, 0.0), -(2.0**900), 2.0**900)
    units = xp.round(near * (NAT * 2.0**46)) * 2.0**-46
    return xp.where(x < math.inf, xp.where(x == -math.inf, x, units), BROKEN)


def _capped(t: Array, cap: Any) -> Array:
    """cap * tanh(score / cap), in units; the score itself where that is what tanh leaves of it."""
    xp = namespace(t)
    lowest, highest = 2.0**-400, 2.0**900
    cap = min(max(cap, lowest), highest) if is_number(cap) else xp.clip(cap.value, lowest, highest)
    unit = cap * NAT if is_number(cap) else settled(cap * NAT)
    ratio = xp.clip(settled(t * (1.0 / unit)), -64.0, 64.0)
    capped = xp.round(settled(elementary.tanh(ratio) * unit) * 2.0**46) * 2.0**-46
    return xp.where(xp.abs(ratio) < 2.0**-30, t, capped)


def _by_chunk(xp: Namespace, x: Array, width: int) -> Array:
    """(..., q, n width) -> (..., n, q, width)."""
    if x.shape[-1] == width:
        return x[..., None, :, :]
    return xp.moveaxis(xp.reshape(x, (*x.shape[:-1], x.shape[-1] // width, width)), -2, -3)


def _rows_by_chunk(xp: Namespace, x: Array, width: int) -> Array:
    """(..., n width, x) -> (..., n, width, x)."""
    return xp.reshape(x, (*x.shape[:-2], x.shape[-2] // width, width, x.shape[-1]))
