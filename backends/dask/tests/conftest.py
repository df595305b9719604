"""What the tests share: arrays in chunks, and a scheduler that must not be called."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

B, H, G, Q, K, D, E = 2, 6, 3, 70, 600, 4, 5


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small chunks are computed where they are, unless a test has a cluster."""
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def nothing_is_computed() -> Iterator[None]:
    """Whatever computes fails."""

    def refuse(*args: Any, **options: Any) -> Any:
        raise AssertionError("something was computed")

    with dask.config.set(scheduler=refuse):
        yield


def normal(seed: int, *shape: int, dtype: str = "float32") -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def call(dtype: str = "float32", **axes: int) -> tuple[np.ndarray, ...]:
    """q, k and v; every axis has a length of its own."""
    n = {"B": B, "H": H, "G": G, "Q": Q, "K": K, "D": D, "E": E} | axes
    of_k = (n["B"], n["G"], n["K"])
    return (
        normal(1, n["B"], n["H"], n["Q"], n["D"], dtype=dtype),
        normal(2, *of_k, n["D"], dtype=dtype),
        normal(3, *of_k, n["E"], dtype=dtype),
    )


def chunked(x: np.ndarray, *chunks: int) -> da.Array:
    """In chunks of these lengths along its last axes, whole along the others."""
    return da.from_array(x, chunks=(*x.shape[: x.ndim - len(chunks)], *chunks))


def in_chunks(arrays: tuple[np.ndarray, ...], keys: int = 256, queries: int = 40) -> tuple[da.Array, ...]:
    q, k, v = arrays
    return chunked(q, 1, 4, queries, D), chunked(k, 1, 1, keys, D), chunked(v, 1, 1, keys, E)


def counted(x: Any, reads: list[int]) -> da.Array:
    """An array that notes which of its chunks are read."""

    def read(chunk: Any, block_info: Any = None) -> Any:
        if block_info:
            reads.append(block_info[0]["chunk-location"][-2])
        return chunk

    return x.map_blocks(read, dtype=x.dtype, meta=x._meta)


class InSmallChunks:
    """The backend, with every array in chunks of three along every axis."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def asarray(self, x: Any, **options: Any) -> da.Array:
        made = self._backend.asarray(x, **options)
        return made.rechunk(dict.fromkeys(range(made.ndim), 3)) if made.size else made
