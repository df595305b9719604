"""Layer normalisation and root-mean-square normalisation over the last axis."""

from __future__ import annotations

from . import _compat
from ._compat import Array, widened
from .errors import ShapeError
from .host import host_of
from .shapes import floating, number


def layer_norm(x: Array, gamma: Array | None = None, beta: Array | None = None, *, eps: float | Array = 1e-5) -> Array:
    """(x - mean) / sqrt(var + eps) * gamma + beta, over the last axis.

    mean = sum(x) / M,   var = sum((x - mean)^2) / M

    Parameters
    ----------
    x : floating array (..., M)
    gamma, beta : floating arrays (M,), optional
        Gain and offset; 1 and 0 unless given.
    eps : float >= 0 or 0-d array
        Inside the root.

    Returns
    -------
    array like `x`
        Computed in float32 or wider. A constant row gives beta exactly.

    Notes
    -----
    Clause NORM-1. The variance is the population's, of the centred values: E[x^2] - E[x]^2 would cancel for rows with a
    large mean. Textbook code with the sample's deviation, or with eps outside the root, differs.
    Source: Ba, Kiros, Hinton, 2016.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> attnspec.layer_norm(np.asarray([1.0, 2.0, 3.0])).round(3).tolist()
    [-1.225, 0.0, 1.225]
    """
    check_norm(x, eps, gamma=gamma, beta=beta)
    with host_of(x).scope():
        return _compat.namespace(x).astype(normalised(widened(x), gamma, beta, eps), x.dtype, copy=False)


def normalised(x: Array, gamma: Array | None, beta: Array | None, eps: float | Array) -> Array:
    """`layer_norm` of a float32 or float64 array, without a last rounding."""
    xp = _compat.namespace(x)
    d = x - xp.mean(x, axis=-1, keepdims=True)
    # The rounding error of a large mean is common to the row. Taking off the first entry, then what is left of the
    # mean, removes it, and leaves exact zeros of a constant row; all of it is linear, so gradients are right too.
    d = d - d[..., :1]
    d = d - xp.mean(d, axis=-1, keepdims=True)
    y = d / xp.sqrt(xp.mean(d * d, axis=-1, keepdims=True) + _operand(eps, x))
    return _affine(y, gamma, beta)


def rms_norm(x: Array, gamma: Array | None = None, *, eps: float | Array = 1e-5) -> Array:
    """x / sqrt(mean(x^2) + eps) * gamma, over the last axis.

    Parameters
    ----------
    x : floating array (..., M)
    gamma : floating array (M,), optional
    eps : float >= 0 or 0-d array
        Inside the root.

    Returns
    -------
    array like `x`
        Computed in float32 or wider: squares of float16 overflow from 256 on.

    Notes
    -----
    Source: Zhang, Sennrich, 2019.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> attnspec.rms_norm(np.asarray([3.0, 4.0]), eps=0.0).round(3).tolist()
    [0.849, 1.131]
    """
    check_norm(x, eps, gamma=gamma)
    with host_of(x).scope():
        xp = _compat.namespace(x)
        wide = widened(x)
        y = wide / xp.sqrt(xp.mean(wide * wide, axis=-1, keepdims=True) + _operand(eps, wide))
        return xp.astype(_affine(y, gamma, None), x.dtype, copy=False)


def _affine(y: Array, gamma: Array | None, beta: Array | None) -> Array:
    xp = _compat.namespace(y)
    y = y if gamma is None else y * xp.astype(gamma, y.dtype, copy=False)
    return y if beta is None else y + xp.astype(beta, y.dtype, copy=False)


def _operand(eps: float | Array, like: Array) -> float | Array:
    return eps if isinstance(eps, float | int) else _compat.namespace(like).astype(eps, like.dtype, copy=False)


def check_norm(x: Array, eps: float | Array, **affine: Array | None) -> None:
    """Raise unless x, eps, gamma and beta fit together."""
    floating(x=x)
    number("eps", eps, low=0.0)
    for name, a in affine.items():
        if a is None:
            continue
        floating(**{name: a})
        if x.ndim < 1 or tuple(a.shape) != (x.shape[-1],):
            msg = f"{name} has shape {tuple(a.shape)}; x {tuple(x.shape)} needs ({x.shape[-1] if x.ndim else 'M'},)."
            raise ShapeError(msg)
