"""Attention over keys and values in zarr, larger than its workers' memory: time, bytes, and peak memory per worker.

    python backends/dask/benchmarks/out_of_core.py                      200,000 keys, two workers of 600 MB
    python backends/dask/benchmarks/out_of_core.py --keys 50000 100000 200000 --queries 512 1024
    python backends/dask/benchmarks/out_of_core.py --mode reproducible --chunk 2048 --keys 20000
    python backends/dask/benchmarks/out_of_core.py --mode gradients --progress

Each line is one run on fresh workers. "formula" is what docs/scale/dask.md says that a worker may need beyond what it
has when idle, and that workers may send each other, for the axes of that run.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import zarr
from attnspec_dask.costs import Axes, memory, moved_bytes, read_bytes
from dask.distributed import Client, LocalCluster, progress, wait

import attnspec
from attnspec import reproducible

H, D = 4, 64
MODES = ("default", "reproducible", "gradients")


def _asked(mode: str, folder: str, q: da.Array, k: da.Array, v: da.Array, mask: Any) -> tuple[Any, ...]:
    """out, and lse or what it takes to have the gradients: that of q, and those of k and v written to zarr."""
    if mode != "gradients":
        module = attnspec if mode == "default" else reproducible
        return module.attention_with_lse(q, k, v, mask=mask)  # type: ignore[no-any-return]
    out, back = attnspec.vjp(lambda q, k, v: attnspec.attention(q, k, v, mask=mask), q, k, v)
    of_q, *of_keys = back(out)
    stores = [
        zarr.create_array(f"{folder}/gradient{n}", shape=x.shape, chunks=x.chunksize, dtype=x.dtype, overwrite=True)
        for n, x in enumerate(of_keys)
    ]
    return out, of_q, *da.store(of_keys, stores, compute=False, lock=False)


def main() -> None:
    """Parse the arguments, write the keys and values, and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[200_000])
    parser.add_argument("--queries", type=int, nargs="+", default=[1024])
    parser.add_argument("--chunk", type=int, default=8192, help="keys of a chunk")
    parser.add_argument("--query-chunk", type=int, default=1024, help="queries of a chunk")
    parser.add_argument("--mode", choices=MODES, default="default")
    parser.add_argument("--causal", action="store_true", help="the last query sees every key")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--memory", default="600MB", help="of each worker")
    parser.add_argument("--progress", action="store_true", help="show a bar")
    args = parser.parse_args()
    print("keys queries | seconds tasks | peak MB of a worker, idle, formula | MB read | MB sent, formula | error")
    with tempfile.TemporaryDirectory() as folder:
        for keys, queries in itertools.product(args.keys, args.queries):
            for name in ("k", "v"):
                _write(f"{folder}/{name}{keys}", keys, args.chunk, seed=ord(name))
            _run(folder, keys, queries, args)


def _write(path: str, keys: int, chunk: int, seed: int) -> None:
    """Normal numbers, a chunk at a time."""
    store = zarr.create_array(
        path, shape=(H, keys, D), chunks=(H, chunk, D), dtype="float32", compressors=None, overwrite=True
    )
    rng = np.random.default_rng(seed)
    for start in range(0, keys, chunk):
        n = min(chunk, keys - start)
        store[:, start : start + n] = rng.standard_normal((H, n, D), dtype=np.float32)


def _run(folder: str, keys: int, queries: int, args: argparse.Namespace) -> None:
    q = np.random.default_rng(0).standard_normal((H, queries, D), dtype=np.float32)
    q_chunk = min(queries, args.query_chunk)
    mask = attnspec.causal(align="end") if args.causal else None
    axes = Axes(H=H, G=H, Q=queries, K=keys, D=D, E=D, q_chunk=q_chunk, k_chunk=min(keys, args.chunk))
    with (
        dask.config.set({"distributed.worker.memory.spill": False, "distributed.worker.memory.target": False}),
        LocalCluster(
            n_workers=args.workers, threads_per_worker=1, memory_limit=args.memory, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        client.run(_warm)
        idle = max(client.run(_peak, anew=True).values())
        k, v = (da.from_zarr(f"{folder}/{name}{keys}") for name in "kv")
        result = _asked(args.mode, folder, da.from_array(q, chunks=(H, q_chunk, D)), k, v, mask)
        tasks = len(dict(dask.optimize(*result)[0].__dask_graph__()))
        start = time.perf_counter()
        futures = client.persist(list(result))
        if args.progress:
            progress(*futures)
        wait(futures)
        out = client.gather(client.compute(futures[0]))
        seconds = time.perf_counter() - start
        peak = max(client.run(_peak).values())
        sent = sum(client.run(_sent).values())
    error = _error(f"{folder}/k{keys}", f"{folder}/v{keys}", q, out, causal=args.causal)
    exact, pulled = args.mode == "reproducible", args.mode == "gradients"
    needed = memory(axes, reproducible=exact, gradients=pulled)
    moved = moved_bytes(axes, workers=args.workers, reproducible=exact, gradients=pulled)
    print(
        f"{keys} {queries} | {seconds:.1f} {tasks} | {peak / 1e6:.0f} {idle / 1e6:.0f} {needed / 1e6:.0f} | "
        f"{read_bytes(axes, gradients=pulled) / 1e6:.0f} | {sent / 1e6:.1f} {moved / 1e6:.1f} | {error:.1e}",
        flush=True,
    )


def _warm() -> None:
    """What a worker imports and compiles belongs to its idle state."""
    x: Any = np.ones((1, 1), np.float32)
    attnspec.attention(x, x, x)
    reproducible.attention(x, x, x)


def _peak(*, anew: bool = False) -> int:
    """The most memory that the process has had, since the last time that it was asked to begin anew (Linux)."""
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def _sent(dask_worker: Any) -> int:
    """Bytes that a worker has sent to others."""
    return int(dask_worker.transfer_outgoing_bytes_total)


def _error(k: str, v: str, q: Any, out: Any, *, causal: bool) -> float:
    """The largest of a few rows of one head, against float64."""
    rows = np.linspace(0, q.shape[1] - 1, 8).astype(int)
    keys, values = (np.asarray(zarr.open_array(x)[0], np.float64) for x in (k, v))
    scores = q[0, rows].astype(np.float64) @ keys.T / np.sqrt(D)
    if causal:
        scores[np.arange(len(keys)) > rows[:, None] + len(keys) - q.shape[1]] = -np.inf
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return float(np.abs(out[0, rows] - p @ values / p.sum(-1, keepdims=True)).max())


if __name__ == "__main__":
    main()
