"""The closing section of a pytest run: for each subject, what became of each clause."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .clauses import CLAUSES
from .verdict import Report


def write(terminal: Any, reports: Iterable[Report]) -> None:
    """Write it to pytest's terminal reporter: a line of counts, then the clauses that were not plainly passed."""
    for n, report in enumerate(reports):
        if n == 0:
            terminal.write_sep("=", "clauses of attnspec")
        for line in lines(report):
            terminal.write_line(line)


def lines(report: Report) -> list[str]:
    """What `write` says of one subject."""
    tallies = report.by_clause()
    outcomes = ("failed", "known", "unsupported", "not judged")
    found = {outcome: [name for name, tally in tallies.items() if tally.outcome == outcome] for outcome in outcomes}
    passed = sum(tally.outcome == "passed" for tally in tallies.values())
    counts = ", ".join(f"{len(names)} {outcome}" for outcome, names in found.items())
    text = [f"{report.subject}: {passed} passed, {counts}, of {len(tallies)} clauses"]
    text += [f"    {outcome}: {', '.join(map(_leveled, names))}" for outcome, names in found.items() if names]
    worst = max(tallies.values(), key=lambda tally: tally.worst, default=None)
    if worst is not None and worst.worst > 0:
        text.append(f"    worst error: {worst.worst:.2g} of its bound ({worst.clause})")
    return text


def _leveled(clause: str) -> str:
    return f"{clause} (E)" if CLAUSES[clause].level == "EXTENDED" else clause
