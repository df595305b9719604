"""A report together with what shows its failures: for each clause that failed, code that fails again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..verdict import Entry, Report, Tally

SECONDS, MOST_SECONDS = 20.0, 4.0


@dataclass(frozen=True, eq=False)
class Failure:
    """A trial that failed, and a reproduction: code to be pasted into Python, or nothing."""

    entry: Entry
    code: str


@dataclass(frozen=True, eq=False)
class Findings:
    """What is known of one subject."""

    report: Report
    failures: tuple[Failure, ...] = ()


def of_report(report: Report, reproduce: Callable[[Entry, float], str]) -> Findings:
    """The report with a reproduction for each clause that failed, those that failed most come first.

    `reproduce(entry, seconds)` is given a share of the time that all of them may take together.
    """
    chosen: list[Entry] = []
    for clause in sorted(report.by_clause().values(), key=_share_failed, reverse=True):
        failing = [entry for entry in report.entries if entry.outcome == "failed" and clause.clause in entry.clauses]
        if failing and not any(clause.clause in entry.clauses for entry in chosen):
            chosen.append(min(failing, key=_breadth))
    seconds = min(MOST_SECONDS, SECONDS / max(len(chosen), 1))
    return Findings(report, tuple(Failure(entry, reproduce(entry, seconds)) for entry in chosen))


def _share_failed(tally: Tally) -> float:
    return tally.failed / max(tally.failed + tally.passed, 1)


def _breadth(entry: Entry) -> tuple[int, int]:
    """A trial of few clauses says more of each, and small calls are read faster."""
    return len(entry.clauses), sum(call.q.size + call.k.size + call.v.size for call in entry.calls)
