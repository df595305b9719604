"""The one seam to array-api-compat, and the few questions about dtypes that the standard leaves open.

A project that vendors attnspec edits this file and `errors.py`, nothing else.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import array_api_compat

from .errors import DeviceError, DTypeError

Array: TypeAlias = Any
Namespace: TypeAlias = Any

BACKENDS_GROUP = "attnspec.backends"
HOSTS_GROUP = "attnspec.hosts"

FLOATING = ("float16", "bfloat16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")


def is_array(x: object) -> bool:
    """Whether `x` is an array that an Array API namespace can be found for."""
    return bool(array_api_compat.is_array_api_obj(x))


def namespace(*arrays: Array) -> Namespace:
    """The Array API namespace that all the arrays share."""
    try:
        return array_api_compat.array_namespace(*arrays)
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


def device(x: Array) -> Any:
    """The device of an array, as the standard's creation functions take it."""
    return array_api_compat.device(x)
