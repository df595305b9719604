"""The position-wise feed-forward network and its activations."""

from __future__ import annotations

import math

from . import _compat, gradients
from ._compat import Array, alike, cast, widened
from .derivative import differentiable
from .errors import OptionError
from .fresh import added, by_rows, is_free
from .host import host_of
from .linear import linear
from .params import FeedForwardParams
from .shapes import expect, floating
from .special import erfc
from .struct import arrays_in


def feed_forward(params: FeedForwardParams, x: Array) -> Array:
    """activation(x W_in + b_in) W_out + b_out, or with a gate (activation(x W_gate) * (x W_in + b_in)) W_out + b_out.

    Parameters
    ----------
    params : FeedForwardParams
        `activation` is "relu", "gelu" (exact, by erf), "gelu_tanh" (the approximation of GPT-2) or "silu".
    x : floating array (..., M)

    Notes
    -----
    Sources: Vaswani et al., 2017; Hendrycks, Gimpel (GELU), 2016; Shazeer (gates), 2020.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> params = attnspec.FeedForwardParams(np.eye(2), np.eye(2), activation="relu")
    >>> attnspec.feed_forward(params, np.asarray([[-1.0, 2.0]])).tolist()
    [[0.0, 2.0]]
    """
    check_feed_forward(params, x)
    with host_of(x).scope():
        arrays = arrays_in("", params).values()
        return by_rows(lambda x: _network(params, x), x, held=(*arrays,), products=True)


def check_feed_forward(params: FeedForwardParams, x: Array) -> None:
    """Raise unless they fit together."""
    floating(x=x, w_in=params.w_in, w_out=params.w_out)
    M, F = params.w_in.shape if params.w_in.ndim == 2 else (-1, -1)
    for name, a, shape, letters in (
        ("x", x, (*x.shape[:-1], M), "(..., M)"), ("w_in", params.w_in, (M, F), "(M, F)"),
        ("w_out", params.w_out, (F, M), "(F, M)"), ("w_gate", params.w_gate, (M, F), "(M, F)"),
        ("b_in", params.b_in, (F,), "(F,)"), ("b_out", params.b_out, (M,), "(M,)"),
    ):  # fmt: skip
        expect(name, a, shape, letters)
    if params.activation not in _ACTIVATIONS:
        msg = f"activation={params.activation!r}: one of {', '.join(_ACTIVATIONS)} is needed."
        raise OptionError(msg)


def _network(params: FeedForwardParams, x: Array) -> Array:
    wide = widened(x)
    if params.w_gate is None:
        hidden = _activated(params.activation, linear(wide, params.w_in), params.b_in)
    else:
        gate = _activated(params.activation, linear(wide, params.w_gate))
        gate, hidden = alike(gate, linear(wide, params.w_in, params.b_in))
        hidden = gate * hidden
    return cast(linear(hidden, params.w_out, params.b_out), x.dtype)


def _activated(name: str, x: Array, b: Array | None = None) -> Array:
    """activation(x + b), of an x that nobody else holds."""
    activation, backward = _ACTIVATIONS[name], getattr(gradients, f"{name}_backward")
    b = None if b is None else cast(b, x.dtype)
    if is_free(x, b):
        over = _OVER.get(name, activation)
        return by_rows(lambda x: over(x if b is None else added(x, b)), x, over=True)
    x = x if b is None else added(*alike(x, b))
    return differentiable(lambda x: (activation(x[0]),), backward, (x,))[0]


def relu(x: Array) -> Array:
    """max(x, 0); NaN stays NaN, and the slope at 0 is 0."""
    return _compat.namespace(x).where(x <= 0, 0.0, x)


def gelu(x: Array) -> Array:
    """x Phi(x) = x erfc(-x / sqrt(2)) / 2, exact. float32 or float64."""
    return 0.5 * x * erfc(x * -math.sqrt(0.5))


def _gelu_over(x: Array) -> Array:
    """The bits of `gelu`, in the place of x."""
    tail = erfc(x * -math.sqrt(0.5))
    x *= 0.5
    x *= tail
    return x


def gelu_tanh(x: Array) -> Array:
    """x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2."""
    return 0.5 * x * (1.0 + _compat.namespace(x).tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def silu(x: Array) -> Array:
    """x / (1 + exp(-x)), with exponentials of negative numbers alone: neither it nor its gradient overflows."""
    xp = _compat.namespace(x)
    z = xp.exp(xp.where(x > 0, -x, x))
    return x * xp.where(x > 0, 1.0, z) / (1.0 + z)


_ACTIVATIONS = {"relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu}
_OVER = {"gelu": _gelu_over}
