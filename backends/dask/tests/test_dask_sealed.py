"""Functions of reproducible mode by chunks: the bits of NumPy, and few tasks."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
from attnspec_dask.sealed import sealed
from conftest import normal  # type: ignore[import-not-found]

from attnspec.reproducible import elementary
from attnspec.reproducible.sums import product, total

X = normal(1, 2, 5, 7, 3, dtype="float64")
X[0, 1, 2] = np.inf, 1.0, 2.0


def checked(function: Any, *arrays: Any, chunks: int, tasks: int | None = None, **static: Any) -> None:
    """The bits of NumPy; in so many tasks more than the arrays have, if it is a matter of chunks."""
    given = [da.from_array(x, chunks=dict.fromkeys(range(x.ndim - 1), chunks)) for x in arrays]
    found = sealed(function, *given, **static)
    with np.errstate(all="ignore"):
        wanted = function(*arrays, **static)
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_array_equal(found.compute(), wanted)
    if tasks is not None:
        assert len(found.__dask_graph__()) - sum(len(x.__dask_graph__()) for x in given) == tasks


@pytest.mark.parametrize("name", ["exp", "log", "tanh", "erfc", "sin"])
def test_functions_of_each_number(name: str) -> None:
    checked(getattr(elementary, name), X, chunks=3, tasks=1 * 2 * 3)


@pytest.mark.parametrize("vectors", [False, True])
def test_products_of_chunks_of_rows(vectors: bool) -> None:
    a, b = normal(2, 5, 4, 6, dtype="float64"), normal(3, 2, 1, 6, 3, dtype="float64")
    a[1, 2, 3] = np.nan
    given = da.from_array(a, chunks=(2, 3, 6)), da.from_array(b, chunks=(1, 1, 6, 3))
    found = sealed(product, *given, vectors=vectors)
    assert found.numblocks == (2, 3, 2, 1)
    with np.errstate(all="ignore"):
        wanted = product(a, b, vectors=vectors)
    np.testing.assert_array_equal(found.compute(), wanted)
    # Rows that are cut are not joined: they may be longer than memory.
    cut = sealed(product, given[0].rechunk({-1: 4}), given[1], vectors=vectors)
    assert [any("multiplied" in name for name in x.__dask_graph__().layers) for x in (found, cut)] == [True, False]
    np.testing.assert_array_equal(cut.compute(), wanted)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, -1, 1, (0, -2), ()])
def test_sums_of_one_chunk_and_of_many(axis: Any, keepdims: bool) -> None:
    checked(total, X, chunks=8, tasks=1, axis=axis, keepdims=keepdims)
    checked(total, X, chunks=3, axis=axis, keepdims=keepdims)


def test_empty_arrays() -> None:
    checked(total, X[:, :0], chunks=8, axis=0, keepdims=False)
    checked(elementary.exp, X[:, :0], chunks=8)
