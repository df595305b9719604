"""Arrays whose operations give the same bits on every framework: what reproducible mode gives to attnspec's functions.

An `Identical` holds float64 numbers of its framework and the name of the dtype that it stands for. It has a namespace
of its own, so the bodies of attnspec compute with it as with any other array: a sum is then `sums.total`, an
exponential `elementary.exp`, a product is `settled` before anything is added to it. To round to the dtype that it
stands for, a body calls `astype`, as it does anyway where a result is due.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, reduce
from typing import Any, ClassVar

from .._compat import FLOATING, Array, Namespace, Wrapped, dtype_name, is_array, namespace
from ..errors import DTypeError
from ..host import Host, announce, host_of
from ..numerics import Numerics
from ..shapes import is_number
from . import elementary
from .grid import TINY, settled
from .steady import STEADY
from .sums import product, total


class Numbers(Wrapped):
    """An array of float64 numbers, its `value`, that stands for one of the dtype `kind`."""

    kind: str

    level = 1
    _leaves: ClassVar[tuple[str, ...] | None] = None
    __array_ufunc__ = None  # NumPy's `array + identical` then asks the identical one

    @staticmethod
    def around(xp: Namespace) -> Namespace:
        """See `Wrapped.around`."""
        return _identical(xp)

    @classmethod
    def constant(cls, value: Array) -> Any:
        """See `Wrapped.constant`."""
        return cls.of(value) if dtype_name(value) in FLOATING else value

    @staticmethod
    def hosted(inner: Host) -> Host:
        """See `Wrapped.hosted`. No derivative: whoever differentiates is answered at the door (`doors.py`)."""
        return replace(
            inner,
            concrete=lambda *arrays: inner.concrete(*map(_inner, arrays)),
            traced=lambda *arrays: inner.traced(*map(_inner, arrays)),
            with_vjp=None,
            device_of=lambda x: inner.device_of(_inner(x)),
            erfc=lambda x: _lifted(elementary.erfc, x),
            kernels=(),
            numerics=lambda request: NUMERICS[dtype_name(request.q)],
        )

    def rounded(self) -> Array:
        """The numbers in the dtype that they stand for, by way of float32; too small for a normal number is 0."""
        xp, x = namespace(self.value), self.value
        if self.kind == "float64":
            return x
        x = xp.astype(xp.where(xp.abs(x) < _SMALLEST[self.kind], 0.0, x), xp.float32)
        return x if self.kind == "float32" else xp.astype(x, host_of(x).dtype(xp, self.kind))

    def stood(self) -> Identical:
        """Rounded so, in float64 again."""
        if self.kind == "float64":
            return Identical(self.value, self.kind)
        return Identical(namespace(self.value).astype(self.rounded(), self.value.dtype), self.kind)

    @property
    def dtype(self) -> Any:
        """The dtype that it stands for."""
        if self.kind == "float64":
            return self.value.dtype
        xp = namespace(self.inner)
        return _instance(xp, host_of(self.inner).dtype(xp, self.kind))

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return _identical(namespace(self.inner))

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "ndim", "device"):
            return getattr(self.inner, name)
        msg = f"arrays of reproducible mode have no {name!r}"
        raise AttributeError(msg)

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return math.prod(self.shape)

    @property
    def mT(self) -> Any:  # noqa: N802 - the standard's name
        """The last two axes exchanged."""
        return _identical(namespace(self.value)).matrix_transpose(self)

    def __neg__(self) -> Any:
        return Identical(-self.value, self.kind)

    def __abs__(self) -> Any:
        return _identical(namespace(self.value)).abs(self)

    def __len__(self) -> int:
        return len(self.inner)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __float__(self) -> float:
        return float(self.value)


@dataclass(frozen=True, eq=False, repr=False)
class Identical(Numbers):
    """The array that everything computes with; a pytree of its value."""

    value: Array
    kind: str
    # The numbers before the last rounding to `kind`, where `unrounded` asks for them.
    before: Array | None = None

    # See `Held`.
    slices: ClassVar[None] = None

    @classmethod
    def of(cls, x: Array) -> Identical:
        """From an array of numbers, in float64: what is too small for a normal number of its dtype counts as 0."""
        kind = dtype_name(x)
        xp = namespace(x)
        if kind not in ("float32", "float64"):
            x = xp.astype(x, xp.float32)
        wide = xp.astype(x, xp.float64, copy=False)
        return cls(xp.where(xp.abs(wide) < _SMALLEST[kind], 0.0, wide), kind)

    def __getitem__(self, index: Any) -> Any:
        return Identical(self.value[index], self.kind, None if self.before is None else self.before[index])


@dataclass(frozen=True, eq=False, repr=False)
class Held(Numbers):
    """Rows of a cache, and what attention makes of rows, made when they were written (`chunked.k_slices`)."""

    rows: Array  # in the dtype that they stand for
    slices: tuple[Array, ...]

    @property
    def kind(self) -> str:  # type: ignore[override]
        return dtype_name(self.rows)

    @property
    def inner(self) -> Array:
        return self.rows

    @property
    def value(self) -> Array:  # type: ignore[override]
        """The numbers in float64, for those who do not compute with slices."""
        return Identical.of(self.rows).value

    def __getitem__(self, index: Any) -> Any:
        entries = index if isinstance(index, tuple) else (index,)
        taken = sum(entry is not None and entry is not Ellipsis for entry in entries)
        whole = taken < self.ndim if Ellipsis not in entries else entries[-1] in (Ellipsis, slice(None))
        if whole:
            return Held(self.rows[index], tuple(x[index] for x in self.slices))
        return Identical(self.value[index], self.kind)


announce(Identical)
announce(Held)

# Whether results keep the numbers that they were rounded from: a comparison after a rounding to float32 would miss all
# but one in 2**29 of the differences.
unrounded: ContextVar[bool] = ContextVar("attnspec.reproducible.unrounded", default=False)

# The numerics of attention by what arrays stand for; `chunked` enters those of the narrower dtypes.
NUMERICS: dict[str, Numerics] = dict.fromkeys(FLOATING, STEADY)

# The least normal number of each dtype, which some frameworks keep and some flush; for float64, what a product of two
# numbers may be and still be normal in every intermediate result.
_SMALLEST = {"float64": TINY, "float32": 2.0**-126, "bfloat16": 2.0**-126, "float16": 2.0**-24}
_RANK = {"float16": 0, "bfloat16": 0, "float32": 1, "float64": 2}


def _method(name: str, swapped: bool) -> Callable[[Any, Any], Any]:
    def method(self: Identical, other: Any) -> Any:
        a, b = (other, self) if swapped else (self, other)
        return getattr(_identical(namespace(self.value)), name)(a, b)

    return method


for _name, _function in {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "pow": "pow", "matmul": "matmul",
}.items():  # fmt: skip
    setattr(Identical, f"__{_name}__", _method(_function, swapped=False))
    setattr(Identical, f"__r{_name}__", _method(_function, swapped=True))
for _name, _function in {
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal",
}.items():  # fmt: skip
    setattr(Identical, f"__{_name}__", _method(_function, swapped=False))


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
            return _wrapped(result, _joint(given)) if given else _named(result)

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
        over = self.reciprocal(b) if is_array(b) else 1.0 / b
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

    # What makes arrays, or asks about them

    def astype(self, x: Any, dtype: Any, *, copy: bool = True) -> Any:
        """The numbers rounded to that dtype, whether or not x stands for it already."""
        kind = dtype_name(_instance(self._xp, dtype))
        if kind not in FLOATING:
            return self._xp.astype(_raw(x), dtype)
        wide = Identical(self._xp.astype(_raw(x), self._xp.float64, copy=False), kind)
        return replace(wide.stood(), before=wide.value) if unrounded.get() else wide.stood()

    def asarray(self, x: Any, *, dtype: Any = None, **options: Any) -> Any:
        """Numbers as an array; floating ones in float64, whatever dtype they stand for."""
        if isinstance(x, Identical):
            return x if dtype is None else self.astype(x, dtype)
        kind = "" if dtype is None else dtype_name(_instance(self._xp, dtype))
        if kind in FLOATING:
            return Identical(self._xp.asarray(x, dtype=self._xp.float64, **options), kind)
        return _named(self._xp.asarray(x, dtype=dtype, **options))

    def isdtype(self, dtype: Any, kind: Any) -> bool:
        """The framework's."""
        return bool(self._xp.isdtype(dtype, kind))

    def finfo(self, dtype: Any) -> Any:
        """The framework's, of the dtype that an array stands for."""
        return self._xp.finfo(dtype.dtype if isinstance(dtype, Identical) else dtype)


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
def _identical(xp: Namespace) -> _Namespace:
    return _Namespace(xp)


