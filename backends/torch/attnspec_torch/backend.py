"""The PyTorch backend."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import array_api_compat.torch as xp
import numpy as np
import torch

from .modules import AddAndNorm, MultiHeadAttention, TransformerLayer

__all__ = [
    "AddAndNorm", "MultiHeadAttention", "TransformerLayer", "asarray", "capabilities", "devices", "jit", "jvp", "name",
    "synchronize", "to_numpy", "vjp", "vmap", "xp",
]  # fmt: skip

name = "torch"
jit = partial(torch.compile, fullgraph=True, dynamic=False)
vmap = torch.func.vmap
capabilities = frozenset(
    {
        "float64", "float16", "bfloat16", "jit", "vjp", "autodiff", "jvp", "vmap", "pytree", "in_place",
        "device_argument", "known_shapes", "second_device",
    }
)  # fmt: skip


def devices() -> list[torch.device]:
    """The processor, the graphics processors, and `meta`, on which only shapes are computed."""
    cuda = [torch.device("cuda", n) for n in range(torch.cuda.device_count())]
    return [torch.device("cpu"), *cuda, torch.device("meta")]


def asarray(x: Any, *, dtype: str | None = None, device: Any = None) -> torch.Tensor:
    """A tensor; dtype by its name in the standard. NumPy arrays are copied, so that nothing is shared by accident."""
    wanted = None if dtype is None else getattr(torch, dtype)
    if isinstance(x, np.ndarray):
        x = torch.from_numpy(np.array(x, order="C"))
    return torch.as_tensor(x, dtype=wanted, device=device)


def to_numpy(a: torch.Tensor) -> Any:
    """A NumPy array; bfloat16, which NumPy lacks, comes widened to float32, without rounding."""
    a = a.detach().cpu().resolve_conj()
    return (a.float() if a.dtype == torch.bfloat16 else a).numpy()


def synchronize(a: torch.Tensor) -> torch.Tensor:
    """Wait for the device of the tensor."""
    if a.device.type == "cuda":
        torch.cuda.synchronize(a.device)
    return a


def vjp(f: Callable[..., Any], *arrays: torch.Tensor) -> tuple[Any, Callable[..., Any]]:
    """`torch.func.vjp`."""
    return torch.func.vjp(f, *arrays)  # type: ignore[no-any-return]


def jvp(f: Callable[..., Any], arrays: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """`torch.func.jvp`: (result, its derivative along the tangents)."""
    return torch.func.jvp(f, arrays, tangents)  # type: ignore[no-any-return]
