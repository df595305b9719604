"""Attention on two worker processes: the same answer, also where one of them dies in the middle."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attnspec_dask.reproducible
import dask
import dask.array as da
import numpy as np
import pytest
from conftest import D, E, G, H, call, chunked  # type: ignore[import-not-found]
from dask.distributed import Client, LocalCluster

import attnspec
from attnspec import reproducible

TIMEOUT = 120  # seconds, for whatever waits


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client of two workers, each a process of its own. They are started anew when they die."""
    limits = {
        "distributed.comm.timeouts.connect": "30s",
        "distributed.comm.timeouts.tcp": "30s",
        "distributed.worker.memory.terminate": False,
    }
    with (
        dask.config.set(limits),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster, timeout=TIMEOUT) as client,
    ):
        client.wait_for_workers(2, timeout=TIMEOUT)
        yield client


def chunks_of(arrays: tuple[np.ndarray, ...]) -> tuple[da.Array, ...]:
    q, k, v = arrays
    return chunked(q, H, 30, D), chunked(k, G, 50, D), chunked(v, G, 50, E)


def answer(client: Client, *arrays: da.Array) -> list[Any]:
    """Computed on the workers, within the time."""
    return [future.result(timeout=TIMEOUT) for future in client.compute(arrays)]


def test_two_processes_have_the_bits_of_one(client: Client) -> None:
    arrays = call(K=1100)
    mask = attnspec.causal(align="end")
    found = attnspec_dask.reproducible.attention_with_lse(*chunks_of(arrays), mask=mask)
    for x, y in zip(answer(client, *found), reproducible.attention_with_lse(*arrays, mask=mask), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_worker_that_dies_in_the_middle_changes_no_bit(client: Client, tmp_path: Path) -> None:
    arrays = call(K=1100)
    q, k, v = chunks_of(arrays)
    died = tmp_path / "died"
    deadly = k.map_blocks(_dying, str(died), dtype=k.dtype, meta=k._meta)
    before = set(client.scheduler_info(n_workers=-1)["workers"])
    exact = attnspec_dask.reproducible.attention_with_lse(q, deadly, v)
    for x, y in zip(answer(client, *exact), reproducible.attention_with_lse(*arrays), strict=True):
        np.testing.assert_array_equal(x, y)
    assert died.exists()
    client.wait_for_workers(2, timeout=TIMEOUT)
    assert set(client.scheduler_info(n_workers=-1)["workers"]) != before


def _dying(keys: Any, marker: str, block_info: Any = None) -> Any:
    """One chunk of keys, the first time that it is read, takes its worker with it."""
    if block_info and block_info[0]["chunk-location"][-2] == 13 and not os.path.exists(marker):
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return keys


def test_default_mode_after_the_death_of_a_worker_is_the_answer_of_one_process(client: Client, tmp_path: Path) -> None:
    arrays = call(K=1100, dtype="float64")
    q, k, v = chunks_of(arrays)
    died = tmp_path / "died"
    deadly = k.map_blocks(_dying, str(died), dtype=k.dtype, meta=k._meta)
    mask = attnspec.padding(1000)
    (found,) = answer(client, attnspec.attention(q, deadly, v, mask=mask))
    assert died.exists()
    alone = attnspec.attention(q, k, v, mask=mask).compute(scheduler="synchronous")
    np.testing.assert_array_equal(found, alone)
