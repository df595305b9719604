"""`attnspec backends`, and how the other commands choose one."""

from __future__ import annotations

import json
import os
import re
import sys
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import registry
from .._compat import FLOATING, Array
from ..backend import VARIABLE, Backend, choose
from ..errors import OptionError
from ..host import load_errors as host_errors

__all__ = ["backends", "device_name", "numbers", "pick"]

DEFAULT = "numpy"


def backends(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """List the backends: who provides each, where it runs, what it can do, or why it can't load."""
    rows = [_describe(name, entries) for name, entries in registry.registered().items()]
    if as_json:
        for row in rows:
            print(json.dumps(row))
        return
    table = Table("backend", show_lines=True)
    for heading in ("distribution, framework", "devices", "capabilities"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        origin = [*row["distributions"], row["framework"] or "does not load"]
        what = Text(", ".join(row["capabilities"])) if row["error"] is None else Text(row["error"], style="red")
        table.add_row(row["name"], Text("\n".join(origin)), Text("\n".join(row["devices"])), what)
    Console().print(table)
    for root, error in host_errors().items():
        print(f"the host for {root} does not load, so its arrays are taken as unknown ones: {error}", file=sys.stderr)


def pick(name: str | None, dtype: str, device: str | None) -> tuple[Backend, Any]:
    """The backend with `dtype` switched on, and its device of that name (None: the default one).

    Without a name it is the backend that ATTNSPEC_BACKEND names, NumPy if unset.
    """
    chosen = choose(name or os.environ.get(VARIABLE) or DEFAULT)
    if dtype not in FLOATING:
        raise OptionError(f"no dtype {dtype!r}. Choose one of {', '.join(FLOATING)}.")
    if dtype != "float32":
        if dtype not in chosen.capabilities:
            raise OptionError(f"backend {chosen.name!r} has no {dtype}. Choose another backend, or float32.")
        getattr(chosen, "enable", lambda capability: None)(dtype)
    return chosen, None if device is None else _device(chosen, device)


def numbers(backend: Backend, array: Array) -> Any:
    """The array in NumPy, if it has numbers: some devices compute shapes only."""
    try:
        return backend.to_numpy(array)
    except NotImplementedError:
        name = device_name(array.device)
        raise OptionError(f"device {name!r} computes shapes, no numbers. Choose another device.") from None


def device_name(device: Any) -> str:
    """How the command line spells a device: its own spelling, or what that has between quotes."""
    quoted = re.search("'(.+)'", str(device))
    return quoted[1] if quoted else str(device)


def _device(chosen: Backend, wanted: str) -> Any:
    """The first device that is spelled like this, or else has it in its spelling ("cpu", "cuda")."""
    devices = {device_name(device): device for device in chosen.devices()}
    exact = [name for name in devices if name.lower() == wanted.lower()]
    close = [name for name in devices if wanted.lower() in name.lower()]
    if not close:
        names = ", ".join(devices)
        raise OptionError(f"backend {chosen.name!r} has no device {wanted!r}. It has: {names}.")
    return devices[(exact or close)[0]]


def _describe(name: str, entries: list[registry.Entry]) -> dict[str, Any]:
    row = {
        "name": name,
        "distributions": [f"{entry.distribution} {entry.version}" for entry in entries],
        "framework": None,
        "devices": [],
        "capabilities": [],
        "error": None,
    }
    try:
        module = registry.load(name)
        loaded = {
            "framework": _framework(module),
            "devices": list(map(device_name, module.devices())),
            "capabilities": sorted(module.capabilities),
        }
    except Exception as error:  # whatever a plug-in raises, the others are still listed
        return row | {"error": str(error) or type(error).__name__}
    return row | loaded


def _framework(module: ModuleType) -> str:
    """The library that the backend's arrays come from, with its version."""
    root = type(module.asarray([0.0], dtype="float32")).__module__.partition(".")[0]
    return f"{root} {getattr(sys.modules[root], '__version__', '')}".strip()
