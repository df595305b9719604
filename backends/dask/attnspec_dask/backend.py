"""The Dask backend: chunked arrays, computed when they are asked for."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import dask.array as da
import numpy as np

from . import host
from . import namespace as xp

__all__ = ["asarray", "capabilities", "devices", "jit", "name", "synchronize", "to_numpy", "vjp", "xp"]

name = "dask"
jit = None
vjp = None
capabilities = frozenset({"float64", "float16", "lazy", "known_shapes"}) | (
    {"bfloat16"} if find_spec("ml_dtypes") else set()
)


def devices() -> list[str]:
    """Where chunks are is Dask's affair."""
    return ["cpu"]


def asarray(x: Any, *, dtype: str | None = None, device: Any = None) -> da.Array:
    """A Dask array, of one chunk unless it has chunks already; dtype by its name in the standard."""
    wanted = None if dtype is None else host.dtype(xp, dtype)
    if isinstance(x, da.Array):
        return x if wanted is None else x.astype(wanted)
    return xp.asarray(np.asarray(x, dtype=wanted), device=device)


def to_numpy(a: Any) -> Any:
    """The array computed, in NumPy."""
    with host.scope():
        return np.asarray(a)


def synchronize(a: da.Array) -> da.Array:
    """The array with its chunks computed, on the workers if there are some."""
    return a.persist()
