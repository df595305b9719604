"""Where the arrays of a call lie, as far as is known while a program is recorded."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax

from attnspec._compat import unwrapped


def device_of_all(*given: Any) -> Any:
    """The one device that they lie on, or why they may lie on several."""
    arrays = [unwrapped(x) for x in given]
    if any(not jax.typeof(x).sharding.mesh.empty for x in arrays):
        return "an array belongs to a mesh"
    held = [x for x in arrays if not isinstance(x, jax.core.Tracer)]
    devices = {device for x in held for device in x.devices()}
    if len(held) < len(arrays) or not devices:
        devices |= set(jax.devices())  # where a program will run, and on how many of them, is not known yet
    return next(iter(devices)) if len(devices) == 1 else f"the arrays may be split over {len(devices)} devices"


@cache
def platform() -> str:
    """That of the default device. To ask starts JAX, after which `jax.distributed.initialize` refuses to."""
    return str(jax.default_backend())
