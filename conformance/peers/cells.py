"""A report on a peer, as the cells of a table: holds, differs, fails or cannot, clause by clause.

A failed trial *differs* where the clause is a choice of attnspec's that the peer's documentation makes otherwise or
leaves open (`choices.toml`, `differs`), and *fails* where it breaks what the documentation promises, or what follows
from the formula that it gives. A clause of which no trial could be asked *cannot* be expressed.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from attnspec_conformance.clauses import CLAUSES
from attnspec_conformance.laws import LAWS
from attnspec_conformance.verdict import Entry, Report
from catalogue import Choices, Peer


def cells(
    report: Report,
    peer: Peer,
    choices: Choices,
    reproduce: Callable[[Entry], str],
    left: Callable[[Entry, frozenset[str]], str | None] = lambda entry, named: entry.message,
) -> dict[str, dict[str, Any]]:
    """A cell for each clause that is about attention itself: its verdict, its counts, and an example of each fault.

    `left(entry, named)`: what is still wrong with a failed trial once the rows that these choices are about are set
    right, None if nothing is.
    """
    codes: dict[tuple[str, int], str] = {}

    def code(entry: Entry) -> str:
        where = entry.law, entry.trial
        if where not in codes:
            codes[where] = reproduce(entry)
        return codes[where]

    failed = {clause: _failed(report, clause, peer, choices, left) for clause in report.clauses}
    # A drawn call is about many clauses at once. Where laws of some of these fail, it is taken to show the same again.
    faulty = {clause for clause, found in failed.items() if any(e.law in LAWS and not r for e, r in found)}
    return {
        clause: _cell(
            clause,
            [entry for entry in report.entries if clause in entry.clauses],
            [(e, r) for e, r in found if r or e.law in LAWS or clause in faulty or faulty.isdisjoint(e.clauses)],
            sorted({name for e, r in found if not r and e.law not in LAWS for name in faulty.intersection(e.clauses)}),
            code,
        )
        for clause, found in failed.items()
    }


def _failed(
    report: Report, clause: str, peer: Peer, choices: Choices, left: Callable[[Entry, frozenset[str]], str | None]
) -> list[tuple[Entry, tuple[str, ...]]]:
    """The trials of a clause that failed, each with what excuses it, or with nothing and what is left to be wrong."""
    failed = []
    for entry in report.entries:
        if entry.outcome == "failed" and clause in entry.clauses:
            reason = excuse(entry, clause, peer, choices)
            reasons = () if reason is None else (reason,)
            if not reasons:
                reasons, message = _by_rows(entry, peer, choices, left)
                entry = replace(entry, message=message)
            failed.append((entry, reasons))
    return failed


def stale(report: Report, peer: Peer) -> list[str]:
    """What the peer is said to differ in, and passed: a claim about it that is not so."""
    failed = [entry for entry in report.entries if entry.outcome == "failed"]
    names = {name for entry in failed for name in (f"{entry.law}[{entry.trial}]", entry.law, *entry.clauses)}
    return sorted(set(peer.differs) - names)


def excuse(entry: Entry, clause: str, peer: Peer, choices: Choices) -> str | None:
    """Why a failed trial of the clause is a difference and no fault; None where it is a fault.

    A trial is named before its law, and that before its clause, since it says more exactly what is meant; and a peer's
    own words come before choices.
    """
    for name in (f"{entry.law}[{entry.trial}]", entry.law, clause):
        if name in peer.promises:
            return None
        if name in peer.differs:
            return peer.differs[name]
        for kind, table in choices.trials.items():
            if name in table and ALLOWS[kind](entry):
                return table[name]
    return None


def _undefined(entry: Entry) -> bool:
    return re.match(r"refused with |raised |\w+\[[\d, ]*\] is nan, wanted ", entry.message) is not None


# What a peer may do where attnspec chose: the kinds of choices.toml.
ALLOWS: dict[str, Callable[[Entry], bool]] = {
    "open": lambda entry: True,
    "undefined": _undefined,
    "half": lambda entry: entry.worst <= 1e4,
    "dtype": lambda entry: _undefined(entry) or entry.message.startswith(("the dtype of ", "lse has dtype ")),
}


def about_rows(peer: Peer, choices: Choices) -> list[str]:
    """The choices about rows that the peer is free to make otherwise."""
    return [name for name in choices.rows if name not in peer.promises]


def _by_rows(
    entry: Entry, peer: Peer, choices: Choices, left: Callable[[Entry, frozenset[str]], str | None]
) -> tuple[tuple[str, ...], str]:
    """The choices without whose rows nothing is wrong; and what is wrong, without the rows of all of them."""
    free = about_rows(peer, choices)
    message: str | None = entry.message
    for named in (*([name] for name in free), free):
        if named and (message := left(entry, frozenset(named))) is None:
            return tuple(peer.differs.get(name, choices.rows[name]) for name in named), entry.message
    return (), message or entry.message


def _cell(
    clause: str,
    entries: Sequence[Entry],
    failed: Sequence[tuple[Entry, tuple[str, ...]]],
    others: Sequence[str],
    code: Callable[[Entry], str],
) -> dict[str, Any]:
    count = Counter(entry.outcome for entry in entries)
    faults = [entry for entry, reasons in failed if not reasons]
    departures = [(entry, reasons) for entry, reasons in failed if reasons]
    verdict = "fails" if faults else "differs" if departures else "holds" if count["passed"] else "cannot"
    reasons = Counter(entry.message for entry in entries if entry.outcome == "unsupported")
    cell: dict[str, Any] = {
        "verdict": verdict,
        "level": CLAUSES[clause].level,
        "passed": count["passed"],
        "failed": len(faults),
        "differed": len(departures),
        "of other clauses": count["failed"] - len(failed),
        "unsupported": count["unsupported"],
        "why unsupported": [reason for reason, _ in reasons.most_common(3)],
        "why different": sorted({reason for _, reasons in departures for reason in reasons}),
        "other clauses": [name for name in others if name != clause],
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
