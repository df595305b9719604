"""Forward and backward of attention, side by side: attnspec, autodiff through the dense formula, fused kernels.

    python conformance/benchmarks/gradients.py [--rounds 5] [1024 2048 4096 8192]

For each length, 4 heads of 64 in float32 on one thread: the median CPU time of calls that take turns in one process,
and the peak of memory over what is resident before a call, results included, in a process of its own. A subject whose
matrices do not fit into memory is left out. Linux.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

import attnspec
from attnspec.backend import choose
from attnspec.errors import BackendError

POOLS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
ONE_THREAD = dict.fromkeys(POOLS, "1") | {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
}
LENGTHS, SMALL, ROUNDS = (1024, 2048, 4096, 8192), 256, 5
H, D = 4, 64
DENSE = 9  # matrices of Q x K at the peak of a dense subject

Call = Callable[[], Any]


class Subject(NamedTuple):
    """One way to out, dq, dk and dv: from NumPy arrays q, k, v and a cotangent to a call that computes them."""

    name: str
    dense: bool
    prepare: Callable[..., Call]


def main() -> None:
    """Print a row for each length and subject."""
    if not os.environ.items() >= ONE_THREAD.items():  # libraries read it when they are loaded
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ONE_THREAD)
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("lengths", nargs="*", type=int, default=LENGTHS)
    options.add_argument("--rounds", type=int, default=ROUNDS)
    options.add_argument("--peak", metavar="SUBJECT", help="print the bytes of one subject's peak at one length")
    given = options.parse_args()
    if given.peak:
        print(_peak(next(s for s in _subjects() if s.name == given.peak), given.lengths[0]))
        return
    print("| Q = K | | CPU seconds | ratio | peak MB | ratio |\n|---|---|---|---|---|---|")
    for length in given.lengths:
        subjects = [s for s in _subjects() if not s.dense or _fits(DENSE * 4 * H * length**2)]
        seconds, peaks = _seconds(subjects, length, given.rounds), {s.name: _peak_apart(s, length) for s in subjects}
        for name, time in seconds.items():
            own = f"{name.partition(' ')[0]} attnspec"
            ratios = time / seconds[own], peaks[name] / peaks[own]
            print(f"| {length} | {name} | {time:.2f} | {ratios[0]:.2f} | {peaks[name] / 1e6:.0f} | {ratios[1]:.2f} |")
        sys.stdout.flush()


def _seconds(subjects: list[Subject], length: int, rounds: int) -> dict[str, float]:
    """Medians of calls that take turns, after one of each; and all agree on what they compute."""
    calls = {s.name: s.prepare(*_arrays(length)) for s in subjects}
    results = [[np.asarray(x) for x in call()] for call in calls.values()]
    for result in results[1:]:
        for one, other in zip(results[0], result, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-3)
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = process_time()
            call()
            taken[name].append(process_time() - start)
    return {name: median(times) for name, times in taken.items()}


def _peak_apart(subject: Subject, length: int) -> int:
    # Large blocks go back to the system when they are freed, so that the peak is that of the call.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    command = [sys.executable, __file__, "--peak", subject.name, str(length)]
    return int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def _peak(subject: Subject, length: int) -> int:
    subject.prepare(*_arrays(SMALL))()  # libraries set themselves up
    call = subject.prepare(*_arrays(length))
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident
    before = _resident()
    results = call()
    del results
    return _resident() - before


def _resident() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _fits(size: int) -> bool:
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    return size < 0.7 * 1024 * free


def _arrays(length: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((1, H, length, D), dtype=np.float32) for _ in range(4)]


def _dense(q: Any, k: Any, v: Any) -> Any:
    """softmax(q k^T / sqrt(D)) v, which a framework, or the tape of `attnspec.vjp`, differentiates step by step."""
    xp = array_namespace(q)
    s = (q @ k.mT) * D**-0.5
    e = xp.exp(s - xp.max(s, axis=-1, keepdims=True))
    return (e / xp.sum(e, axis=-1, keepdims=True)) @ v


def _subjects() -> Iterator[Subject]:
    yield from _of_numpy()
    for more in (_of_torch, _of_jax):
        with suppress(BackendError):  # not installed
            yield from more()


def _of_numpy() -> Iterator[Subject]:
    def taped(attend: Callable[..., Any]) -> Callable[..., Call]:
        def prepare(q: Any, k: Any, v: Any, g: Any) -> Call:
            def call() -> Any:
                out, pullback = attnspec.vjp(attend, q, k, v)
                return out, *pullback(g)

            return call

        return prepare

    yield Subject("numpy attnspec", False, taped(attnspec.attention))
    yield Subject("numpy dense formula", True, taped(_dense))


def _of_torch() -> Iterator[Subject]:
    choose("torch")
    import torch

    torch.set_num_threads(1)

    def recorded(attend: Callable[..., Any]) -> Callable[..., Call]:
        def prepare(*arrays: Any) -> Call:
            q, k, v, g = map(torch.from_numpy, arrays)
            for x in (q, k, v):
                x.requires_grad_()

            def call() -> Any:
                out = attend(q, k, v)
                return out.detach(), *torch.autograd.grad(out, (q, k, v), g)

            return call

        return prepare

    yield Subject("torch attnspec", False, recorded(attnspec.attention))
    yield Subject("torch dense formula", True, recorded(_dense))
    yield Subject("torch fused", False, recorded(torch.nn.functional.scaled_dot_product_attention))


def _of_jax() -> Iterator[Subject]:
    backend = choose("jax")
    import jax

    def recorded(attend: Callable[..., Any]) -> Callable[..., Call]:
        def both(q: Any, k: Any, v: Any, g: Any) -> Any:
            out, pullback = jax.vjp(attend, q, k, v)
            return out, *pullback(g)

        def prepare(*arrays: Any) -> Call:
            placed = list(map(backend.asarray, arrays))
            program = jax.jit(both).lower(*placed).compile()
            return lambda: jax.block_until_ready(program(*placed))

        return prepare

    def own(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
        return jax.nn.dot_product_attention(q, k, v).transpose(0, 2, 1, 3)

    yield Subject("jax attnspec", False, recorded(attnspec.attention))
    yield Subject("jax dense formula", True, recorded(_dense))
    yield Subject("jax its own", True, recorded(own))


if __name__ == "__main__":
    main()
