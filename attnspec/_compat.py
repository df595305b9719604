"""The one seam to array-api-compat, and the few questions about dtypes that the standard leaves open.

A project that vendors attnspec edits this file and `errors.py`, nothing else. It gives the entry-point groups names of
its own, so that the copy does not load an installed attnspec's plug-ins, and installs its hosts by `host.install`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, ClassVar, TypeAlias, TypeGuard

import array_api_compat

from .errors import DeviceError, DTypeError

Array: TypeAlias = Any
Namespace: TypeAlias = Any

BACKENDS_GROUP = "attnspec.backends"
HOSTS_GROUP = "attnspec.hosts"
KERNELS_GROUP = "attnspec.kernels"

FLOATING = ("float16", "bfloat16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")


def is_array(x: object) -> TypeGuard[Array]:
    """Whether `x` looks like an array; `namespace` finds out whether it is one that can be computed with."""
    # Numbers first: `torch.compile` has symbolic ones, of which it cannot say what attributes they have.
    if x is None or type(x) in (int, float, bool) or isinstance(x, ModuleType):
        return False
    return hasattr(x, "dtype") and hasattr(x, "shape") and hasattr(x, "ndim")


class Wrapped:
    """Base of an array that stands for another one, its `value`; which may stand for a third, of a lower `level`.

    Its operators are the functions of its namespace.
    """

    value: Array
    level: ClassVar[int]

    @property
    def inner(self) -> Array:
        """An array of the same framework, shape and place as the value: whom questions about those are for."""
        return self.value

    @staticmethod
    def hosted(inner: Any) -> Any:
        """The host of arrays wrapped so, given that of their values."""
        raise NotImplementedError

    @staticmethod
    def around(xp: Namespace) -> Namespace:
        """The namespace of the wrapped, given that of their values."""
        raise NotImplementedError

    @classmethod
    def constant(cls, value: Array) -> Any:
        """An array wrapped like the others."""
        raise NotImplementedError


def _method(name: str, swapped: bool) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        a, b = (other, self) if swapped else (self, other)
        return getattr(namespace(*filter(is_array, (a, b))), name)(a, b)

    return method


for _name, _function in {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "pow": "pow", "matmul": "matmul",
}.items():  # fmt: skip
    setattr(Wrapped, f"__{_name}__", _method(_function, swapped=False))
    setattr(Wrapped, f"__r{_name}__", _method(_function, swapped=True))
for _name, _function in {
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal",
}.items():  # fmt: skip
    setattr(Wrapped, f"__{_name}__", _method(_function, swapped=False))


def alike(*arrays: Array | None) -> tuple[Any, ...]:
    """The arrays, all of them wrapped if one is: the operators of some libraries refuse a stranger on their right."""
    kind = _outermost(arrays)
    if kind is None:
        return arrays
    return tuple(a if a is None or getattr(a, "level", 0) == kind.level else kind.constant(a) for a in arrays)


def unwrapped(x: Any, kind: type[Wrapped] = Wrapped) -> Any:
    """The value of an array that is wrapped (so); anything else as it is."""
    return x.value if isinstance(x, kind) else x


def _outermost(arrays: Iterable[Array | None]) -> type[Wrapped] | None:
    kinds = {type(a) for a in arrays if isinstance(a, Wrapped)}
    return max(kinds, key=lambda kind: kind.level) if kinds else None


# By the name of the type, because `torch.compile` guards on no other keys; filled by hosts alone, because it must not
# change while a program is being recorded.
_namespaces: dict[str, Namespace] = {}


def namespace(*arrays: Array) -> Namespace:
    """The Array API namespace that all the arrays share."""
    kind = type(arrays[0])
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name in _namespaces and (len(arrays) == 1 or all(type(a) is kind for a in arrays)):
        return _namespaces[name]
    known = [_namespaces.get(f"{type(a).__module__}.{type(a).__qualname__}") for a in arrays]
    if known[0] is not None and all(xp is known[0] for xp in known):  # such as a tensor and a Parameter
        return known[0]
    wrapped = _outermost(arrays)
    if wrapped is not None:
        level = wrapped.level
        return wrapped.around(namespace(*(a.inner if getattr(a, "level", 0) == level else a for a in arrays)))
    try:
        return array_api_compat.array_namespace(*arrays)
    except TypeError:
        kinds = ", ".join(sorted({f"{type(a).__module__}.{type(a).__qualname__}" for a in arrays}))
        if all(map(is_array, arrays)):
            msg = f"one call needs arrays of one framework, got {kinds}. Convert them with `backend.asarray`."
            raise DeviceError(msg) from None
        msg = f"needs Array API arrays, got {kinds}. Make them with `backend.asarray`."
        raise DTypeError(msg) from None


def remember(kind: type, xp: Namespace) -> None:
    """Let `namespace` know a type of array at once; a host does this for its own."""
    _namespaces[f"{kind.__module__}.{kind.__qualname__}"] = xp


def dtype_name(x: Array) -> str:
    """The dtype by its name in the standard: ml_dtypes' bfloat16 is no dtype that a namespace could be asked about."""
    return _name_of(getattr(x, "dtype", x))


def _name_of(dtype: Any) -> str:
    entry = type(dtype), dtype  # dtypes of different libraries are not to be compared
    name = _dtype_names.get(entry)
    if name is None:
        name = _dtype_names[entry] = str(dtype).rpartition(".")[2]
    return name


_dtype_names: dict[Any, str] = {}
# To make the name of NumPy's dtypes takes longer than to add two small arrays. `torch.compile` calls this instead of
# tracing it: it would guard on the table.
_name_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


def cast(x: Array, dtype: Any) -> Array:
    """x in that dtype; itself if it has it."""
    return namespace(x).astype(x, dtype, copy=False)


def turned(x: Array) -> Array:
    """The last two axes exchanged. (torch maps `permute_dims` over many cotangents at once, `matrix_transpose` not.)"""
    return namespace(x).permute_dims(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def widened(x: Array) -> Array:
    """Half precision in float32, float32 and float64 as they are: the dtype of every inside (SHAPE-3)."""
    xp = namespace(x)
    return x if dtype_name(x) in ("float32", "float64") else xp.astype(x, xp.float32)
