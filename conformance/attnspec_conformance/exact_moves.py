"""Operations on arrays under watch that put numbers in other places and change none: marks move with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import array_api_compat.numpy as xp
import numpy as np

from . import exact_arrays as rules
from .exact_arrays import Watched, lifted


def moved(move: Callable[..., Any], *arrays: Watched) -> Watched:
    """Numbers in other places; `move` does it to the numbers and to each of their marks."""
    names = ("value", "loose", "hint", "fault")
    value, loose, hint, fault = (np.asarray(move(*(getattr(x, name) for x in arrays))) for name in names)
    return Watched(value, loose, hint, fault, all(x.constant for x in arrays))


def getitem(x: Watched, index: Any) -> Watched:
    """x[index]; an index may hold an array of integers."""
    parts = index if isinstance(index, tuple) else (index,)
    plain = tuple(i.value if isinstance(i, Watched) else i for i in parts)
    y = moved(lambda v: v[plain], x)
    arrays = [i for i in parts if isinstance(i, Watched)]
    y = replace(y, constant=x.constant and all(i.constant for i in arrays))
    return y.at_fault(np.full(y.value.shape, any(np.any(i.fault) for i in arrays)), rules.RANGE)


def places_only(name: str, x: Any, *args: Any, **options: Any) -> Any:
    arrays = list(x) if isinstance(x, list | tuple) else [x]
    function = getattr(xp, name)
    if isinstance(x, list | tuple):
        return moved(lambda *v: function(list(v), *args, **options), *lifted(*arrays))
    return moved(lambda v: function(v, *args, **options), x)


def taken(name: str, x: Watched, indices: Watched, *, axis: int = -1) -> Watched:
    """`take`, `take_along_axis`."""
    n = x.value.shape[axis]
    outside = (indices.value < 0) | (indices.value >= n)
    index = np.clip(indices.value, 0, max(0, n - 1))
    y = moved(lambda v: getattr(xp, name)(v, index, axis=axis), x)
    of_index = indices.at_fault(outside, rules.RANGE).fault
    if name == "take":
        of_index = np.reshape(of_index, (-1, *(1,) * (x.value.ndim - 1 - axis % x.value.ndim)))
    return replace(y, fault=np.maximum(y.fault, of_index), constant=x.constant and indices.constant)


def unstack(x: Watched, *, axis: int = 0) -> tuple[Watched, ...]:
    return tuple(moved(lambda v, n=n: np.take(v, n, axis=axis), x) for n in range(x.value.shape[axis]))


def broadcast_arrays(*arrays: Watched) -> list[Watched]:
    shape = np.broadcast_shapes(*(x.value.shape for x in arrays))
    return [moved(partial(np.broadcast_to, shape=shape), x) for x in arrays]
