"""Pick a backend at import time.

    from attnspec.backend import torch as backend      # numpy, torch, jax, strict, or any plug-in's name
    from attnspec.backend import default as backend    # the one that ATTNSPEC_BACKEND names; NumPy if unset

A backend *makes* arrays and reaches its framework's extras; computing needs none, because arrays carry their
framework. Every public name of attnspec is there too: `backend.attention is attnspec.attention`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol

from . import registry
from ._compat import Array, Namespace

VARIABLE = "ATTNSPEC_BACKEND"
_PACKAGE = import_module(__package__)


class Backend(Protocol):
    """What a backend's module provides. Read-only members, so that a module satisfies it."""

    @property
    def name(self) -> str:
        """The name under which it is registered."""

    @property
    def xp(self) -> Namespace:
        """The Array API namespace."""

    @property
    def capabilities(self) -> AbstractSet[str]:
        """Which of `registry.CAPABILITIES` it has; the suite tests each that is declared."""

    def devices(self) -> Sequence[Any]:
        """The devices at hand, the default one first."""

    def asarray(self, x: Any, *, dtype: str | None = None, device: Any = None) -> Array:
        """An array from numbers, nested sequences, a NumPy array or an array of its own; dtype by name."""

    def to_numpy(self, a: Array) -> Any:
        """The array in NumPy, bits kept; bfloat16 as ml_dtypes' or widened to float32."""

    def synchronize(self, a: Array) -> Array:
        """Wait until the array is computed, and return it."""

    @property
    def jit(self) -> Callable[..., Any] | None:
        """Compile a function; None without the capability."""

    @property
    def vjp(self) -> Callable[..., Any] | None:
        """`vjp(f, *arrays) -> (result, pullback)`, pullback(cotangent) -> gradients; None without the capability."""

    def __getattr__(self, name: str) -> Any:
        """Every public name of attnspec, and what a backend may have beyond the contract.

        `vmap` and `jvp(f, arrays, tangents)`, with the capabilities of those names; `enable(capability)` where
        something is off by default (float64 on JAX); `forget()` where compiled programs are kept, to drop them.
        """


class _Chosen:
    """A backend's module, with attnspec's public names behind its own."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        for place in (self._module, _PACKAGE):
            if hasattr(place, name):
                return getattr(place, name)
        msg = f"backend {self._module.name!r} has no {name!r}, and attnspec has none"
        raise AttributeError(msg)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._module), *_PACKAGE.__all__})

    def __repr__(self) -> str:
        return f"<attnspec backend {self._module.name!r}>"


def choose(name: str) -> Backend:
    """The backend of that name. Raises `errors.BackendError`, an ImportError, with what to install."""
    return _Chosen(registry.load(name))


def __getattr__(name: str) -> Backend:
    if name.startswith("_"):
        raise AttributeError(name)
    return choose(os.environ.get(VARIABLE) or "numpy" if name == "default" else name)
