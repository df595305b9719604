"""Arrays whose operations give the same bits on every framework: what reproducible mode gives to attnspec's functions.

An `Identical` holds float64 numbers of its framework and the name of the dtype that it stands for. It has a namespace
of its own (`namespace.py`), so the bodies of attnspec compute with it as with any other array. To round to the dtype
that it stands for, a body calls `astype`, as it does anyway where a result is due.
"""

from __future__ import annotations

import math
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

from .._compat import FLOATING, Array, Namespace, Wrapped, dtype_name, namespace
from ..host import Host, announce, host_of
from .grid import TINY
from .steady import STEADY, Steady


class Numbers(Wrapped):
    """An array of float64 numbers, its `value`, that stands for one of the dtype `kind`."""

    kind: str

    level = 1
    _leaves: ClassVar[tuple[str, ...] | None] = None
    __array_ufunc__ = None  # NumPy's `array + identical` then asks the identical one

    @staticmethod
    def around(xp: Namespace) -> Namespace:
        """See `Wrapped.around`."""
        from .namespace import identical  # arrays have a namespace, which makes arrays

        return identical(xp)

    @classmethod
    def constant(cls, value: Array) -> Any:
        """See `Wrapped.constant`."""
        return Identical.of(value) if dtype_name(value) in FLOATING else value

    @staticmethod
    def hosted(inner: Host) -> Host:
        """See `Wrapped.hosted`. No derivative: whoever differentiates is answered at the door (`doors.py`)."""
        return replace(
            inner,
            concrete=lambda *arrays: inner.concrete(*map(_inner, arrays)),
            traced=lambda *arrays: inner.traced(*map(_inner, arrays)),
            with_vjp=None,
            device_of=lambda x: inner.device_of(_inner(x)),
            erfc=lambda x: x.__array_namespace__().erfc(x),
            in_place=None,
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
        return instance(xp, host_of(self.inner).dtype(xp, self.kind))

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return self.around(namespace(self.inner))

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
        return self.__array_namespace__().matrix_transpose(self)

    def sum(self, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> Any:
        """`xp.sum`; not in the standard, but a method of every array that people know."""
        return self.__array_namespace__().sum(self, axis=axis, dtype=dtype, keepdims=keepdims)

    def __neg__(self) -> Any:
        return Identical(-self.value, self.kind)

    def __abs__(self) -> Any:
        return self.__array_namespace__().abs(self)

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
    role: str  # "k" or "v"

    @property
    def kind(self) -> str:  # type: ignore[override]
        return dtype_name(self.rows)

    @property
    def inner(self) -> Array:
        return self.rows

    @property
    def value(self) -> Array:
        """The numbers in float64, for those who do not compute with slices."""
        return Identical.of(self.rows).value

    def __getitem__(self, index: Any) -> Any:
        entries = index if isinstance(index, tuple) else (index,)
        # Slices have the axes of the rows but for the last one.
        simple = all(entry is None or entry is Ellipsis or isinstance(entry, int | slice) for entry in entries)
        taken = sum(isinstance(entry, int | slice) for entry in entries)
        ends = any(entry is Ellipsis for entry in entries[:-1])
        if simple and ((ends and entries[-1] == slice(None)) or (not ends and taken < self.ndim)):
            return Held(self.rows[index], tuple(x[index] for x in self.slices), self.role)
        return Identical(self.value[index], self.kind)


announce(Identical)
announce(Held)

# Whether results keep the numbers that they were rounded from: a comparison after a rounding to float32 would miss all
# but one in 2**29 of the differences.
unrounded: ContextVar[bool] = ContextVar("attnspec.reproducible.unrounded", default=False)

# The numerics of attention by what arrays stand for; `chunked` enters those of the narrower dtypes.
NUMERICS: dict[str, Steady] = dict.fromkeys(FLOATING, STEADY)

# The least normal number of each dtype, which some frameworks keep and some flush; for float64, what a product of two
# numbers may be and still be normal in every intermediate result.
_SMALLEST = {"float64": TINY, "float32": 2.0**-126, "bfloat16": 2.0**-126, "float16": 2.0**-24}
RANK = {"float16": 0, "bfloat16": 0, "float32": 1, "float64": 2}


def wide(kind: str) -> str:
    """The dtype in which arrays of that one are computed with."""
    return "float64" if kind == "float64" else "float32"


def _inner(x: Any) -> Any:
    return x.inner if isinstance(x, Numbers) else x


@cache
def instance(xp: Namespace, dtype: Any) -> Any:
    """A dtype as arrays have it: a namespace may name it by a class."""
    return xp.empty((0,), dtype=dtype).dtype
