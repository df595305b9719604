"""A report on a peer, as the cells of a table: holds, differs, fails or cannot, clause by clause.

A failed trial *differs* where the clause is a choice of attnspec's that the peer's documentation makes otherwise or
leaves open (`choices.toml`, `differs`), and *fails* where it breaks what the documentation promises, or what follows
from the formula that it gives. A clause of which no trial could be asked *cannot* be expressed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attnspec_conformance.clauses import CLAUSES
from attnspec_conformance.verdict import Entry, Report
from catalogue import Peer

VERDICTS = ("holds", "differs", "fails", "cannot")


def cells(
    report: Report, peer: Peer, choices: Mapping[str, str], reproduce: Callable[[Entry], str]
) -> dict[str, dict[str, Any]]:
    """A cell for each clause that is about attention itself: its verdict, its counts, and an example of each fault."""
    codes: dict[tuple[str, int], str] = {}

    def code(entry: Entry) -> str:
        where = entry.law, entry.trial
        if where not in codes:
            codes[where] = reproduce(entry)
        return codes[where]

    made = {}
    for clause in report.clauses:
        about = [entry for entry in report.entries if clause in entry.clauses]
        made[clause] = _cell(clause, about, peer, choices, code)
    return made


def stale(report: Report, peer: Peer) -> list[str]:
    """What the peer is said to differ in, and passed: a claim about it that is not so."""
    failed = {name for entry in report.entries if entry.outcome == "failed" for name in (entry.law, *entry.clauses)}
    return sorted(set(peer.differs) - failed)


def excuse(entry: Entry, clause: str, peer: Peer, choices: Mapping[str, str]) -> str | None:
    """Why a failed trial of the clause is a difference and no fault; None where it is a fault.

    A law is named before its clause, since it says more exactly what is meant, and a peer's own words before choices.
    """
    for name in (entry.law, clause):
        if name in peer.promises:
            return None
        if name in peer.differs:
            return peer.differs[name]
        if name in choices:
            return choices[name]
    return None


def _cell(
    clause: str, entries: Iterable[Entry], peer: Peer, choices: Mapping[str, str], code: Callable[[Entry], str]
) -> dict[str, Any]:
    entries = list(entries)
    failed = [(entry, excuse(entry, clause, peer, choices)) for entry in entries if entry.outcome == "failed"]
    count = Counter(entry.outcome for entry in entries)
    faults = [entry for entry, reason in failed if reason is None]
    departures = [(entry, reason) for entry, reason in failed if reason is not None]
    verdict = "fails" if faults else "differs" if departures else "holds" if count["passed"] else "cannot"
    reasons = Counter(entry.message for entry in entries if entry.outcome == "unsupported")
    cell: dict[str, Any] = {
        "verdict": verdict,
        "level": CLAUSES[clause].level,
        "passed": count["passed"],
        "failed": len(faults),
        "differed": len(departures),
        "unsupported": count["unsupported"],
        "why unsupported": [reason for reason, _ in reasons.most_common(3)],
        "why different": sorted({reason for _, reason in departures}),
    }
    if faults:
        cell["fault"] = _example(min(faults, key=_breadth), code)
    if departures:
        cell["difference"] = _example(min((entry for entry, _ in departures), key=_breadth), code)
    return cell


def _breadth(entry: Entry) -> tuple[int, int, str, int]:
    """A trial of few clauses says more of each, and small calls are read faster."""
    size = sum(call.q.size + call.k.size + call.v.size for call in entry.calls)
    return len(entry.clauses), size, entry.law, entry.trial


def _example(entry: Entry, code: Callable[[Entry], str]) -> dict[str, Any]:
    return {
        "law": entry.law,
        "trial": entry.trial,
        "message": entry.message,
        "error as a part of its bound": entry.worst if math.isfinite(entry.worst) else None,
        "code": code(entry),
    }
