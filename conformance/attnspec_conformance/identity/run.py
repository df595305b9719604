"""One environment, in a process of its own: the digest of each problem, written as JSON.

python -m attnspec_conformance.identity.run BACKEND DEVICE MODE THREADS MKLDNN SHARE SEED PROBLEMS FILE [NUMBER]

An empty DEVICE is the backend's own. With a NUMBER, that problem alone, and its numbers as .npz; with "cuts" for it,
the invariances.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from attnspec import reproducible
from attnspec.backend import choose
from attnspec.struct import arrays_in

from ..masks import Array
from ..placement import Placed, find
from .calls import CONFIGURATIONS
from .invariances import all_checked
from .problems import Configuration, Problem, drawn

Results = dict[str, Array]


def main(
    backend: str, device: str, mode: str, threads: str, mkldnn: str, share: str,
    seed: str, count: str, file: str, only: str = "",
) -> None:  # fmt: skip
    """What the command line asks for."""
    chosen = choose(backend)
    runner = Runner(Placed(chosen, find(chosen, device)) if device else chosen, mode)
    turns = len(CONFIGURATIONS) * int(share)
    problems = [p for p in drawn(int(seed), int(count), CONFIGURATIONS) if p.number % turns < len(CONFIGURATIONS)]
    found: dict[Any, Any]
    with _set(backend, mode, int(threads), mkldnn == "True"):
        if only == "cuts":
            found = {name: (count, differing) for name, count, differing in all_checked(runner.backend, int(seed))}
        elif only:
            (problem,) = (p for p in problems if p.number == int(only))
            np.savez(file, **{name or ".": x for name, x in runner.results(problem).items()})
            return
        else:
            found = {problem.number: runner.finding(problem) for problem in problems}
    with open(file, "w", encoding="utf-8") as out:
        json.dump(found, out)


class Runner:
    """Computes problems on a backend, called as `mode` says."""

    def __init__(self, backend: Any, mode: str = "eager") -> None:
        self.backend, self.mode = backend, mode
        self._functions: dict[tuple[str, bool], Callable[..., Any]] = {}

    def finding(self, problem: Problem) -> dict[str, Any] | None:
        """{"digest", "values", "nan"}: whether NaN is where the definition says; None where dtypes lack."""
        if problem.configuration.dtypes - {"float32"} - set(self.backend.capabilities):
            return None
        try:
            results = self.results(problem)
        except Exception as error:  # a problem that fails is a mismatch, and must not end the run
            return {"digest": f"{type(error).__name__}: {error}", "values": 0, "nan": False}
        return {
            "digest": digest(results), "values": sum(x.size for x in results.values()),
            "nan": nan_as_defined(problem, results),
        }  # fmt: skip

    def results(self, problem: Problem) -> Results:
        """Every array of the result before the last rounding, and as it is returned, by name."""
        found: Results = {}
        with self._float64(problem.configuration):
            arrays = {
                name: self._made(x, problem.configuration.operands[name].dtype) for name, x in problem.arrays.items()
            }
            for rounded in _roundings(problem.configuration):
                result = self._function(problem.configuration, rounded)(arrays)
                found |= {
                    f"{'rounded' if rounded else ''}{n}": self._plain(x) for n, x in arrays_in("", result).items()
                }
        return found

    def _made(self, x: Array, dtype: str) -> Any:
        return self.backend.asarray(x, dtype=dtype if x.dtype.kind == "f" else None)

    def _plain(self, x: Any) -> Array:
        y = np.asarray(self.backend.to_numpy(x))
        return y if y.dtype.kind in "biu" else y.astype(np.float64)

    def _float64(self, configuration: Configuration) -> AbstractContextManager[Any]:
        """JAX without 64 bits where no input has them."""
        if self.backend.name != "jax":
            return contextlib.nullcontext()
        import jax

        return jax.enable_x64("float64" in configuration.dtypes)  # type: ignore[no-any-return]

    def _function(self, configuration: Configuration, rounded: bool) -> Callable[..., Any]:
        key = (configuration.name, rounded)
        if key not in self._functions:

            def function(arrays: Any) -> Any:
                with contextlib.nullcontext() if rounded else reproducible.before_rounding():
                    return configuration.compute(reproducible, arrays)

            self._functions[key] = self.backend.jit(function) if self.mode == "jit" else function
        return self._functions[key]


def _roundings(configuration: Configuration) -> tuple[bool, ...]:
    """Whether the rounded result is compared too: rounding is the same for all, so a third of them will do."""
    if configuration.rounded:
        return (True,)
    return (False, True) if CONFIGURATIONS.index(configuration) % 3 == 0 else (False,)


def digest(results: Results) -> str:
    """Of all bits, names and shapes; one NaN is like another."""
    sha = hashlib.sha256()
    for name, x in sorted(results.items()):
        sha.update(f"{name} {x.dtype.kind} {x.shape}".encode())
        sha.update(np.where(np.isnan(x), np.nan, x).tobytes() if x.dtype.kind == "f" else x.astype(np.int64).tobytes())
    return sha.hexdigest()


def nan_as_defined(problem: Problem, results: Results) -> bool:
    """Whether NaN is in the places of the first result that the definition names, and in no others."""
    if problem.configuration.unknown is None:
        return True
    first = next(iter(results.values()))
    wanted = problem.configuration.unknown(problem.arrays)
    return bool(np.array_equal(np.isnan(first), np.broadcast_to(wanted, first.shape)))


@contextlib.contextmanager
def _set(backend: str, mode: str, threads: int, mkldnn: bool) -> Iterator[None]:
    """What is no variable of a process."""
    with contextlib.ExitStack() as stack:
        if backend == "torch":
            import torch

            torch.set_num_threads(threads)
            stack.enter_context(torch.backends.mkldnn.flags(enabled=mkldnn))
        if mode == "op by op":
            import jax

            stack.enter_context(jax.disable_jit())
        yield


if __name__ == "__main__":
    main(*sys.argv[1:])
