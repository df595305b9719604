"""Find and load backends: entry points of the group `attnspec.backends`, nothing else.

A distribution that registers a name is a full citizen. Nothing is imported before it is asked for; a broken or a
doubly registered plug-in fails only when it is asked for, with its own error, and a failure is not remembered.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType

from . import _compat
from .errors import (
    BackendError,
    BrokenBackendError,
    DuplicateBackendError,
    MissingFrameworkError,
    UnknownBackendError,
)
from .host import load_errors

CONTRACT = (
    "name", "xp", "capabilities", "devices", "asarray", "to_numpy", "synchronize", "jit", "vjp"
)  # fmt: skip

CAPABILITIES = {
    "float64": "has float64 arrays",
    "float16": "has float16 arrays",
    "bfloat16": "has bfloat16 arrays",
    "jit": "`jit` compiles a function whose arguments are traced",
    "vjp": "`vjp` differentiates in reverse: the framework's own, or `attnspec.vjp`",
    "autodiff": "the framework itself differentiates, in reverse and to any order",
    "jvp": "the framework differentiates in forward mode",
    "vmap": "`vmap` maps a function over an axis of its arguments",
    "pytree": "`Struct`s pass through the framework's transforms as trees of arrays",
    "in_place": "arrays may be written to",
    "lazy": "values are not there until they are asked for",
    "device_argument": "creation functions take `device=`",
    "known_shapes": "every axis has a known length",
    "second_device": "`devices()` lists a second device on which arrays cannot meet those of the first",
}


@dataclass(frozen=True)
class Entry:
    """One registration: where the backend's module is, and who registers it."""

    name: str
    module: str
    distribution: str
    version: str


def registered() -> dict[str, list[Entry]]:
    """Every name with its distinct registrations, sorted, so that no order of discovery can matter."""
    found: dict[str, dict[str, Entry]] = {}
    for point in entry_points(group=_compat.BACKENDS_GROUP):
        dist = point.dist
        entry = Entry(point.name, point.value, dist.name if dist else "?", dist.version if dist else "?")
        found.setdefault(point.name, {}).setdefault(point.value, entry)
    return {name: [found[name][value] for value in sorted(found[name])] for name in sorted(found)}


def load(name: str) -> ModuleType:
    """The backend's module, imported and checked against the contract."""
    entry = _the_one(name)
    try:
        module = import_module(entry.module)
    except ModuleNotFoundError as error:
        missing = error.name or "a module"
        if missing.partition(".")[0] == entry.module.partition(".")[0]:
            raise _broken(entry, error) from error
        own = entry.distribution == __package__
        hint = f"{entry.distribution}[{name}]" if own else missing
        msg = f"backend {name!r} needs {missing!r}, which is not installed: pip install '{hint}'"
        raise MissingFrameworkError(msg) from error
    except Exception as error:
        raise _broken(entry, error) from error
    lacking = [part for part in CONTRACT if not hasattr(module, part)]
    try:
        unknown = sorted(set(getattr(module, "capabilities", ())) - set(CAPABILITIES))
    except TypeError as error:
        raise _broken(entry, error) from error
    if lacking or unknown:
        faults = [f"lacks {', '.join(lacking)}"] if lacking else []
        faults += [f"declares unknown capabilities {', '.join(unknown)}"] if unknown else []
        raise _broken(entry, TypeError(" and ".join(faults)))
    load_errors()  # a framework that was not imported before knows the Structs from here on
    return module


def status(name: str) -> ModuleType | BackendError:
    """The loaded module, or the reason why there is none."""
    try:
        return load(name)
    except BackendError as error:
        return error


def _the_one(name: str) -> Entry:
    entries = registered().get(name)
    if not entries:
        names = ", ".join(registered()) or "none"
        msg = f"no backend named {name!r}; registered: {names}. Install the distribution that registers it."
        raise UnknownBackendError(msg)
    if len(entries) > 1:
        claims = " and ".join(f"{e.module} (from {e.distribution} {e.version})" for e in entries)
        msg = f"backend {name!r} is registered more than once: {claims}. Uninstall all but one."
        raise DuplicateBackendError(msg)
    return entries[0]


def _broken(entry: Entry, error: Exception) -> BrokenBackendError:
    return BrokenBackendError(
        f"backend {entry.name!r} ({entry.module}, from {entry.distribution} {entry.version}) does not load: "
        f"{type(error).__name__}: {error}. Reinstall or uninstall {entry.distribution}."
    )
