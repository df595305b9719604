"""Dask's namespace of the Array API, with what it leaves out of the standard."""

from __future__ import annotations

import math
from typing import Any

import array_api_compat.dask.array as _compat
import dask.array as da
import numpy as np
from array_api_compat.dask.array import *  # noqa: F403
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task, TaskRef


def __getattr__(name: str) -> Any:
    return getattr(_compat, name)


def zeros(shape: int | tuple[int, ...], **options: Any) -> da.Array:
    """Dask divides by zero where it is to choose chunks for an array that is empty (dask/dask#12537)."""
    empty = isinstance(shape, tuple) and 0 in shape
    return _compat.zeros(shape, **({"chunks": shape} if empty else {}), **options)


def max(x: da.Array, /, *, axis: int | None = None, keepdims: bool = False) -> da.Array:
    """Dask refuses an empty array, also where what it is reduced along is not empty: nothing is left of it then."""
    empty = axis is not None and x.size == 0 and x.shape[axis] != 0
    return (_compat.sum if empty else _compat.max)(x, axis=axis, keepdims=keepdims).astype(x.dtype)


def reshape(x: da.Array, shape: tuple[int, ...], **options: Any) -> da.Array:
    """Dask merges neighbouring axes, or splits one, of arrays that are not empty; the rest goes by way of one axis."""
    if x.npartitions == 1 or x.size == 0:
        return _of_one_chunk(x.rechunk(x.shape) if x.ndim else x, shape)
    try:
        return _compat.reshape(x, shape, **options)
    except (NotImplementedError, TypeError):  # the second where it stumbles over axes that it would have refused
        return _compat.reshape(_compat.reshape(x, (-1,)), shape, **options)


def _of_one_chunk(x: da.Array, shape: tuple[int, ...]) -> da.Array:
    known = math.prod(n for n in shape if n != -1)
    shape = tuple(x.size // (known or 1) if n == -1 else n for n in shape)
    name = f"reshape-{tokenize(x.name, shape)}"
    key = (name, *(0,) * len(shape))
    tasks = {key: Task(key, np.reshape, TaskRef((x.name, *(0,) * x.ndim)), shape)}
    graph = HighLevelGraph.from_collections(name, tasks, [x])
    return da.Array(graph, name, tuple((n,) for n in shape), dtype=x.dtype, meta=x._meta)


def take_along_axis(x: da.Array, indices: da.Array, /, *, axis: int = -1) -> da.Array:
    """What Dask lacks (dask/dask#3663): each chunk of indices takes from x, whole along that axis."""
    axis %= x.ndim
    index = tuple(range(x.ndim))
    of_x = (*index[:axis], x.ndim, *index[axis + 1 :])
    return da.blockwise(_taken, index, indices, index, x, of_x, axis=axis, concatenate=True, dtype=x.dtype)


def _taken(indices: Any, x: Any, axis: int) -> Any:
    return np.take_along_axis(x, indices, axis)
