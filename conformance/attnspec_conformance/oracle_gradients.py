"""The gradients of attention by their formulas, and how far from them a correct implementation may be.

For the weights p of the oracle, the factors f of dropout, and cotangents g of the output and h of lse:

    a_ij = f_ij g_i . v_j     delta_i = g_i . o_i     ds_ij = p_ij (a_ij - delta_i + h_i)
    dq_i = scale sum_j ds_ij k_j     dk_j = scale sum_i ds_ij q_i     dv_j = sum_i f_ij p_ij g_i

p errs by W, the bound of the weights, and o by B, that of the output; a dot product of n terms by n u times the sum
of the magnitudes. So a errs by (E + 3) u f |g| . |v|, delta by |g| . B + (E + 3) u |g| . |o| where it is taken from
the output, and by sum_j (W_j + (K + 3) u p_j) |a_j| where it is summed over the keys; both are allowed together. Each
step adds its own roundings. A softcap c multiplies ds by 1 - t^2 for t = tanh(s / c), where t is off by
(1 - t^2) (D + 2) u |scale| |q| . |k| / c and 4 u for the quotient and the hyperbolic tangent. `bounds.LEAST` is lost
where subnormal numbers are flushed. Half types add the rounding of the result.

A row that sees a NaN or an infinity has NaN in dq, and so have dk and dv of the keys that it sees (MASK-7).

Forward, for tangents q', k' and v', with m_i = sum_j p_ij s'_ij:

    s' = scale (q' . k + q . k')     o'_i = sum_j f_ij (p_ij (s'_ij - m_i) v_j + p_ij v'_j)

s' errs by the two dot products; an implementation that shifts by the row's greatest score carries that score's
tangent along, so |s'| counts as |s'| + max |s'|; the quotient rule multiplies m by an output that errs by B.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from . import bounds, oracle
from .masks import Array
from .oracle_layers import Value
from .trials import Call


@dataclass(frozen=True, eq=False)
class Gradients:
    """With respect to q, k and v, in their shapes."""

    q: Value
    k: Value
    v: Value


def gradients(call: Call, g: Array, h: Array | float = 0.0) -> Gradients:
    """The gradients of sum(g out) + sum(h lse); q, k and v have all the leading axes, rank 3 or more."""
    exact = oracle.attention(call)
    spoilt = np.isnan(exact.out).any(-1)
    if spoilt.any():
        return _spoilt(call, g, h, exact.visible, spoilt)
    u, least = bounds.UNIT[bounds.inside(call.dtype)], bounds.LEAST[bounds.inside(call.dtype)]
    q, k, g = (_clean(x) for x in (call.q, call.k, g))
    (H, D), G, (K, E) = (q.shape[-3], q.shape[-1]), k.shape[-3], exact.values.shape[-2:]
    k, v = np.repeat(k, H // G, axis=-3), _clean(exact.values)
    scale = D**-0.5 if call.scale is None else call.scale
    p, f, W = exact.weights, exact.factors, bounds.weights(exact, call.dtype)
    a, a_error = f * (g @ _turned(v)), (E + 3) * u * f * (np.abs(g) @ _turned(np.abs(v)))
    delta = np.sum(g * exact.out, axis=-1, keepdims=True)
    from_out = np.abs(g) * (bounds.out(exact, call.dtype) + (E + 3) * u * np.abs(exact.out))
    from_keys = (W + (K + 3) * u * p) * np.abs(a) + p * a_error
    delta_error = from_out.sum(-1, keepdims=True) + from_keys.sum(-1, keepdims=True)
    rest = np.broadcast_to(np.asarray(h, np.float64), p.shape[:-1])[..., None]
    ds, size = p * (a - delta + rest), np.abs(a) + np.abs(delta) + np.abs(rest)
    error = (p + W) * (a_error + delta_error + 4 * u * size) + W * size + least
    if call.softcap is not None:
        t = np.tanh(exact.linear / call.softcap)
        slope = 1 - t * t
        off = slope * (D + 2) * u * exact.magnitude / call.softcap + 4 * u
        error = error * slope + (np.abs(ds) + error) * (2 * np.abs(t) * off + off * off + 4 * u)
        ds = ds * slope
    of_scores = Value(ds, np.where(exact.visible, error, 0.0))
    of_values = Value(p * f, W * f + 2 * u * p * f)
    made = (
        _product(of_scores, k, scale, u),
        _grouped(_product(_turned_value(of_scores), q, scale, u), G, u),
        _grouped(_product(_turned_value(of_values), g, 1.0, u), G, u),
    )
    return Gradients(*(value.stored(call.dtype) for value in made))


def _spoilt(call: Call, g: Array, h: Array | float, visible: Array, spoilt: Array) -> Gradients:
    """The gradients where some rows see a bad number: NaN for them and their keys, and without them for the others."""
    G = call.k.shape[-3]
    rows = np.broadcast_to(~spoilt[..., None], g.shape)
    clean = call.but(q=_clean(call.q), k=_clean(call.k), v=_clean(call.v), bias=call.bias)
    h = np.where(spoilt, 0.0, h)
    rest = gradients(clean, np.where(rows, g, 0.0), h)
    hit = (visible & spoilt[..., None]).any(-2)
    hit = hit.reshape(*hit.shape[:-2], G, hit.shape[-2] // G, hit.shape[-1]).any(-2)

    def marked(value: Value, where: Array) -> Value:
        return Value(np.where(where[..., None], np.nan, value.exact), value.error)

    return Gradients(marked(rest.q, spoilt), marked(rest.k, hit), marked(rest.v, hit))


def _clean(x: Array) -> Array:
    x = np.asarray(x, np.float64)
    return np.where(np.isfinite(x), x, 0.0)


def tangent(call: Call, moved: tuple[Array, Array, Array]) -> Value:
    """How out moves with q, k and v; a call as for `gradients`, without softcap."""
    exact = oracle.attention(call)
    u = bounds.UNIT[bounds.inside(call.dtype)]
    q, k, *changes = (np.asarray(x, np.float64) for x in (call.q, call.k, *moved))
    repeats, D, K = q.shape[-3] // k.shape[-3], q.shape[-1], k.shape[-2]
    k, v, dq, dk, dv = np.repeat(k, repeats, -3), exact.values, *changes
    dk, dv = np.repeat(dk, repeats, -3), np.repeat(dv, repeats, -3)
    scale = D**-0.5 if call.scale is None else call.scale
    p, f, W = exact.weights, exact.factors, bounds.weights(exact, call.dtype)
    ds = scale * (dq @ _turned(k) + q @ _turned(dk))
    each = (D + 3) * u * abs(scale) * (np.abs(dq) @ _turned(np.abs(k)) + np.abs(q) @ _turned(np.abs(dk)))
    size = np.where(exact.visible, np.abs(ds), 0.0)
    size = size + size.max(-1, keepdims=True, initial=0.0)
    mean = np.sum(p * ds, axis=-1, keepdims=True)
    mean_error = np.sum(W * size + p * each + (K + 3) * u * p * size, axis=-1, keepdims=True)
    moves, away = p * (ds - mean), size + np.abs(mean)
    error = np.where(exact.visible, (p + W) * (each + mean_error + 4 * u * away) + W * away, 0.0)
    of_out = bounds.out(exact, call.dtype) * np.abs(mean)
    terms = (f * p * away) @ np.abs(v) + (f * p) @ np.abs(dv)
    bound = (f * error) @ np.abs(v) + (f * W) @ np.abs(dv) + of_out + (2 * K + 6) * u * terms
    return Value((f * moves) @ v + (f * p) @ dv, bound)


def _product(x: Value, y: Array, scale: float, u: float) -> Value:
    """scale * (x @ y) for y without error."""
    n, magnitude = x.exact.shape[-1], np.abs(x.exact) + x.error
    error = x.error @ np.abs(y) + (n + 3) * u * (magnitude @ np.abs(y))
    return Value(scale * (x.exact @ y), abs(scale) * error)


def _grouped(x: Value, G: int, u: float) -> Value:
    """The sum over the query heads that share a key head."""
    *lead, H, K, D = x.exact.shape
    exact, error = (part.reshape(*lead, G, H // G, K, D) for part in (x.exact, x.error))
    rounding = (H // G) * u * (np.abs(exact) + error)
    return Value(exact.sum(-3), (error + rounding).sum(-3))


def _turned(x: Array) -> Array:
    return np.swapaxes(x, -1, -2)


def _turned_value(x: Value) -> Value:
    return Value(_turned(x.exact), _turned(x.error))
