"""The one seam to array-api-compat, and the few questions about dtypes that the standard leaves open.

A project that vendors attnspec edits this file and `errors.py`, nothing else.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeGuard

import array_api_compat

from .errors import DeviceError, DTypeError

Array: TypeAlias = Any
Namespace: TypeAlias = Any

BACKENDS_GROUP = "attnspec.backends"
HOSTS_GROUP = "attnspec.hosts"

FLOATING = ("float16", "bfloat16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")


_namespaces: dict[type, Namespace] = {}


def is_array(x: object) -> TypeGuard[Array]:
    """Whether `x` looks like an array; `namespace` finds out whether it is one that can be computed with."""
    return hasattr(x, "dtype") and hasattr(x, "shape") and hasattr(x, "ndim")


def namespace(*arrays: Array) -> Namespace:
    """The Array API namespace that all the arrays share."""
    kind = type(arrays[0])
    if kind in _namespaces and all(type(a) is kind for a in arrays):
        return _namespaces[kind]
    try:
        found = array_api_compat.array_namespace(*arrays)
        if all(type(a) is kind for a in arrays):
            _namespaces[kind] = found
        return found
    except TypeError:
        kinds = ", ".join(sorted({f"{type(a).__module__}.{type(a).__qualname__}" for a in arrays}))
        if all(map(is_array, arrays)):
            msg = f"one call needs arrays of one framework, got {kinds}. Convert them with `backend.asarray`."
            raise DeviceError(msg) from None
        msg = f"needs Array API arrays, got {kinds}. Make them with `backend.asarray`."
        raise DTypeError(msg) from None


def dtype_name(x: Array) -> str:
    """The dtype by its name in the standard: ml_dtypes' bfloat16 is no dtype that a namespace could be asked about."""
    return str(getattr(x, "dtype", x)).rpartition(".")[2]


def widened(x: Array) -> Array:
    """Half precision in float32, float32 and float64 as they are: the dtype of every inside (SHAPE-3)."""
    xp = namespace(x)
    return x if dtype_name(x) in ("float32", "float64") else xp.astype(x, xp.float32)
