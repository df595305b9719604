"""The array-api-strict backend: the proof that the core uses the standard and nothing else."""

from __future__ import annotations

from typing import Any

import array_api_strict as xp
import numpy as np

from attnspec.tape import vjp

__all__ = ["asarray", "capabilities", "devices", "jit", "name", "synchronize", "to_numpy", "vjp", "xp"]

_Array = type(xp.zeros(()))

name = "strict"
jit = None
capabilities = frozenset({"float64", "vjp", "in_place", "device_argument", "known_shapes", "second_device"})


def devices() -> list[Any]:
    """Its pretend devices; arrays of two of them do not meet."""
    return list(xp.__array_namespace_info__().devices())


def asarray(x: Any, *, dtype: str | None = None, device: Any = None) -> Any:
    """A strict array; dtype by its name in the standard."""
    x = to_numpy(x)
    return xp.asarray(x if dtype is None else x.astype(dtype), device=device)


def to_numpy(a: Any) -> Any:
    """A NumPy array with the same bits, from any of its devices."""
    if isinstance(a, _Array):
        a = a.to_device(xp.Device("CPU_DEVICE"))
    return np.asarray(a)


def synchronize(a: Any) -> Any:
    """Computed already."""
    return a
