"""Times of calls that take turns, their ratios, and how they grow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import linear_regression, median, quantiles
from time import perf_counter, process_time
from typing import Any, NamedTuple, TypeAlias

__all__ = ["Sample", "Spread", "Timer", "exponent", "ratio", "spread", "take_turns", "timer"]

LEAST = 0.004  # seconds of a sample: a quicker call is repeated


class Sample(NamedTuple):
    """Seconds for one call: processor time of all threads of the process, and time that passed."""

    cpu: float
    wall: float


class Spread(NamedTuple):
    """The median of numbers, and the quartiles below and above it."""

    low: float
    median: float
    high: float


Timer: TypeAlias = Callable[[], Sample]
Clock: TypeAlias = Callable[[], Sample]


def now() -> Sample:
    """Both clocks."""
    return Sample(process_time(), perf_counter())


def timer(call: Callable[[], Any], clock: Clock = now) -> Timer:
    """What takes one sample of a call, after a first call that is not counted and one that says how quick it is."""
    call()
    once = _timed(call, 1, clock).wall
    count = max(1, math.ceil(LEAST / max(once, 1e-7)))
    return lambda: _timed(call, count, clock)


def _timed(call: Callable[[], Any], count: int, clock: Clock) -> Sample:
    start = clock()
    for _ in range(count):
        call()
    stop = clock()
    return Sample((stop.cpu - start.cpu) / count, (stop.wall - start.wall) / count)


def take_turns(
    timers: Mapping[str, Timer], rounds: int, told: Callable[[], None] = lambda: None
) -> dict[str, list[Sample]]:
    """In every round one sample of each. A round begins one place further on, so that nobody always follows the same.

    Examples
    --------
    >>> from attnspec.cli.bench_measure import Sample, take_turns
    >>> order = []
    >>> timers = {name: lambda name=name: order.append(name) or Sample(1.0, 1.0) for name in "abc"}
    >>> samples = take_turns(timers, rounds=2)
    >>> "".join(order), len(samples["a"])
    ('abcbca', 2)
    """
    names = list(timers)
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for n in range(rounds):
        first = n % max(1, len(names))
        for name in names[first:] + names[:first]:
            samples[name].append(timers[name]())
            told()
    return samples


def spread(numbers: Sequence[float]) -> Spread:
    """Median and quartiles."""
    if len(numbers) == 1:
        return Spread(numbers[0], numbers[0], numbers[0])
    low, _, high = quantiles(numbers, n=4, method="inclusive")
    return Spread(low, median(numbers), high)


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> Spread:
    """Of times that were taken in the same rounds, round by round: above 1 we are the quicker.

    Examples
    --------
    >>> from attnspec.cli.bench_measure import ratio
    >>> ratio([2.0, 3.0, 8.0], [1.0, 1.0, 2.0])
    Spread(low=2.5, median=3.0, high=3.5)
    """
    return spread([one / max(other, 1e-12) for one, other in zip(theirs, ours, strict=True)])


def exponent(lengths: Sequence[int], costs: Sequence[float]) -> float | None:
    """b of the line cost = a length^b that fits best in logarithms; None unless there are two lengths and costs > 0.

    Examples
    --------
    >>> from attnspec.cli.bench_measure import exponent
    >>> round(exponent([512, 1024, 2048], [3.0, 12.0, 48.0]), 6)
    2.0
    """
    if len(set(lengths)) < 2 or min(costs) <= 0:
        return None
    return float(linear_regression([math.log(n) for n in lengths], [math.log(cost) for cost in costs]).slope)
