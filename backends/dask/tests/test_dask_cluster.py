"""Attention on worker processes: the same answer where one dies in the middle, an error in time where all do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import D, E, G, H, call, chunked  # type: ignore[import-not-found]
from dask.distributed import Client, KilledWorker, LocalCluster
from distributed.scheduler import NoWorkerError

import attnspec
from attnspec import reproducible

TIMEOUT = 120  # seconds, for whatever waits
FEW = 5  # seconds without any worker


@pytest.fixture(scope="module")
def limits() -> Iterator[None]:
    """How long Dask waits, and how many deaths a task may have."""
    limits = {
        "distributed.comm.timeouts.connect": "30s",
        "distributed.comm.timeouts.tcp": "30s",
        "distributed.worker.memory.terminate": False,
        "distributed.scheduler.allowed-failures": 1,
        "distributed.scheduler.no-workers-timeout": f"{FEW}s",
    }
    with dask.config.set(limits):
        yield


@pytest.fixture(scope="module")
def client(limits: None) -> Iterator[Client]:
    """A client of two workers, each a process of its own. They are started anew when they die."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster, timeout=TIMEOUT) as client,
    ):
        client.wait_for_workers(2, timeout=TIMEOUT)
        yield client


@pytest.fixture
def mortal(limits: None) -> Iterator[Client]:
    """A client of two workers that nobody starts anew."""
    with (
        LocalCluster(n_workers=0, dashboard_address=":0") as cluster,
        Client(cluster, timeout=TIMEOUT) as client,
        ExitStack() as stack,
    ):
        command = (sys.executable, "-m", "dask", "worker", cluster.scheduler_address, "--no-nanny", "--no-dashboard")
        paths = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
        for _ in range(2):
            worker = stack.enter_context(
                subprocess.Popen((*command, "--nthreads", "1"), env=paths, stderr=subprocess.DEVNULL)
            )
            stack.callback(worker.kill)
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
    found = reproducible.attention_with_lse(*chunks_of(arrays), mask=mask)
    for x, y in zip(answer(client, *found), reproducible.attention_with_lse(*arrays, mask=mask), strict=True):
        np.testing.assert_array_equal(x, y)


def deadly(keys: da.Array, chunk: int, once: Path | None) -> da.Array:
    """Keys of which one chunk, when it is read, takes its worker with it: the first time only, if a marker is given."""

    def read(keys: Any, block_info: Any = None) -> Any:
        if block_info and block_info[0]["chunk-location"][-2] == chunk and not (once and once.exists()):
            if once:
                once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return keys

    return keys.map_blocks(read, dtype=keys.dtype, meta=keys._meta)


def test_a_worker_that_dies_in_the_middle_changes_no_bit(client: Client, tmp_path: Path) -> None:
    arrays = call(K=1100)
    q, k, v = chunks_of(arrays)
    died = tmp_path / "died"
    before = set(client.scheduler_info(n_workers=-1)["workers"])
    exact = reproducible.attention_with_lse(q, deadly(k, 13, died), v)
    for x, y in zip(answer(client, *exact), reproducible.attention_with_lse(*arrays), strict=True):
        np.testing.assert_array_equal(x, y)
    assert died.exists()
    client.wait_for_workers(2, timeout=TIMEOUT)
    assert set(client.scheduler_info(n_workers=-1)["workers"]) != before


def test_default_mode_after_the_death_of_a_worker_is_the_answer_of_one_process(client: Client, tmp_path: Path) -> None:
    q, k, v = chunks_of(call(K=1100, dtype="float64"))
    died = tmp_path / "died"
    mask, dropout = attnspec.padding(1000), attnspec.Dropout(0.5, attnspec.random.key(1))

    def pulled(k: da.Array) -> list[da.Array]:
        out, back = attnspec.vjp(lambda *qkv: attnspec.attention(*qkv, mask=mask, dropout=dropout), q, k, v)
        return [out, *back(out)]

    found = answer(client, *pulled(deadly(k, 13, died)))
    assert died.exists()
    for x, y in zip(found, dask.compute(*pulled(k), scheduler="synchronous"), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_chunk_that_kills_whoever_reads_it_ends_in_an_error(client: Client) -> None:
    q, k, v = chunks_of(call(K=1100))
    with pytest.raises(KilledWorker, match="those workers died while running it"):
        answer(client, attnspec.attention(q, deadly(k, 13, None), v))
    client.wait_for_workers(2, timeout=TIMEOUT)


def test_with_every_worker_gone_the_answer_is_an_error_in_bounded_time(mortal: Client) -> None:
    q, k, v = chunks_of(call(K=1100))
    with pytest.raises((NoWorkerError, KilledWorker), match="workers"):
        answer(mortal, attnspec.attention(q, deadly(deadly(k, 13, None), 17, None), v))
    assert not mortal.scheduler_info(n_workers=-1)["workers"]
    with pytest.raises(NoWorkerError, match=f"{FEW}.* s waiting without any running workers"):
        answer(mortal, attnspec.attention(*chunks_of(call(K=1100, dtype="float64"))))  # no task that has died already
