"""Functions of reproducible mode as one task for each chunk, where an operation alone would be tens of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da

from attnspec.reproducible import elementary
from attnspec.reproducible.sums import product, total

from .graph import quietly


def sealed(function: Callable[..., Any], *arrays: da.Array, **static: Any) -> da.Array:
    """`function(*arrays, **static)`: of each number, of rows and a matrix, of one chunk; else operation by operation.

    Sums along several chunks are left to Dask's trees.
    """
    x = arrays[0]
    if function.__module__ == elementary.__name__:
        return da.map_blocks(quietly, function, x, dtype=x.dtype, meta=x._meta)
    if function is product and x.ndim > 1 and arrays[1].ndim > 1 and _whole(x, -1) and _whole(arrays[1], -1, -2):
        return _product(*arrays, **static)
    if function is total and x.npartitions == 1:
        return _total(x, **static)
    return function(*arrays, **static)


def _whole(x: da.Array, *axes: int) -> bool:
    return all(x.numblocks[axis] == 1 for axis in axes)


def _product(a: da.Array, b: da.Array, **static: Any) -> da.Array:
    """Chunks along leading axes and along the rows of a; those along leading axes broadcast."""
    lead = tuple(range(max(a.ndim, b.ndim) - 2))
    row, inner, column = (len(lead) + n for n in range(3))
    of_a, of_b = ((*lead[len(lead) - (x.ndim - 2) :], *own) for x, own in ((a, (row, inner)), (b, (inner, column))))
    return da.blockwise(
        _multiplied, (*lead, row, column), a, of_a, b, of_b, concatenate=True, dtype=a.dtype, meta=a._meta, **static
    )


def _multiplied(a: Any, b: Any, **static: Any) -> Any:
    return quietly(product, a, b, **static)


def _total(x: da.Array, axis: Any, keepdims: bool) -> da.Array:
    axes = {n % x.ndim for n in (range(x.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis)}
    left = [n for n in range(x.ndim) if n not in axes]
    chunks = tuple((1,) if n in axes else x.chunks[n] for n in (range(x.ndim) if keepdims else left))
    dropped = [] if keepdims else sorted(axes)
    return da.map_blocks(
        quietly, total, x, axis=axis, keepdims=keepdims, drop_axis=dropped, chunks=chunks, dtype=x.dtype, meta=x._meta
    )
