"""What identical bits cost: `reproducible.attention` beside `attention`, and what the cost is made of.

    python conformance/benchmarks/reproducible.py [--rounds 7] [--length 2048]

8 heads of 64, as many queries as keys, and one query over 4096 keys in a cache, on one thread: medians of the CPU time
of calls that take turns in one process, in nanoseconds for each score, and their ratio. Then, for NumPy, the same
matrix products alone, the slices of q, k and v, the exponentials, and the rest.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from statistics import median
from time import process_time
from typing import Any, NamedTuple

POOLS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
os.environ.update(dict.fromkeys(POOLS, "1"))  # libraries read it when they are loaded
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import numpy as np  # noqa: E402

import attnspec  # noqa: E402
from attnspec import reproducible  # noqa: E402
from attnspec.backend import choose  # noqa: E402
from attnspec.errors import BackendError  # noqa: E402
from attnspec.reproducible import slices, tiles  # noqa: E402

H, D, CACHED = 8, 64, 4096
ROWS, CHUNK = 512, 256  # of a tile
DTYPES = ("float32", "float16", "bfloat16")

Call = Callable[[], Any]


class Pair(NamedTuple):
    """The same in both modes."""

    name: str
    scores: int
    default: Call
    identical: Call


def main() -> None:
    """Print the table and the breakdown."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--length", type=int, default=2048)
    given = options.parse_args()
    print("| | default, ns | reproducible, ns | ratio |\n|---|---|---|---|")
    for pair in _pairs(given.length):
        default, identical = (1e9 * t / pair.scores for t in _turns([pair.default, pair.identical], given.rounds))
        print(f"| {pair.name} | {default:.2f} | {identical:.2f} | {identical / default:.2f} |")
        sys.stdout.flush()
    print("\n| numpy, ns | products alone | slices | exponentials | rest | all |\n|---|---|---|---|---|---|")
    for dtype in DTYPES[:2]:
        products, cut, exponentials, whole = _breakdown(dtype, given.length, given.rounds)
        rest = whole - products - cut - exponentials
        print(f"| {dtype} | {products:.2f} | {cut:.2f} | {exponentials:.2f} | {rest:.2f} | {whole:.2f} |")


def _turns(calls: list[Call], rounds: int) -> list[float]:
    """Medians of the CPU time of calls that take turns, after one of each."""
    for call in calls:
        call()
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, times in zip(calls, taken, strict=True):
            start = process_time()
            call()
            times.append(process_time() - start)
    return [median(times) for times in taken]


def _pairs(length: int) -> Iterator[Pair]:
    for of_backend in (_of_numpy, _of_torch, _of_jax):
        with suppress(BackendError):  # not installed
            yield from of_backend(length)


def _of_numpy(length: int) -> Iterator[Pair]:
    return _eager("numpy", length)


def _of_torch(length: int) -> Iterator[Pair]:
    choose("torch")
    import torch

    torch.set_num_threads(1)
    return _eager("torch", length)


def _eager(name: str, length: int) -> Iterator[Pair]:
    for dtype in DTYPES:
        q, k, v = (_array(name, dtype, length, seed) for seed in range(3))
        calls = (lambda f=f, x=(q, k, v): f(*x) for f in (attnspec.attention, reproducible.attention))
        yield Pair(f"{name} {dtype}", H * length**2, *calls)
    q, k, v = _array(name, "float32", 1, 0), *(_array(name, "float32", CACHED, seed) for seed in (1, 2))
    cache = reproducible.Cache.empty(kv_heads=H, capacity=CACHED, key_width=D, lead=(1,), like=choose(name).xp)
    held = cache.append(k, v).rows()
    yield Pair(
        f"{name} decoding", H * CACHED, lambda: attnspec.attention(q, k, v), lambda: reproducible.attention(q, *held)
    )


def _of_jax(length: int) -> Iterator[Pair]:
    choose("jax")
    import jax

    for dtype in DTYPES:
        arrays = [_array("jax", dtype, length, seed) for seed in range(3)]
        programs = (jax.jit(f).lower(*arrays).compile() for f in (attnspec.attention, reproducible.attention))
        calls = (lambda f=f, x=arrays: jax.block_until_ready(f(*x)) for f in programs)
        yield Pair(f"jax.jit {dtype}", H * length**2, *calls)


def _array(name: str, dtype: str, length: int, seed: int) -> Any:
    backend = choose(name)
    x = backend.asarray(np.random.default_rng(seed).standard_normal((1, H, length, D), dtype=np.float32))
    return backend.xp.astype(x, attnspec.shapes.named_dtype(dtype, x))


def _breakdown(dtype: str, length: int, rounds: int) -> tuple[float, ...]:
    """Nanoseconds for each score: products, slices, exponentials, all; the first two of one tile of 256 keys."""
    q, k, v = (_array("numpy", dtype, length, seed) for seed in range(3))
    numbers = [x.astype(np.float64) for x in (q, k, v)]
    cuts = (slices.q_slice, slices.k_slices, slices.v_slices)

    def cut() -> list[Any]:
        return [f(x, eager=True) for f, x in zip(cuts, numbers, strict=True)]

    of_q, (of_k, _), (of_v, *_) = cut()
    factors = of_q[0, 0, :ROWS], of_k[0, 0, :CHUNK].T
    scores = factors[0] @ factors[1]
    scores *= 40 * tiles.OCTAVE / abs(scores).max()  # as far apart as those of ordinary numbers
    pairs = [factors, (scores.copy(), of_v[0, 0, :CHUNK])]
    products, exponentials = _turns(
        [lambda: [a @ b for a, b in pairs], lambda: tiles.weights(np, scores.copy(), eager=True, near=True)],
        20 * rounds,
    )
    slicing, whole = _turns([cut, lambda: reproducible.attention(q, k, v)], rounds)
    each = (products / scores.size, slicing / (H * length**2), exponentials / scores.size, whole / (H * length**2))
    return tuple(1e9 * t for t in each)


if __name__ == "__main__":
    main()
