"""A run: for each case and size every subject is prepared and checked, then all take turns, then memory is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from .bench_imports import imported, statements
from .bench_measure import Sample, Timer, take_turns, timer
from .bench_memory import free, peak
from .bench_own import base
from .bench_peers import Field, field
from .bench_problems import Case, Problem, problem
from .bench_reference import Exact, error, exact
from .bench_report import Report, Row, machine, versions
from .bench_sizes import Size, spelled
from .bench_subjects import Subject, UnsuitedError
from .bench_threads import threads

__all__ = ["Told", "run"]

Told: TypeAlias = Callable[[str, int, int], None]

MOST = 0.7  # of the free memory


def run(
    cases: Sequence[Case],
    sizes: list[Size] | None,
    backends: Sequence[str] | None,
    against: Sequence[str],
    *,
    rounds: int = 7,
    count: int = 1,
    dtype: str = "float32",
    memory: bool = True,
    told: Told = lambda what, done, total: None,
) -> Report:
    """Measure the cases at those sizes, or at their own, with `count` threads.

    Raises
    ------
    errors.OptionError, errors.BackendError
        Before anything is measured, for a backend that was named and is not there, and for a dtype.
    """
    with threads(count) as limited:
        entered = field(backends, against, dtype)
        rows = [
            row
            for case in cases
            for size in case.sized(sizes)
            for row in (
                _imports(case, size, entered, rounds, told)
                if case.what == "import"
                else _calls(problem(case, size, dtype), entered.subjects, rounds, memory, told)
            )
        ]
        known = versions(["attnspec", "array-api-compat", *(subject.library for subject in entered.subjects)])
    absent = [(one.name, one.why) for one in entered.absent]
    return Report(rows, absent, machine(), known, count, limited, rounds, dtype)


def _calls(asked: Problem, subjects: Sequence[Subject], rounds: int, memory: bool, told: Told) -> list[Row]:
    what, done = f"{asked.case.name} {spelled(asked.size)}", 0
    total = len(subjects) * (1 + rounds + memory)

    def one_more() -> None:
        nonlocal done
        done += 1
        told(what, done, total)

    right, rows, timers = exact(asked), [], {}
    for subject in subjects:
        row, timed = _prepared(subject, asked, right)
        rows.append(row)
        if timed is not None:
            timers[subject.name] = timed
        one_more()
    samples = take_turns(timers, rounds, one_more)
    measured = []
    for row in rows:
        taken = samples.get(row.subject, [])
        filled = _timed(row, taken) if taken else row
        if memory and filled.error is not None:  # what has no result needs none
            filled = replace(filled, peak=peak(row.subject, asked.case.name, asked.size, asked.dtype))
            one_more()
        measured.append(filled)
    if done < total:  # some were not measured
        told(what, total, total)
    return measured


def _prepared(subject: Subject, asked: Problem, right: list[Exact]) -> tuple[Row, Timer | None]:
    """Its row with the error, and what takes its times; or why it has none."""
    row = Row(asked.case.name, asked.size, subject.name, subject.beside)
    needed = subject.held(asked)
    if needed > MOST * free():
        return replace(row, why=f"it needs {needed / 1e9:.1f} GB, more than is free"), None
    try:
        ready = subject.prepare(asked)
        results = ready.results(ready.call())
        return replace(row, error=error(results, right) if results else None), timer(ready.call)
    except UnsuitedError as reason:
        return replace(row, why=str(reason)), None
    except Exception as failure:  # whatever a library raises, the others are still measured
        first = str(failure).strip().partition("\n")[0]
        return replace(row, why=f"{type(failure).__name__}: {first}"), None


def _imports(case: Case, size: Size, entered: Field, rounds: int, told: Told) -> list[Row]:
    bases = {base(s.name.partition(" ")[2]): None for s in entered.subjects if s.name.startswith("attnspec ")}
    asked = statements(list(bases))
    done = 0

    def one_more() -> None:
        nonlocal done
        done += 1
        told(case.name, done, rounds * len(asked))

    samples = take_turns({name: imported(statement) for name, (statement, _) in asked.items()}, rounds, one_more)
    return [
        _timed(Row(case.name, size, name, beside), taken)
        for (name, taken), (_, beside) in zip(samples.items(), asked.values(), strict=True)
    ]


def _timed(row: Row, samples: Sequence[Sample]) -> Row:
    """With the samples, in as many digits as a clock may be good for."""
    cpu, wall = (tuple(float(f"{seconds:.5g}") for seconds in clock) for clock in zip(*samples, strict=True))
    return replace(row, cpu=cpu, wall=wall)
