"""The namespace of `Identical` arrays: each operation of the standard, with the same bits everywhere.

A sum is `sums.total`, a product of matrices `sums.product`, an exponential `elementary.exp`; a product of numbers is
`settled` before anything can be added to it. So a body cannot break the rule of `grid.py`, whatever its formula is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, reduce
from typing import Any

from .._compat import FLOATING, Array, Namespace, dtype_name, is_array
from ..errors import DTypeError
from ..host import host_of
from ..shapes import is_number
from . import elementary
from .arrays import RANK, Identical, Numbers, instance, unrounded
from .grid import settled
from .sums import product, total


class _Namespace:
    """The Array API namespace of `Identical` arrays over a framework's `xp`.

    Functions that only move numbers, compare or round them are the framework's. Those that compute are here. All
    others refuse.
    """

    def __init__(self, xp: Namespace) -> None:
        self._xp = xp
        self.__name__ = f"{xp.__name__} in reproducible mode"

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._xp, name)
        if not callable(found) or isinstance(found, type):
            return found

        def function(*args: Any, **options: Any) -> Any:
            given = [x for x in _operands(args) if isinstance(x, Numbers)]
            if given and name not in _MOVING:
                msg = (
                    f"{name} has no identical form; reproducible mode has {', '.join(sorted(_MOVING))} and arithmetic."
                )
                raise DTypeError(msg)
            result = found(*map(_raw, args), **options)
            if given:
                return _wrapped(result, _joint(given))
            if name not in _MAKING | _MOVING and is_array(result) and dtype_name(result) in FLOATING:
                msg = f"{name} of numbers has no identical form; make them with {', '.join(sorted(_MAKING))}."
                raise DTypeError(msg)
            return _named(result)

        return function

    # What computes

    def add(self, a: Any, b: Any) -> Identical:
        """a + b."""
        return Identical(_raw(a) + _raw(b), _joint((a, b)))

    def subtract(self, a: Any, b: Any) -> Identical:
        """a - b."""
        return Identical(_raw(a) - _raw(b), _joint((a, b)))

    def multiply(self, a: Any, b: Any) -> Identical:
        """a b."""
        return Identical(settled(_raw(a) * _raw(b)), _joint((a, b)))

    def square(self, a: Any) -> Identical:
        """a a."""
        return self.multiply(a, a)

    def reciprocal(self, a: Any) -> Identical:
        """1 / a."""
        return Identical(settled(1.0 / _raw(a)), _joint((a,)))

    def divide(self, a: Any, b: Any) -> Identical:
        """a (1 / b): to divide by a number, or by each row's, is rewritten so by some compilers and not by others."""
        over: Any = math.inf if is_number(b) and b == 0 else None
        if over is None:
            over = 1.0 / b if is_number(b) else self.reciprocal(b if dtype_name(b) in FLOATING else _beside(b, a))
        return over if is_number(a) and a == 1 else self.multiply(a, over)

    def pow(self, a: Any, n: Any) -> Identical:
        """a**n for an integer n >= 1."""
        if type(n) is not int or n < 1:
            msg = f"a power of {n!r} has no identical form; integers from 1 on have."
            raise DTypeError(msg)
        found: Identical = reduce(self.multiply, [a] * n)
        return found

    def sum(self, x: Any, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
        """The sum, rounded once."""
        if not isinstance(x, Numbers):
            return self._xp.sum(x, axis=axis, dtype=dtype, keepdims=keepdims)
        found = Identical(_sealed(total, x.value, axis=axis, keepdims=keepdims), x.kind)
        return found if dtype is None else self.astype(found, dtype)

    def mean(self, x: Identical, *, axis: Any = None, keepdims: bool = False) -> Identical:
        """The sum times 1 / n."""
        axes = range(x.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
        n = math.prod(x.shape[a] for a in axes)
        return self.multiply(self.sum(x, axis=axis, keepdims=keepdims), 1.0 / n if n else math.nan)

    def matmul(self, a: Any, b: Any) -> Identical:
        """The product of matrices; numbers in b that meet only zeros of a touch nothing."""
        return Identical(_sealed(product, _raw(a), _raw(b)), _joint((a, b)))

    def matmul_of_vectors(self, a: Any, b: Any) -> Identical:
        """The same where columns of b have nothing to do with each other: what one holds does not touch the next."""
        return Identical(_sealed(product, _raw(a), _raw(b), vectors=True), _joint((a, b)))

    def tensordot(self, a: Any, b: Any, *, axes: int) -> Identical:
        """The last `axes` axes of a with the first of b."""
        xp, x, y = self._xp, _raw(a), _raw(b)
        outer, inner = x.shape[: x.ndim - axes], math.prod(y.shape[:axes])
        rows, columns = xp.reshape(x, (math.prod(outer), inner)), xp.reshape(y, (inner, math.prod(y.shape[axes:])))
        found = _sealed(product, rows, columns)
        return Identical(xp.reshape(found, (*outer, *y.shape[axes:])), _joint((a, b)))

    def vecdot(self, a: Any, b: Any) -> Identical:
        """The sum of the products along the last axis."""
        found: Identical = self.sum(self.multiply(a, b), axis=-1)
        return found

    def max(self, x: Any, *, axis: Any = None, keepdims: bool = False) -> Any:
        """The largest; NaN where there is one, and +0 for a zero."""
        if not isinstance(x, Numbers):
            return self._xp.max(x, axis=axis, keepdims=keepdims)
        xp, unknown = self._xp, self._xp.isnan(x.value)
        top = xp.max(xp.where(unknown, -math.inf, x.value), axis=axis, keepdims=keepdims)
        top = xp.where(xp.any(unknown, axis=axis, keepdims=keepdims), math.nan, top)
        return Identical(xp.where(top == 0, 0.0, top), x.kind)

    def min(self, x: Any, *, axis: Any = None, keepdims: bool = False) -> Any:
        """The least."""
        if not isinstance(x, Numbers):
            return self._xp.min(x, axis=axis, keepdims=keepdims)
        return -self.max(-x, axis=axis, keepdims=keepdims)

    def maximum(self, a: Any, b: Any) -> Any:
        """The larger of two, the first of two zeros; NaN if one is."""
        return self._larger(a, b, _raw(a) >= _raw(b))

    def minimum(self, a: Any, b: Any) -> Any:
        """The smaller of two."""
        return self._larger(a, b, _raw(a) <= _raw(b))

    def _larger(self, a: Any, b: Any, first: Array) -> Identical:
        x, y = _raw(a), _raw(b)
        return Identical(self._xp.where(first | (x != x), x, y), _joint((a, b)))

    def clip(self, x: Any, low: Any = None, high: Any = None) -> Any:
        """x between low and high."""
        if not isinstance(x, Numbers):
            return self._xp.clip(x, low, high)
        x = x if low is None else self.maximum(x, low)
        return x if high is None else self.minimum(x, high)

    def exp(self, x: Any) -> Identical:
        """See `elementary`; so the next ones."""
        return _lifted(elementary.exp, x)

    def log(self, x: Any) -> Identical:
        return _lifted(elementary.log, x)

    def sqrt(self, x: Any) -> Identical:
        return _lifted(elementary.sqrt, x)

    def tanh(self, x: Any) -> Identical:
        return _lifted(elementary.tanh, x)

    def sin(self, x: Any) -> Identical:
        return _lifted(elementary.sin, x)

    def cos(self, x: Any) -> Identical:
        return _lifted(elementary.cos, x)

    def erfc(self, x: Any) -> Identical:
        return _lifted(elementary.erfc, x)

    # What makes arrays, or asks about them

    def astype(self, x: Any, dtype: Any, *, copy: bool = True) -> Any:
        """The numbers rounded to that dtype, whether or not x stands for it already."""
        kind = dtype_name(instance(self._xp, dtype))
        if kind not in FLOATING:
            return self._xp.astype(_raw(x), dtype)
        wide = Identical(self._xp.astype(_raw(x), self._xp.float64, copy=False), kind)
        return replace(wide.stood(), before=wide.value) if unrounded.get() else wide.stood()

    def asarray(self, x: Any, *, dtype: Any = None, **options: Any) -> Any:
        """Numbers as an array; floating ones in float64, whatever dtype they stand for."""
        if isinstance(x, Identical):
            return x if dtype is None else self.astype(x, dtype)
        kind = "" if dtype is None else dtype_name(instance(self._xp, dtype))
        if kind in FLOATING:
            return Identical(self._xp.asarray(x, dtype=self._xp.float64, **options), kind)
        return _named(self._xp.asarray(x, dtype=dtype, **options))

    def isdtype(self, dtype: Any, kind: Any) -> bool:
        """The framework's."""
        return bool(self._xp.isdtype(dtype, kind))

    def finfo(self, dtype: Any) -> Any:
        """The framework's, of the dtype that an array stands for."""
        return self._xp.finfo(dtype.dtype if isinstance(dtype, Identical) else dtype)


# What makes numbers that are given or simple.
_MAKING = frozenset({"empty", "eye", "full", "ones", "tril", "triu", "where", "zeros"})

# Of one array or several: results hold the numbers of the operands, rounded to integers at most, or are no numbers.
_MOVING = frozenset(
    {
        "abs", "all", "any", "argmax", "argmin", "argsort", "broadcast_arrays", "broadcast_to", "ceil", "concat",
        "empty_like", "equal", "expand_dims", "flip", "floor", "full_like", "greater", "greater_equal", "isfinite",
        "isinf", "isnan", "less", "less_equal", "matrix_transpose", "moveaxis", "negative", "not_equal", "ones_like",
        "permute_dims", "repeat", "reshape", "roll", "round", "sign", "signbit", "squeeze", "stack", "take",
        "take_along_axis", "tile", "trunc", "unstack", "where", "zeros_like",
    }
)  # fmt: skip


@cache
def identical(xp: Namespace) -> _Namespace:
    """The namespace of reproducible mode over a framework's."""
    return _Namespace(xp)


def _lifted(function: Callable[[Array], Array], x: Any) -> Identical:
    return Identical(_sealed(function, _raw(x)), _joint((x,)))


def _sealed(function: Callable[..., Array], *arrays: Array, **static: Any) -> Array:
    return host_of(arrays[0]).sealed(function, *arrays, **static)


def _beside(x: Array, a: Identical) -> Identical:
    """An array of integers as one of numbers like a."""
    return Identical(a.__array_namespace__()._xp.astype(x, a.value.dtype), a.kind)


def _operands(args: tuple[Any, ...]) -> list[Any]:
    return [x for arg in args for x in (arg if isinstance(arg, list | tuple) else (arg,))]


def _raw(x: Any) -> Any:
    """The numbers that a framework's function takes."""
    if isinstance(x, Numbers):
        return x.value
    if isinstance(x, list | tuple):
        return type(x)(map(_raw, x))
    return Identical.of(x).value if is_array(x) and dtype_name(x) in FLOATING else x


def _joint(operands: Iterable[Any]) -> str:
    """What the result of several stands for."""
    kinds = {dtype_name(x) for x in operands if is_array(x)} & set(RANK)
    widest = max(kinds, key=RANK.__getitem__)
    return widest if len(kinds) == 1 or RANK[widest] else "float32"


def _wrapped(result: Any, kind: str) -> Any:
    if isinstance(result, list | tuple):
        return type(result)(_wrapped(x, kind) for x in result)
    return Identical(result, kind) if dtype_name(result) == "float64" else result


def _named(result: Any) -> Any:
    """What a function of the framework made of no number of ours."""
    return Identical.of(result) if is_array(result) and dtype_name(result) in FLOATING else result
