"""Where a backend's arrays are made: on one of its devices, for every test alike."""

from __future__ import annotations

from typing import Any

from attnspec.backend import choose

from .masks import Array


class Placed:
    """A backend whose `asarray` makes arrays on one device unless told otherwise; `like` is an array there."""

    def __init__(self, backend: Any, device: Any = None) -> None:
        self._backend = backend
        self._device = device
        self.like = self.asarray(0.0, dtype="float32")

    def asarray(self, x: Any, *, dtype: str | None = None, device: Any = None) -> Array:
        """As the backend's own, with another default for the device."""
        return self._backend.asarray(x, dtype=dtype, device=self._device if device is None else device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def load(name: str, device: str | None = None) -> Placed:
    """The backend of that name with all its dtypes switched on, on the device of that name or its own default.

    Raises errors.BackendError where there is no such backend, LookupError where it has no such device.
    """
    backend = choose(name)
    if hasattr(backend, "enable"):
        backend.enable("float64")
    return Placed(backend, find(backend, device) if device else None)


def find(backend: Any, name: str) -> Any:
    """The device of that name: what `str` makes of it, or the quoted word in it. LookupError lists those there are."""
    names = {str(device): device for device in backend.devices()}
    for text, device in names.items():
        if name == text or f"'{name}'" in text:
            return device
    msg = f"{backend.name} has no device {name!r}; it has {', '.join(names)}"
    raise LookupError(msg)
