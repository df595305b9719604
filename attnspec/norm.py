"""Layer normalisation and root-mean-square normalisation over the last axis."""

from __future__ import annotations

import math

from . import _compat
from ._compat import Array, alike, cast, dtype_name, widened
from .derivative import differentiable
from .errors import ShapeError
from .fresh import by_rows, is_free
from .gradients import layer_norm_backward, rms_norm_backward
from .host import host_of
from .shapes import expect, floating, is_number, number, together


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
        return by_rows(lambda x: cast(normalised(widened(x), gamma, beta, eps), x.dtype), x, held=(gamma, beta, eps))


def normalised(x: Array, gamma: Array | None, beta: Array | None, eps: float | Array) -> Array:
    """`layer_norm` of float32 or wider."""
    if is_free(x, gamma, beta, eps):
        y = _standardised_in_range(x, eps)
        if y is not None:
            return _affine_over(y, gamma, beta)
    y, _ = differentiable(_standardised, layer_norm_backward, (x, eps))
    return _affine(y, gamma, beta)


def _standardised(operands: tuple[Array, float | Array]) -> tuple[Array, Array]:
    """(x - mean) / root, and 1 / root."""
    x, eps = operands
    xp = _compat.namespace(x)
    x, unit = _in_range(widened(x))
    if x.shape[-1] == 0:  # the mean of nothing is a warning, and then NaN
        return x, unit
    # A large mean would be rounded. What is left of it without the first entry is small, and exactly 0 in a constant
    # row; all of it is linear, so gradients are right too.
    d = x - x[..., :1]
    d = d - xp.mean(d, axis=-1, keepdims=True)
    return _over_root(d, unit, eps)


def _standardised_in_range(x: Array, eps: float | Array) -> Array | None:
    """The bits of `_standardised` in half the passes; None unless a glance shows that no row needs a unit.

    Where the first entry of a row and the deviation are far below the largest with a square, so is every entry.
    """
    ops, xp = host_of(x).in_place, _compat.namespace(x)
    if ops is None or not ops.is_near(x) or not math.prod(x.shape):
        return None
    first = x[..., :1]
    least, most = ops.extremes(xp.abs(first))
    if not 2.0**-60 <= least <= most <= 2.0**58:
        return None
    d = x - first
    d -= xp.mean(d, axis=-1, keepdims=True)
    square = xp.mean(d * d, axis=-1, keepdims=True)
    square += eps if is_number(eps) else cast(eps, d.dtype)
    least, most = ops.extremes(square)
    if not 0.0 < least <= most <= 2.0**116 / x.shape[-1]:
        return None
    d /= xp.sqrt(square)
    return d


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
        y, _ = differentiable(_rooted, rms_norm_backward, (x, eps))
        return cast(_affine(y, gamma, None), x.dtype)


def _rooted(operands: tuple[Array, float | Array]) -> tuple[Array, Array]:
    """x / root, and 1 / root."""
    x, eps = operands
    x, unit = _in_range(widened(x))
    return (x, unit) if x.shape[-1] == 0 else _over_root(x, unit, eps)


def _in_range(x: Array) -> tuple[Array, Array]:
    """x times a power of two for each row, and that power: 1 unless squares of the row would overflow or vanish."""
    xp = _compat.namespace(x)
    if x.shape[-1] == 0:
        return x, xp.ones_like(x)
    largest = xp.max(xp.abs(x), axis=-1, keepdims=True)
    edge = {"float32": 60, "float64": 500}[dtype_name(x)]
    unit = xp.ones_like(largest)
    unit = xp.where(largest > 2.0**edge, 2.0 ** -(edge + edge // 2), unit)
    unit = xp.where(largest < 2.0**-edge, 2.0**edge, unit)
    return x * unit, unit


def _over_root(d: Array, unit: Array, eps: float | Array) -> tuple[Array, Array]:
    """d / sqrt(mean(d^2) + eps unit^2), 0 where that is 0 / 0; and unit over the root."""
    xp = _compat.namespace(d)
    eps = eps if is_number(eps) else cast(eps, d.dtype)
    square = xp.mean(d * d, axis=-1, keepdims=True) + eps * unit * unit
    root = xp.sqrt(xp.where(square == 0, 1.0, square))
    return d / root, unit / root


def _affine(y: Array, gamma: Array | None, beta: Array | None) -> Array:
    y, gamma, beta = alike(y, gamma, beta)
    y = y if gamma is None else y * cast(gamma, y.dtype)
    return y if beta is None else y + cast(beta, y.dtype)


def _affine_over(y: Array, gamma: Array | None, beta: Array | None) -> Array:
    if gamma is not None:
        y *= cast(gamma, y.dtype)
    if beta is not None:
        y += cast(beta, y.dtype)
    return y


def check_norm(x: Array, eps: float | Array, **affine: Array | None) -> None:
    """Raise unless x, eps, gamma and beta fit together."""
    floating(x=x)
    number("eps", eps, low=0.0)
    if x.ndim < 1:
        msg = "x is 0-d; (..., M) is needed."
        raise ShapeError(msg)
    given = {name: a for name, a in affine.items() if a is not None}
    for name, a in given.items():
        floating(**{name: a})
        expect(name, a, (x.shape[-1],), "(M,)")
    together(x=x, **given)
