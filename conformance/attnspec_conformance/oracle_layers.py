"""Norms, linear maps, multi-head attention and rotation by their definitions, and what their bounds are made of.

Plain loops over Python numbers. A `Value` carries the exact numbers and how far from them a correct float32 (or
wider) implementation may be, so that a composition is bounded by composing: every function takes values with
errors and returns one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import mpmath
import numpy as np

from . import bounds, oracle
from .masks import Array
from .trials import Call


@dataclass(frozen=True, eq=False)
class Value:
    """Exact numbers and the bound of the error that they may have been computed with."""

    exact: Array
    error: Array

    @classmethod
    def given(cls, x: Array) -> Value:
        """An input: it has no error."""
        exact = np.asarray(x).astype(np.float64)
        return cls(exact, np.zeros(exact.shape))

    def stored(self, dtype: str) -> Value:
        """Rounded to the dtype, where that is a half type."""
        return Value(self.exact, bounds.stored(self.exact, self.error, dtype))


def add(x: Value, y: Value, u: float) -> Value:
    """x + y."""
    total = x.exact + y.exact
    return Value(total, x.error + y.error + u * (np.abs(total) + x.error + y.error))


def linear(x: Value, w: Array, b: Array | None, u: float) -> Value:
    """(..., N) by (N, P), plus b: n u sum |x| |w| for the product, the error of x carried through, one addition."""
    w = np.asarray(w).astype(np.float64)
    rows = x.exact.reshape(-1, w.shape[0])
    exact = np.array([[math.fsum(map(_product, row, column)) for column in w.T] for row in rows])
    exact = exact.reshape(*x.exact.shape[:-1], w.shape[1])
    error = w.shape[0] * u * ((np.abs(x.exact) + x.error) @ np.abs(w)) + x.error @ np.abs(w)
    y = Value(exact, error)
    return y if b is None else add(y, Value.given(b), u)


def layer_norm(x: Value, gamma: Array | None, beta: Array | None, eps: float, u: float) -> Value:
    """(x - mean) / sqrt(var + eps) * gamma + beta.

    The mean of M terms errs by at most M u mean|x|, so a centred entry by e = (M + 1) u mean|x| + u |d| (plus the
    error of x and its mean); the variance then by 2 mean(|d| e) + mean(e^2) + (M + 3) u (var + mean(e^2) ...), and
    d / sqrt(var + eps) by e / sigma + |d| / sigma * (sigma / sqrt(sigma^2 - dvar) - 1) + 5u |d| / sigma.
    """
    M = x.exact.shape[-1]
    mean = _row(x.exact, lambda row: math.fsum(row) / M)
    d = x.exact - mean
    variance = _row(d, lambda row: math.fsum(v * v for v in row) / M)
    sigma = np.sqrt(variance + eps)
    average = np.mean(np.abs(x.exact) + x.error, axis=-1, keepdims=True)
    e = x.error + x.error.mean(-1, keepdims=True) + (M + 1) * u * average + 2 * u * np.abs(d)
    squares = np.mean(2 * np.abs(d) * e + e * e, axis=-1, keepdims=True)
    off = squares + (M + 3) * u * (variance + squares) + u * eps
    return _scaled(d, e, sigma, off, gamma, beta, u)


def rms_norm(x: Value, gamma: Array | None, eps: float, u: float) -> Value:
    """x / sqrt(mean(x^2) + eps) * gamma, bounded as in `layer_norm` with nothing taken off."""
    M = x.exact.shape[-1]
    square = _row(x.exact, lambda row: math.fsum(v * v for v in row) / M)
    squares = np.mean(2 * np.abs(x.exact) * x.error + x.error**2, axis=-1, keepdims=True)
    off = squares + (M + 3) * u * (square + squares) + u * eps
    return _scaled(x.exact, x.error, np.sqrt(square + eps), off, gamma, None, u)


def _scaled(d: Array, e: Array, sigma: Array, off: Array, gamma: Array | None, beta: Array | None, u: float) -> Value:
    with np.errstate(all="ignore"):
        least = np.sqrt(np.maximum(sigma**2 - off, 0.0))
        grown = np.where(d == 0, 0.0, np.abs(d) / least - np.abs(d) / sigma)
        y = np.where(d == 0, 0.0, d / sigma)
        error = np.where(e == 0, 0.0, e / least) + grown + 5 * u * np.abs(y)
    g = np.ones(d.shape[-1]) if gamma is None else np.asarray(gamma).astype(np.float64)
    y, error = y * g, error * np.abs(g) + 2 * u * np.abs(y * g)
    return Value(y, error) if beta is None else add(Value(y, error), Value.given(beta), u)


def multi_head(params: dict[str, Array | None], x: Value, context: Value, call: Call, u: float) -> dict[str, Value]:
    """MultiHead(x): heads, weights and output. `call` brings the options of attention; its arrays are replaced.

    wq (M, H, D), wk (C, G, D), wv (C, G, E), wo (H, E, M) and biases; errors of q and k reach the scores as
    |scale| (|dq| |k| + |q| |dk| + |dq| |dk|), those of v the output as sum_j p_j |dv_j|.
    """
    q, k, v = (
        _heads(inputs, params[f"w{name}"], params[f"b{name}"], u)
        for name, inputs in (("q", x), ("k", context), ("v", context))
    )
    H, G = q.exact.shape[-3], k.exact.shape[-3]
    asked = call.but(q=q.exact, k=k.exact, v=v.exact, want="weights")
    exact = oracle.attention(asked)
    scale = call.scale if call.scale is not None else q.exact.shape[-1] ** -0.5
    k_exact, k_error = (np.swapaxes(np.repeat(a, H // G, axis=-3), -1, -2) for a in (k.exact, k.error))
    score = abs(scale) * (
        q.error @ np.abs(k_exact) + np.abs(q.exact) @ k_error + q.error @ k_error
    )  # fmt: skip
    slack = bounds.Slack(score, np.repeat(v.error, H // G, axis=-3))
    dtype = "float32" if u == bounds.UNIT["float32"] else "float64"
    heads = Value(exact.out, bounds.out(exact, dtype, slack=slack))
    weights = Value(exact.weights, bounds.weights(exact, dtype, slack))
    wo = np.asarray(params["wo"])
    joined = Value(*(_joined(np.moveaxis(a, -3, -2)) for a in (heads.exact, heads.error)))
    return {
        "heads": heads,
        "weights": weights,
        "y": linear(joined, wo.reshape(-1, wo.shape[-1]), params["bo"], u),
    }


def feed_forward(params: dict[str, Array], x: Value, u: float) -> Value:
    """max(x W_in + b_in, 0) W_out + b_out; the maximum rounds nothing and never moves apart what it is given."""
    hidden = linear(x, params["w_in"], params["b_in"], u)
    return linear(Value(np.maximum(hidden.exact, 0.0), hidden.error), params["w_out"], params["b_out"], u)


def layer(
    attention: dict[str, Array | None],
    feed: dict[str, Array],
    norm: tuple[Array, Array],
    x: Value,
    call: Call,
    u: float,
) -> dict[str, Value]:
    """A Transformer layer in the two orders, with one norm (gamma, beta) at both places."""

    def attended(h: Value) -> Value:
        return multi_head(attention, h, h, call, u)["y"]

    def normed(h: Value) -> Value:
        return layer_norm(h, *norm, 1e-5, u)

    post = normed(add(x, attended(x), u))
    pre = add(x, attended(normed(x)), u)
    return {
        "post": normed(add(post, feed_forward(feed, post, u), u)),
        "pre": add(pre, feed_forward(feed, normed(pre), u), u),
    }


def rotary(x: Array, positions: Array, base: float, width: int, interleaved: bool, u: float) -> Value:
    """Turn pairs of components by position * base**(-2 n / width).

    Whatever the position, the angle is a sum of six exact pieces within half a turn (a position and a frequency have
    24 and 36 bits, in digits of 12), which rounds by (1/2 + 1 + ... + 3) u of a turn at most; 2 pi and the product
    with it round once each on an angle within pi; cos and sin are off by 2 u, the products and their sum by 2 u.
    """
    y, error = np.array(x, np.float64), np.zeros(x.shape)
    unit = (2 * math.pi * 10.5 + 2 * math.pi + 4) * u
    with mpmath.workdps(40):
        for at in np.ndindex(x.shape[:-1]):
            for n in range(width // 2):
                a, b = (2 * n, 2 * n + 1) if interleaved else (n, n + width // 2)
                angle = int(positions[at[-1]]) * mpmath.mpf(base) ** (mpmath.mpf(-2 * n) / width)
                cos, sin = mpmath.cos(angle), mpmath.sin(angle)
                p, q = float(x[(*at, a)]), float(x[(*at, b)])
                y[(*at, a)], y[(*at, b)] = p * cos - q * sin, q * cos + p * sin
                error[(*at, a)] = error[(*at, b)] = unit * math.hypot(p, q)
    return Value(y, error)


def _heads(x: Value, w: Array | None, b: Array | None, u: float) -> Value:
    """(..., Q, M) by (M, H, D) -> (..., H, Q, D)."""
    w = np.asarray(w)
    y = linear(x, w.reshape(w.shape[0], -1), None if b is None else np.asarray(b).reshape(-1), u)
    shape = (*y.exact.shape[:-1], *w.shape[1:])
    return Value(*(np.moveaxis(a.reshape(shape), -2, -3) for a in (y.exact, y.error)))


def _joined(heads: Array) -> Array:
    return heads.reshape(*heads.shape[:-2], heads.shape[-2] * heads.shape[-1])


def _row(x: Array, of: Callable[[list[float]], float]) -> Array:
    rows = [of(list(map(float, row))) for row in x.reshape(-1, x.shape[-1])]
    return np.array(rows).reshape(*x.shape[:-1], 1)


def _product(a: float, b: float) -> float:
    return float(a) * float(b)