@cache
def _instance(xp: Namespace, dtype: Any) -> Any:
    """A dtype as arrays have it: a namespace may name it by a class."""
    return xp.empty((0,), dtype=dtype).dtype


def wide(kind: str) -> str:
    """The dtype in which arrays of that one are computed with."""
    return "float64" if kind == "float64" else "float32"


def _lifted(function: Callable[[Array], Array], x: Any) -> Identical:
    return Identical(_sealed(function, _raw(x)), _joint((x,)))


def _sealed(function: Callable[..., Array], *arrays: Array, **static: Any) -> Array:
    return host_of(arrays[0]).sealed(function, *arrays, **static)


def _inner(x: Any) -> Any:
    return x.inner if isinstance(x, Numbers) else x


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
    kinds = {dtype_name(x) for x in operands if is_array(x)} & set(_RANK)
    widest = max(kinds, key=_RANK.__getitem__)
    return widest if len(kinds) == 1 or _RANK[widest] else "float32"


def _wrapped(result: Any, kind: str) -> Any:
    if isinstance(result, list | tuple):
        return type(result)(_wrapped(x, kind) for x in result)
    return Identical(result, kind) if dtype_name(result) == "float64" else result


def _named(result: Any) -> Any:
    """What a function of the framework made of no number of ours."""
    return Identical.of(result) if is_array(result) and dtype_name(result) in FLOATING else result
