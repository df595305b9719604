"""Arithmetic on `Value`s: running error analysis, one operation at a time.

Each result carries what the errors of its operands do to it, second order included, and its own roundings: one for a
product, n + 1 for a sum or a dot product of n terms, in any order and with or without fused operations. The numbers
themselves are computed in float64. Where float64 is judged, that arithmetic errs by the very bound that it computes,
so `allowed` takes the bound twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .bounds import UNIT, inside, stored
from .masks import Array
from .oracle_layers import Value

Pull = Callable[[Value], dict[str, Value]]


def unit(dtype: str) -> float:
    """The unit roundoff of the arithmetic inside."""
    return UNIT[inside(dtype)]


def allowed(x: Value, dtype: str) -> Value:
    """What a result of that dtype may be off by: rounded to a half type, beside an oracle in float64."""
    error = 2 * x.error if dtype == "float64" else x.error
    return Value(x.exact, stored(x.exact, error, dtype))


def size(x: Value) -> Array:
    """The greatest magnitudes that the numbers may have been computed with."""
    return np.abs(x.exact) + x.error


def times(x: Value, y: Value, u: float) -> Value:
    """x y, entry by entry."""
    exact = x.exact * y.exact
    carried = np.abs(x.exact) * y.error + x.error * size(y)
    return Value(exact, carried + u * (np.abs(exact) + carried))


def scaled(x: Value, factor: Array | float, u: float, roundings: int = 1) -> Value:
    """x times numbers that are given, or made with so many roundings less one."""
    factor = np.asarray(factor, np.float64)
    return Value(x.exact * factor, np.abs(factor) * (x.error + roundings * u * size(x)))


def matmul(x: Value, y: Value, u: float) -> Value:
    """x @ y."""
    n = x.exact.shape[-1]
    error = np.abs(x.exact) @ y.error + x.error @ size(y) + (n + 1) * u * (size(x) @ size(y))
    return Value(x.exact @ y.exact, error)


def total(x: Value, axes: tuple[int, ...], u: float) -> Value:
    """The sum over some axes, which are kept with the size 1."""
    n = math.prod(x.exact.shape[axis] for axis in axes)
    error = x.error.sum(axes, keepdims=True) + n * u * size(x).sum(axes, keepdims=True)
    return Value(x.exact.sum(axes, keepdims=True), error)


def to_shape(x: Value, shape: tuple[int, ...], u: float) -> Value:
    """The sum over the axes along which an array of that shape was broadcast."""
    extra = x.exact.ndim - len(shape)
    axes = tuple(n for n, size in enumerate(x.exact.shape) if n < extra or (shape[n - extra] == 1 and size != 1))
    return moved(total(x, axes, u) if axes else x, lambda a: a.reshape(shape))


def moved(x: Value, how: Callable[[Array], Array]) -> Value:
    """Entries moved, repeated or set to zero: nothing is rounded."""
    return Value(how(x.exact), how(x.error))


def turned(x: Value) -> Value:
    """The last two axes exchanged."""
    return moved(x, lambda a: np.swapaxes(a, -1, -2))
