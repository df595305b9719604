"""The components by their definitions, each with its pullback: `result, pull`, from a cotangent to gradients by name.

Sums, products and chains of them are bounded by running error analysis (`values.py`). What has a bound of its own:

Norms. y = d / root and r = 1 / root, as in `oracle_layers`; r errs by r (root / least - 1) + 3 u r, `least` being the
least root. The formula dx = r (g - mean(g) - y mean(g y)) and a derivative taken step by step (through the centring,
the quotient and the root) have the same terms, the latter about twice, so each sum is allowed its error twice.

Activations move an error of their operand by their slope, at most 1.13, and that of a slope by the second derivative,
at most 1 (0.80 for the normal distribution's). Phi(x) is of relative condition x^2 for negative x: from a rounded
argument, by an exponential, it errs by (2 x^2 + 40) u, 40 for a series of 28 terms whose coefficients sum to 1.3, a
product and a quotient. A hyperbolic tangent or a logistic function errs by 4 u beside what its argument does.
ReLU's slope is not known where 0 is within the error of the operand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from . import oracle_layers, oracle_random
from .masks import Array, Dropout
from .oracle_layers import Value, add
from .oracle_pullbacks import attention
from .trials import Call
from .values import Pull, matmul, moved, scaled, size, times, to_shape, total, turned

Gradients = dict[str, Value]
Parameters = Mapping[str, Array | None]


def linear(x: Value, w: Array, b: Array | None, u: float) -> tuple[Value, Pull]:
    """x (..., N), w (N, P), b (P,)."""
    given = Value.given(w)

    def pull(g: Value) -> Gradients:
        rows = [moved(a, lambda z: z.reshape(-1, z.shape[-1])) for a in (x, g)]
        found = {"x": matmul(g, turned(given), u), "w": matmul(turned(rows[0]), rows[1], u)}
        return found if b is None else found | {"b": to_shape(g, np.shape(b), u)}

    return oracle_layers.linear(x, w, b, u), pull


def drop(x: Value, dropout: Dropout | None, u: float) -> tuple[Value, Pull]:
    """x / (1 - rate) where it is kept; 4 roundings, and that of the rate moves 1 - rate by rate / (1 - rate)."""
    if dropout is None:
        return x, lambda g: {"x": g}
    rate = dropout.rate
    keep = oracle_random.bernoulli(oracle_random.key(dropout.seed), 1 - rate, x.exact.shape)
    factor = keep / (1 - rate)

    def pull(g: Value) -> Gradients:
        of_rate = scaled(times(g, scaled(x, factor, u, 4), u), 1 / (1 - rate), u, 4)
        return {"x": scaled(g, factor, u, 4), "rate": to_shape(of_rate, (), u)}

    return scaled(x, factor, u, 4), pull


def norm(
    x: Value, gamma: Array | None, beta: Array | None, eps: float, u: float, kind: str = "layer"
) -> tuple[Value, Pull]:
    """Layer norm, or the root-mean-square norm for the kind "rms"."""
    centre = kind == "layer"
    y = oracle_layers.layer_norm(x, None, None, eps, u) if centre else oracle_layers.rms_norm(x, None, eps, u)
    r = _over_root(x, eps, u, centre)
    result = y if gamma is None else scaled(y, gamma, u)
    result = result if beta is None else add(result, Value.given(beta), u)

    def pull(g: Value) -> Gradients:
        found = {} if gamma is None else {"gamma": to_shape(times(g, y, u), np.shape(gamma), u)}
        found |= {} if beta is None else {"beta": to_shape(g, np.shape(beta), u)}
        g = g if gamma is None else scaled(g, gamma, u)
        direct = add(g, _negative(_mean(g, u)), u) if centre else g
        product = _mean(times(g, y, u), u)
        inner = times(r, add(direct, _negative(times(y, product, u)), u), u)
        found["x"] = Value(inner.exact, 2 * inner.error)
        found["eps"] = scaled(to_shape(times(times(r, r, u), times(g, y, u), u), (), u), -0.5, u)
        return found

    return result, pull


def _over_root(x: Value, eps: float, u: float, centre: bool) -> Value:
    """1 / root, where the mean square errs as in `oracle_layers`."""
    M = x.exact.shape[-1]
    mean = x.exact.mean(-1, keepdims=True) if centre else 0.0
    d, average = x.exact - mean, size(x).mean(-1, keepdims=True)
    e = x.error + (x.error.mean(-1, keepdims=True) + (M + 1) * u * average + 2 * u * np.abs(d) if centre else 0.0)
    squares = np.mean(2 * np.abs(d) * e + e * e, axis=-1, keepdims=True)
    square = np.mean(d * d, axis=-1, keepdims=True)
    off = squares + (M + 3) * u * (square + squares) + u * eps
    root = np.sqrt(square + eps)
    with np.errstate(all="ignore"):
        least = np.sqrt(np.maximum(root**2 - off, 0.0))
        return Value(1 / root, 1 / least - 1 / root + 3 * u / root)


def _mean(x: Value, u: float) -> Value:
    return scaled(total(x, (-1,), u), 1 / x.exact.shape[-1], u)


def _negative(x: Value) -> Value:
    return Value(-x.exact, x.error)


def rotate(x: Value, positions: Array, u: float, interleaved: bool = False) -> tuple[Value, Pull]:
    """Rotary with its defaults; the errors of a pair are turned with it."""
    width = x.exact.shape[-1]

    def turn(x: Value, way: int) -> Value:
        y = oracle_layers.rotary(x.exact, way * positions, 10000.0, width, interleaved, u)
        pairs = x.error.reshape(*x.error.shape[:-1], *((-1, 2) if interleaved else (2, -1)))
        both = np.broadcast_to(pairs.sum(-1 if interleaved else -2, keepdims=True), pairs.shape).reshape(x.error.shape)
        return Value(y.exact, y.error + both)

    return turn(x, 1), lambda g: {"x": turn(g, -1)}


def _relu(x: Array, u: float) -> tuple[Array, Array, Array, Array]:
    return np.maximum(x, 0.0), np.zeros_like(x), (x > 0) * 1.0, np.zeros_like(x)


def _gelu(x: Array, u: float) -> tuple[Array, Array, Array, Array]:
    phi, own = np.vectorize(lambda z: 0.5 * math.erfc(-z / math.sqrt(2)), otypes=[float]), (2 * x * x + 40) * u
    density = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    p = phi(x)
    return x * p, own * np.abs(x) * p, p + x * density, own * (p + np.abs(x) * density)


def _gelu_tanh(x: Array, u: float) -> tuple[Array, Array, Array, Array]:
    root = math.sqrt(2 / math.pi)
    z, slope = root * (x + 0.044715 * x**3), root * (1 + 3 * 0.044715 * x * x)
    t = np.tanh(z)
    off = 4 * u + 6 * u * np.abs(z) * (1 - t * t)
    of_square = 2 * np.abs(t) * off + off * off + 2 * u
    y, y_error = 0.5 * x * (1 + t), 0.5 * np.abs(x) * (off + 4 * u * (1 + np.abs(t)))
    d = 0.5 * (1 + t + x * (1 - t * t) * slope)
    inner = np.abs(x) * slope * (of_square + 8 * u * (1 - t * t))
    return y, y_error, d, 0.5 * (off + inner + 4 * u * (1 + np.abs(t) + np.abs(x) * (1 - t * t) * slope))


def _silu(x: Array, u: float) -> tuple[Array, Array, Array, Array]:
    s = np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x)))
    rest = np.exp(np.minimum(-x, 0)) / (1 + np.exp(-np.abs(x)))
    sizes = s + np.abs(x) * s * rest
    return x * s, 8 * u * np.abs(x) * s, s + x * s * rest, 16 * u * sizes


_ACTIVATIONS: Mapping[str, Callable[[Array, float], tuple[Array, Array, Array, Array]]] = {
    "relu": _relu, "gelu": _gelu, "gelu_tanh": _gelu_tanh, "silu": _silu,
}  # fmt: skip


def activation(name: str, x: Value, u: float) -> tuple[Value, Pull]:
    """One of the four, with its slope."""
    y, own, slope, of_slope = _ACTIVATIONS[name](x.exact, u)
    if name == "relu":
        of_slope = (np.abs(x.exact) <= x.error) & (x.error > 0)
    found = Value(slope, of_slope + (0.0 if name == "relu" else x.error))
    return Value(y, own + 1.13 * x.error), lambda g: {"x": times(g, found, u)}


def feed_forward(params: Parameters, x: Value, name: str, u: float) -> tuple[Value, Pull]:
    """activation(x W_in + b_in) W_out + b_out, or with the activation on a gate of its own."""
    hidden, pull_hidden = linear(x, params["w_in"], params["b_in"], u)
    gated = params.get("w_gate") is not None
    if gated:
        before, pull_gate = linear(x, params["w_gate"], None, u)
        gate, pull_activation = activation(name, before, u)
        inner = times(gate, hidden, u)
    else:
        inner, pull_activation = activation(name, hidden, u)
    y, pull_out = linear(inner, params["w_out"], params["b_out"], u)

    def pull(g: Value) -> Gradients:
        out = pull_out(g)
        found = {"w_out": out["w"], "b_out": out.get("b")}
        of_hidden = times(out["x"], gate, u) if gated else pull_activation(out["x"])["x"]
        into = pull_hidden(of_hidden)
        found |= {"w_in": into["w"], "b_in": into.get("b"), "x": into["x"]}
        if gated:
            by_gate = pull_gate(pull_activation(times(out["x"], hidden, u))["x"])
            found |= {"w_gate": by_gate["w"], "x": add(into["x"], by_gate["x"], u)}
        return {name: value for name, value in found.items() if value is not None}

    return y, pull


def multi_head(
    params: Parameters, x: Value, context: Value | None, call: Call, u: float, rotary: bool = False
) -> dict[str, tuple[Value, Pull]]:
    """Multi-head attention, its heads and its weights; `call` brings the options of attention."""
    source = x if context is None else context
    inputs = {"q": x, "k": source, "v": source}
    made = {n: _into_heads(inputs[n], params[f"w{n}"], params[f"b{n}"], u) for n in "qkv"}
    rows = {n: np.arange(made[n][0].exact.shape[-2]) for n in "qk"}
    turns = {n: rotate(made[n][0], rows[n], u) if rotary else (made[n][0], None) for n in "qk"}
    attended = attention(call, turns["q"][0], turns["k"][0], made["v"][0])
    joined = moved(attended.out, lambda a: _joined(np.moveaxis(a, -3, -2)))
    H, E, M = np.shape(params["wo"])
    y, pull_out = linear(joined, np.reshape(params["wo"], (H * E, M)), params["bo"], u)

    def of_heads(found: Gradients) -> Gradients:
        gradients: Gradients = {}
        for n in "qkv":
            if n not in found:
                continue
            turn = turns[n][1] if n in turns else None
            of_projection = found[n] if turn is None else turn(found[n])["x"]
            part = made[n][1](of_projection)
            gradients |= {f"{kind}{n}": value for kind, value in part.items() if kind != "x"}
            name = "x" if n == "q" or context is None else "context"
            gradients[name] = add(gradients[name], part["x"], u) if name in gradients else part["x"]
        return gradients | {n: value for n, value in found.items() if n not in "qkv"}

    def pull(g: Value) -> Gradients:
        out = pull_out(g)
        of_joined = moved(out["x"], lambda a: np.moveaxis(a.reshape(*a.shape[:-1], H, E), -2, -3))
        own = {"wo": moved(out["w"], lambda a: a.reshape(H, E, M))} | ({"bo": out["b"]} if "b" in out else {})
        return of_heads(attended.pull(of_joined)) | own

    return {
        "y": (y, pull),
        "heads": (attended.out, lambda g: of_heads(attended.pull(g))),
        "weights": (attended.weights, lambda g: of_heads(attended.pull_weights(g))),
    }


def _into_heads(x: Value, w: Array, b: Array | None, u: float) -> tuple[Value, Pull]:
    """(..., Q, M) by (M, H, D) -> (..., H, Q, D)."""
    M, H, D = np.shape(w)
    y, pull_flat = linear(x, np.reshape(w, (M, H * D)), None if b is None else np.reshape(b, -1), u)

    def pull(g: Value) -> Gradients:
        found = pull_flat(moved(g, lambda a: _joined(np.moveaxis(a, -3, -2))))
        shapes = {"x": x.exact.shape, "w": (M, H, D), "b": (H, D)}
        return {n: Value(value.exact.reshape(shapes[n]), value.error.reshape(shapes[n])) for n, value in found.items()}

    return moved(y, lambda a: np.moveaxis(a.reshape(*a.shape[:-1], H, D), -2, -3)), pull


def _joined(x: Array) -> Array:
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])
