"""The gradients of attention for every array that it is given, with the bounds of their errors.

Beside `oracle_gradients`, whose letters these are (p, f, a, delta, ds; W and B, the errors of weights and output):
operands may have errors of their own, as in a layer, and bias, sink, scale, softcap and rate are operands too.

    dbias = ds     dl = ds sech(l / c)^2, l = scale q . k     dscale = sum dl (q . k)     drate = sum g . o / (1 - rate)
    dc = sum ds (tanh(l / c) - l / c sech(l / c)^2)           dsink = sum_i p_sink (h_i - delta_i)

The slope of the softcap keeps its relative accuracy near saturation: sech(x)^2 = 4 z / (1 + z)^2 for z = exp(-2 |x|)
errs by what x errs by, twice, and by 8 u. (1 - tanh(x)^2 errs by 4 u absolutely, and is all error from |x| = 8 on.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from . import bounds, oracle
from .masks import Array
from .oracle_layers import Value, add
from .trials import Call
from .values import matmul, moved, scaled, size, times, to_shape, total, turned, unit


@dataclass(frozen=True, eq=False)
class Attended:
    """Results of attention, and the way back. Axes (..., H, Q, E), (..., H, Q), (..., H, Q, K)."""

    call: Call
    exact: oracle.Exact
    q: Value
    k: Value
    v: Value
    slack: bounds.Slack

    @property
    def out(self) -> Value:
        """The output, before it is rounded to a half type."""
        return Value(self.exact.out, bounds.out(self.exact, bounds.inside(self.call.dtype), slack=self.slack))

    @property
    def lse(self) -> Value:
        """Logarithms of the sums."""
        return Value(self.exact.lse, bounds.lse(self.exact, self.call.dtype, self.slack))

    @property
    def weights(self) -> Value:
        """Before dropout."""
        return Value(self.exact.weights, bounds.weights(self.exact, bounds.inside(self.call.dtype), self.slack))

    def pull(self, g: Value, h: Value | None = None) -> dict[str, Value]:
        """The gradients for cotangents g of the output and h of lse, by the operand's name; bias as (..., H, Q, K)."""
        u, f = unit(self.call.dtype), self.exact.factors
        p, out = self.weights, self.out
        a = moved(matmul(g, turned(self._for_query_heads(self.v)), u), lambda x: f * x)
        a = Value(a.exact, a.error + 2 * u * np.abs(a.exact))
        of_row = total(times(g, out, u), (-1,), u)
        over_keys = total(times(p, a, u), (-1,), u)
        delta = Value(of_row.exact, of_row.error + over_keys.error)
        found = self._of_scores(a, delta, Value.given(0.0) if h is None else moved(h, lambda x: x[..., None]))
        kept = scaled(p, f, u, 2)
        found["v"] = self._of_keys(matmul(turned(kept), g, u))
        if self.call.dropout is not None:
            found["rate"] = _whole(scaled(of_row, 1 / (1 - self.call.dropout.rate), u, 3), u)
        return found

    def pull_weights(self, g: Value) -> dict[str, Value]:
        """The gradients for a cotangent of the weights."""
        u = unit(self.call.dtype)
        return self._of_scores(g, total(times(self.weights, g, u), (-1,), u), Value.given(0.0))

    def _of_scores(self, a: Value, delta: Value, h: Value) -> dict[str, Value]:
        call, exact, u = self.call, self.exact, unit(self.call.dtype)
        rest = add(h, Value(-delta.exact, delta.error), u)
        least = bounds.LEAST[bounds.inside(call.dtype)]
        ds = times(self.weights, add(a, rest, u), u)
        ds = Value(ds.exact, np.where(exact.visible, ds.error + least, 0.0))
        found = {"bias": ds}
        if call.sink is not None:
            found["sink"] = self._of_sink(rest)
        linear = Value(exact.linear, np.where(exact.visible, self._linear_error(u), 0.0))
        if call.softcap is not None:
            slope, of_cap = _of_cap(linear, call.softcap, u)
            found["softcap"] = _whole(times(ds, of_cap, u), u)
            ds = times(ds, Value(slope.exact, slope.error + least), u)
        scale = self._scale()
        products = scaled(linear, 1 / scale if scale else 0.0, u)
        magnitude = exact.magnitude / abs(scale) if scale else np.zeros_like(exact.magnitude)
        # Summed over the keys first, then with q: the dot products are rounded among the rest.
        of_scale = times(ds, products, u)
        everything = ds.exact.size * max(1, exact.width)
        found["scale"] = _whole(Value(of_scale.exact, of_scale.error + everything * u * size(ds) * magnitude), u)
        found["q"] = scaled(matmul(ds, self._for_query_heads(self.k), u), scale, u, 2)
        found["k"] = self._of_keys(scaled(matmul(turned(ds), self.q, u), scale, u, 2))
        return found

    def _of_sink(self, rest: Value) -> Value:
        """p_sink (h - delta), summed over the queries."""
        call, u = self.call, unit(self.call.dtype)
        distance = np.asarray(call.sink, np.float64)[..., None] - self.exact.lse
        off = self.lse.error + 2 * u * np.abs(distance)
        p = np.exp(distance)
        own = Value(p, p * (np.expm1(off) + 8 * u) + bounds.LEAST[bounds.inside(call.dtype)])
        each = total(times(own, moved(rest, lambda x: x[..., 0]), u), (-1,), u)
        return to_shape(moved(each, lambda x: x[..., 0]), np.shape(call.sink), u)

    def _linear_error(self, u: float) -> Array:
        """Of the score before the softcap."""
        return (self.exact.width + 2) * u * self.exact.magnitude + self.slack.score

    def _scale(self) -> float:
        return self.exact.width**-0.5 if self.call.scale is None else self.call.scale

    def _for_query_heads(self, x: Value) -> Value:
        H, G = self.q.exact.shape[-3], x.exact.shape[-3]
        return moved(x, lambda a: np.repeat(a, H // G, axis=-3))

    def _of_keys(self, x: Value) -> Value:
        """The sum over the query heads that share a key head."""
        G = self.k.exact.shape[-3]
        *lead, H, K, D = x.exact.shape
        grouped = moved(x, lambda a: a.reshape(*lead, G, H // G, K, D))
        return moved(total(grouped, (-3,), unit(self.call.dtype)), lambda a: a[..., 0, :, :])


def of_arrays(call: Call, terms: Array) -> Attended:
    """The call itself, any rank; `terms` are the magnitudes of all the terms of its bias, which is their sum.

    A term is made with one rounding, and added with one.
    """
    q, k, v = (Value.given(x if x.ndim > 2 else x[None]) for x in (call.q, call.k, call.v))
    return attention(call, q, k, v, 3 * unit(call.dtype) * terms)


def attention(call: Call, q: Value, k: Value, v: Value, off: Array | float = 0.0) -> Attended:
    """Attention of these operands, rank 3 or more, with the options of the call, whose scores are off by `off`.

    Errors of q and k reach the scores as |scale| (|dq| |k| + |q| |dk| + |dq| |dk|), those of v the output.
    """
    exact = oracle.attention(call.but(q=q.exact, k=k.exact, v=v.exact))
    scale = exact.width**-0.5 if call.scale is None else call.scale
    repeats = q.exact.shape[-3] // k.exact.shape[-3]
    wide = turned(moved(k, lambda a: np.repeat(a, repeats, axis=-3)))
    score = abs(scale) * (q.error @ size(wide) + np.abs(q.exact) @ wide.error)
    return Attended(call, exact, q, k, v, bounds.Slack(score + off, np.repeat(v.error, repeats, axis=-3)))


def _of_cap(linear: Value, cap: float, u: float) -> tuple[Value, Value]:
    """sech(x)^2, and tanh(x) - x sech(x)^2, for x = l / cap."""
    x = linear.exact / cap
    off = linear.error / cap + 2 * u * np.abs(x)
    z = np.exp(-2 * np.abs(x))
    slope = 4 * z / (1 + z) ** 2
    of_slope = slope * np.expm1(2 * off + 8 * u)
    of_tanh = (slope + of_slope) * off + 3 * u * np.abs(np.tanh(x))
    of_product = np.abs(x) * of_slope + off * (slope + of_slope) + 2 * u * np.abs(x) * slope
    return Value(slope, of_slope), Value(np.tanh(x) - x * slope, of_tanh + of_product + u * np.abs(x))


def _whole(x: Value, u: float) -> Value:
    """The sum of everything, 0-d."""
    return to_shape(x, (), u)
