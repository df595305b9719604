"""array-api-strict computes with NumPy: its warnings are silenced, nothing else is taken from it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import array_api_strict as xp
import numpy as np

from attnspec.host import Host
from attnspec.overwriting import InPlace


def scope() -> AbstractContextManager[None]:
    """Overflow and NaN are values here, defined by the spec, and no reason to warn."""
    return np.errstate(all="ignore")


_Array = type(xp.zeros(()))


def concrete(*arrays: object) -> bool:
    """Its own arrays always have values."""
    return all(type(a) is _Array for a in arrays)


def exp(x: Any, least: float | None, visible: Any = None) -> tuple[Any, Any]:
    """By functions of the standard, of which none writes in place."""
    y = xp.exp(x)
    sunk = y < xp.finfo(x.dtype).smallest_normal
    return xp.where(sunk, 0.0, y), xp.any(sunk if visible is None else sunk & visible, axis=-1, keepdims=True)


def veil(visible: Any, like: Any) -> Any:
    """Nothing needs to be prepared."""
    return visible


def hide(x: Any, visible: Any) -> Any:
    """0 where not visible."""
    return xp.where(visible, x, 0.0)


def extremes(x: Any) -> tuple[float, float]:
    """Two passes."""
    return float(xp.min(x)), float(xp.max(x))


IN_PLACE = InPlace(exp, None, veil, hide, extremes)

HOST = Host(scope=scope, concrete=concrete, device_of=lambda x: x.device, in_place=IN_PLACE)
