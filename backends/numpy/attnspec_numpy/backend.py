"""The NumPy backend."""

from __future__ import annotations

from typing import Any

import array_api_compat.numpy as xp
import numpy as np

from attnspec.tape import vjp

__all__ = ["asarray", "capabilities", "devices", "jit", "name", "synchronize", "to_numpy", "vjp", "xp"]

name = "numpy"
jit = None


def _has_bfloat16() -> bool:
    try:
        import ml_dtypes  # noqa: F401
    except ImportError:
        return False
    return True


capabilities: frozenset[str] = frozenset(
    {"float64", "float16", "vjp", "in_place", "device_argument", "known_shapes"}
) | ({"bfloat16"} if _has_bfloat16() else set())


def devices() -> list[str]:
    """NumPy has one."""
    return ["cpu"]


def asarray(x: Any, *, dtype: str | None = None, device: Any = None) -> Any:
    """A NumPy array; dtype by its name in the standard, "bfloat16" through ml_dtypes."""
    if dtype == "bfloat16":
        import ml_dtypes

        return np.asarray(x).astype(ml_dtypes.bfloat16)
    return np.asarray(x, dtype=dtype, device=device)


def to_numpy(a: Any) -> Any:
    """The array itself."""
    return np.asarray(a)


def synchronize(a: Any) -> Any:
    """NumPy has computed already."""
    return a
