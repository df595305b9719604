"""What pytest says of each test, gathered into the same reports that the laws asked live give.

Tests carry what is needed as `user_properties`, which survive the way from the processes of pytest-xdist.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from .clauses import CLAUSES
from .verdict import Entry, Outcome, Report

KNOWN = "attnspec_known"
COMPILED = " (compiled)"  # what the name of a law ends in where a compiled subject was asked
_SUBJECT, _TEST, _CLAUSES, _APPLIES = "attnspec_subject", "attnspec_test", "attnspec_clauses", "attnspec_applies"
_POSTPONED, WORST = "attnspec_postponed", "attnspec_worst"


def label(
    item: pytest.Item, subject: str, test: str, clauses: Iterable[str], *, applies: bool, postponed: bool
) -> None:
    """Tell the test's reports whom it judges and by which clauses.

    `applies`: the subject declares what the test needs. `postponed`: the test waits to be asked for.
    """
    properties = {
        _SUBJECT: subject, _TEST: test, _CLAUSES: sorted(clauses), _APPLIES: applies, _POSTPONED: postponed,
    }  # fmt: skip
    item.user_properties.extend(properties.items())


class Gathering:
    """A plug-in that makes an entry of every test that is labelled, and of these a report for each subject."""

    def __init__(self, clauses: Sequence[str]) -> None:
        self.clauses = tuple(clauses)
        self._entries: dict[str, list[Entry]] = defaultdict(list)
        self._required: dict[str, set[str]] = defaultdict(set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One entry a test: of its call, or of the phase beside it that skipped or failed."""
        properties = dict(report.user_properties)
        subject: Any = properties.get(_SUBJECT)
        if not subject or (report.when != "call" and report.outcome == "passed"):
            return
        clauses: Any = properties[_CLAUSES]
        if properties[_APPLIES]:
            self._required[subject].update(c for c in clauses if CLAUSES[c].level == "REQUIRED")
        self._entries[subject].append(
            Entry(
                law=str(properties[_TEST]),
                clauses=tuple(clauses),
                trial=0,
                outcome=_outcome(report, properties),
                message=_message(report),
                worst=float(str(properties.get(WORST, 0.0))),
            )
        )

    def reports(self) -> list[Report]:
        """A report for each subject, in the order of their names."""
        return [
            Report(
                subject=subject,
                seed=0,
                cases=0,
                capabilities=frozenset(),
                clauses=self.clauses,
                required=tuple(clause for clause in self.clauses if clause in self._required[subject]),
                entries=tuple(self._entries[subject]),
            )
            for subject in sorted(self._entries)
        ]


def _outcome(report: pytest.TestReport, properties: dict[str, object]) -> Outcome:
    if report.outcome == "skipped":
        if KNOWN in properties or hasattr(report, "wasxfail"):
            return "known"
        return "not judged" if properties[_POSTPONED] else "unsupported"
    return "passed" if report.outcome == "passed" else "failed"


def _message(report: pytest.TestReport) -> str:
    """The reason of a skip or a known failure, or what the failing line said."""
    if report.outcome == "passed":
        return ""
    if hasattr(report, "wasxfail"):
        return str(report.wasxfail)
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash else report.longreprtext).strip().splitlines()
    return lines[0].removeprefix("AssertionError: ") if lines else "failed without a word"
