"""The JAX backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as xp
import numpy as np

from attnspec.errors import DTypeError

__all__ = [
    "asarray", "capabilities", "devices", "enable", "forget", "jit", "jvp", "name", "synchronize", "to_numpy", "vjp",
    "vmap", "xp",
]  # fmt: skip

name = "jax"
jit = jax.jit
vmap = jax.vmap


# float64 counts among them: `enable` turns it on, and `asarray` refuses it while it is off.
capabilities = frozenset(
    {"float64", "float16", "bfloat16", "jit", "vjp", "autodiff", "jvp", "vmap", "pytree", "known_shapes"}
)


def enable(capability: str) -> None:
    """Turn on what JAX has and leaves off: float64."""
    if capability == "float64":
        jax.config.update("jax_enable_x64", True)


def forget() -> None:
    """Drop the programs that are compiled: each holds memory maps, of which Linux gives a process 65,530."""
    jax.clear_caches()


def devices() -> list[Any]:
    """JAX's devices, the default one first."""
    return list(jax.devices())


def asarray(x: Any, *, dtype: str | None = None, device: Any = None) -> Any:
    """A JAX array; float64 needs `jax_enable_x64`, and is refused rather than rounded without it."""
    wanted = dtype or str(getattr(x, "dtype", ""))
    if wanted == "float64" and not jax.config.jax_enable_x64:
        msg = (
            "JAX makes no float64 array until it is told to: call jax.config.update('jax_enable_x64', True) first, "
            "or pass dtype='float32'."
        )
        raise DTypeError(msg)
    return xp.asarray(x, dtype=dtype, device=device)


def to_numpy(a: Any) -> Any:
    """A NumPy array with the same bits (bfloat16 as ml_dtypes')."""
    return np.asarray(a)


def synchronize(a: Any) -> Any:
    """Wait for the computation that makes the array."""
    return jax.block_until_ready(a)


def vjp(f: Callable[..., Any], *arrays: Any) -> tuple[Any, Callable[..., Any]]:
    """`jax.vjp`."""
    return jax.vjp(f, *arrays)  # type: ignore[no-any-return]


def jvp(f: Callable[..., Any], arrays: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """`jax.jvp`: (result, its derivative along the tangents)."""
    return jax.jvp(f, arrays, tangents)  # type: ignore[no-any-return]
