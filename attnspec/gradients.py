"""Vector-Jacobian products: for each component, from the cotangent of its result to the gradients of its operands.

`vjp` (`tape.py`) puts them together, for any function made of attnspec's. Those here belong to the parts that layers
are made of; attention's is the walk back over tiles (`backward.py`), rotary's stands beside it. Each takes a
component's operands, its results and their cotangents, and returns gradients by the operands' places ("0", "1", ...):
what `derivative.differentiable` asks for. The page docs/gradients.md derives them.
"""

from __future__ import annotations

import math
from typing import Any

from ._compat import Array, cast, namespace, widened
from .host import beside
from .shapes import is_number
from .special import erfc
from .tape import vjp

__all__ = [
    "cross_entropy_backward", "embed_backward", "gelu_backward", "gelu_tanh_backward", "layer_norm_backward",
    "linear_backward", "relu_backward", "rms_norm_backward", "silu_backward", "softmax_backward", "vjp",
]  # fmt: skip

Gradients = dict[str, Array]
Arrays = tuple[Array, ...]


def softmax_backward(p: Array, g: Array) -> Array:
    """ds = p (g - sum p g), over the last axis, for p = softmax(s)."""
    return p * (g - namespace(p).sum(p * g, axis=-1, keepdims=True))


def linear_backward(operands: tuple[Array, Array, Array | None, int], results: Arrays, cotangents: Arrays) -> Gradients:
    """y = x w + b: dx = g w^T, dw = x^T g, db = sum g, the axes that are contracted taken as one."""
    x, w, b, axes = operands
    xp, g = namespace(x), cotangents[0]
    rows, inner = math.prod(x.shape[: x.ndim - axes]), math.prod(w.shape[:axes])
    outer = math.prod(w.shape[axes:])
    flat_x, flat_w = xp.reshape(widened(x), (rows, inner)), xp.reshape(cast(w, g.dtype), (inner, outer))
    flat_g = xp.reshape(g, (rows, outer))
    gradients = {
        "0": xp.reshape(xp.matmul(flat_g, xp.matrix_transpose(flat_w)), x.shape),
        "1": xp.reshape(xp.matmul(xp.matrix_transpose(flat_x), flat_g), w.shape),
    }
    return gradients if b is None else gradients | {"2": xp.reshape(xp.sum(flat_g, axis=0), b.shape)}


def layer_norm_backward(operands: tuple[Array, Any], results: Arrays, cotangents: Arrays) -> Gradients:
    """y = (x - mean) / root: dx = (g - mean(g) - y mean(g y)) / root. Results are y and 1 / root."""
    xp, (y, over_root), g = namespace(results[0]), results, cotangents[0]
    centred = g - xp.mean(g, axis=-1, keepdims=True)
    return _of_norm(operands[1], y, over_root, g, centred)


def rms_norm_backward(operands: tuple[Array, Any], results: Arrays, cotangents: Arrays) -> Gradients:
    """y = x / root: dx = (g - y mean(g y)) / root. Results are y and 1 / root."""
    (y, over_root), g = results, cotangents[0]
    return _of_norm(operands[1], y, over_root, g, g)


def _of_norm(eps: float | Array, y: Array, over_root: Array, g: Array, direct: Array) -> Gradients:
    xp = namespace(y)
    gradients = {"0": over_root * (direct - y * xp.mean(g * y, axis=-1, keepdims=True))}
    if not is_number(eps):
        gradients["1"] = -0.5 * xp.sum(g * y * over_root * over_root)
    return gradients


def relu_backward(operands: tuple[Array], results: Arrays, cotangents: Arrays) -> Gradients:
    """dx = g where x > 0; 0 at 0."""
    (x,), g = operands, cotangents[0]
    return {"0": namespace(x).where(x <= 0, 0.0, g)}


def gelu_backward(operands: tuple[Array], results: Arrays, cotangents: Arrays) -> Gradients:
    """dx = g (Phi(x) + x phi(x)), with the normal distribution and its density."""
    (x,), g = operands, cotangents[0]
    density = namespace(x).exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return {"0": g * (0.5 * erfc(-x / math.sqrt(2.0)) + x * density)}


def gelu_tanh_backward(operands: tuple[Array], results: Arrays, cotangents: Arrays) -> Gradients:
    """dx = g (1 + t + x (1 - t^2) u') / 2,  t = tanh(u), u = sqrt(2/pi) (x + 0.044715 x^3)."""
    (x,), g = operands, cotangents[0]
    root = math.sqrt(2 / math.pi)
    t = namespace(x).tanh(root * (x + 0.044715 * x * x * x))
    return {"0": 0.5 * g * (1.0 + t + x * (1.0 - t * t) * (root * (1.0 + 3 * 0.044715 * x * x)))}


def silu_backward(operands: tuple[Array], results: Arrays, cotangents: Arrays) -> Gradients:
    """dx = g (s + x s (1 - s)),  s = 1 / (1 + exp(-x))."""
    (x,), g = operands, cotangents[0]
    xp = namespace(x)
    z = xp.exp(xp.where(x > 0, -x, x))
    s, rest = (xp.where(way, 1.0, z) / (1.0 + z) for way in (x > 0, x <= 0))
    return {"0": g * (s + x * s * rest)}


# The standard cannot add to chosen rows. A product with one-hot rows can, and so many entries of them exist at once.
_ONE_HOT = 2**22


def embed_backward(operands: tuple[Array, Array], results: Arrays, cotangents: Arrays) -> Gradients:
    """dtable_t = the sum of the cotangents of the rows that took t: one-hot(ids)^T g, a part of the table at a time."""
    (table, ids), g = operands, widened(cotangents[0])
    xp, V = namespace(table), table.shape[0]
    tokens = xp.arange(V, dtype=ids.dtype, **beside(ids))
    many = max(1, _ONE_HOT // max(1, ids.shape[0]))
    parts = [
        xp.matmul(cast(tokens[start : min(V, start + many), None] == ids, g.dtype), g)
        for start in range(0, max(V, 1), many)
    ]
    return {"0": parts[0] if len(parts) == 1 else xp.concat(parts, axis=0)}


def cross_entropy_backward(
    operands: tuple[Array, Array, Array | None], results: Arrays, cotangents: Arrays
) -> Gradients:
    """dlogits = g (softmax(logits) - one-hot(label)), 0 where the mask is False."""
    (logits, labels, mask), (_, lse), g = operands, results, cotangents[0][..., None]
    logits = widened(logits)
    xp = namespace(logits)
    chosen = xp.arange(logits.shape[-1], dtype=labels.dtype, **beside(labels)) == labels[..., None]
    gradient = g * (xp.exp(logits - lse[..., None]) - cast(chosen, logits.dtype))
    return {"0": gradient if mask is None else xp.where(mask[..., None], gradient, 0.0)}
