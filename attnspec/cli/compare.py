"""Run one computation on every backend: how long each takes, and how far their numbers are apart."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

from rich.table import Table
from rich.text import Text

from .. import registry
from .._compat import Array
from ..backend import Backend
from ..errors import AttnspecError
from .backends import device_name, numbers, pick

__all__ = ["Outcome", "Work", "on_every_backend", "tabulate"]

Work: TypeAlias = Callable[[], tuple[Array, ...]]

REPEATS, PATIENCE = 5, 0.5  # runs after the first one, seconds that they may take in all


class Outcome(NamedTuple):
    """What one backend computed, as NumPy arrays, on which device, and in how many seconds."""

    backend: str
    device: str
    first: float
    again: float
    results: tuple[Any, ...]


def on_every_backend(
    prepare: Callable[[Backend, Any], Work], names: list[str], dtype: str, device: str | None
) -> tuple[list[Outcome], list[AttnspecError]]:
    """Do the work on the named backends, or on all: what each computed, and why the others did not.

    Raises the first reason if no backend is left.
    """
    outcomes: list[Outcome] = []
    refusals: list[AttnspecError] = []
    for name in names or registry.registered():
        try:
            backend, place = pick(name, dtype, device)
        except AttnspecError as error:
            refusals.append(error)
        else:
            outcomes.append(_timed(backend, prepare(backend, place)))
    if not outcomes:
        raise refusals[0]
    return outcomes, refusals


def tabulate(outcomes: list[Outcome]) -> Table:
    """A row per backend; its difference is the largest between one of its numbers and another backend's."""
    table = Table("backend", "device", "first call", "again", "largest difference")
    for outcome in outcomes:
        times = (f"{1e3 * seconds:.2f} ms" for seconds in (outcome.first, outcome.again))
        others = [_apart(outcome.results, other.results) for other in outcomes if other is not outcome]
        difference = f"{max(others):.1e}" if others else "nothing to compare"
        table.add_row(outcome.backend, Text(outcome.device), *times, difference)
    return table


def _timed(backend: Backend, work: Work) -> Outcome:
    seconds: list[float] = []
    while len(seconds) < 2 or (len(seconds) <= REPEATS and sum(seconds[1:]) < PATIENCE):
        start = perf_counter()
        results = tuple(map(backend.synchronize, work()))
        seconds.append(perf_counter() - start)
    first, *again = seconds
    arrays = tuple(numbers(backend, array) for array in results)
    return Outcome(backend.name, device_name(results[0].device), first, min(again), arrays)


def _apart(ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> float:
    return max(float(abs(a.astype("float64") - b.astype("float64")).max()) for a, b in zip(ours, theirs, strict=True))
