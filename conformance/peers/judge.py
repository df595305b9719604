"""Judge the peers of one library, in an environment that has it: `python conformance/peers/judge.py torch`.

The cells are put into docs/peers.json, in place of what was there for these peers; `tables.py` makes the pages of it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import warnings
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from attnspec_conformance import foreign
from attnspec_conformance.drawn import drawn_laws
from attnspec_conformance.reports.reproduction import of_trial
from attnspec_conformance.verdict import Entry, judge_all
from catalogue import ASKED, HERE, LIBRARIES, Peer, choices, libraries, peers
from cells import about_rows, cells, stale
from choosing import SetRight, left, results_of
from rich.progress import Progress, TextColumn

SEED, CASES = 0, 20
RESULTS = HERE.parents[1] / "docs" / "peers.json"


def main() -> int:
    """0 if every claim of peers.toml about its peers is so: what fails in a peer is no error of this program."""
    parser = argparse.ArgumentParser(description="Judge the peers of one library.")
    parser.add_argument("library", choices=libraries())
    parser.add_argument("--peer", action="append", metavar="NAME", help="only this one (repeatable)")
    parser.add_argument("--into", type=Path, default=RESULTS, metavar="FILE")
    options = parser.parse_args()
    chosen = [peer for peer in peers(options.library) if not options.peer or peer.name in options.peer]
    into = options.into.resolve()
    os.chdir(LIBRARIES / options.library)
    sys.path.insert(0, os.getcwd())
    claims = [claim for peer in chosen for claim in _judged(peer, into)]
    for claim in claims:
        print(claim, file=sys.stderr)
    return 1 if claims else 0


def _judged(peer: Peer, into: Path) -> list[str]:
    """Judge one, write what was found, and return the claims about it that are not so."""
    subject = foreign.load(peer.subject)
    with warnings.catch_warnings(), Progress(*Progress.get_default_columns(), TextColumn("{task.fields[at]}")) as bar:
        warnings.simplefilter("ignore")  # of the peers' own arithmetic, on which they are judged by what they answer
        task = bar.add_task(peer.name, total=None, at="")
        report = judge_all(
            subject, seed=SEED, cases=CASES,
            progress=lambda done, total: bar.update(task, completed=done, total=total, at=f"{done}/{total}"),
        )  # fmt: skip
        made_by = f"foreign.load({peer.subject!r})"
        laws = ASKED | {law.name: law for law in drawn_laws(SEED, CASES)}

        @cache
        def still_wrong(entry: Entry, named: frozenset[str]) -> str | None:
            if entry.law not in laws:
                return entry.message
            trial = laws[entry.law].all_trials[entry.trial]
            return left(trial, results_of(trial, subject), named)

        def code(entry: Entry) -> str:
            free = about_rows(peer, choices())
            faulty = still_wrong(entry, frozenset(free)) is not None
            return of_trial(entry, SetRight(subject, free) if faulty else subject, made_by, SEED, CASES)

        table = cells(report, peer, choices(), code, still_wrong)
    _write(
        into,
        peer,
        {
            "suite": {"attnspec": version("attnspec"), "seed": SEED, "drawn calls": CASES, "laws": len(ASKED)},
            "python": platform.python_version(),
            "title": peer.title,
            "library": peer.library,
            "versions": {name: version(name) for name in peer.distributions},
            "documentation": peer.documentation,
            "subject": peer.subject,
            "capabilities": sorted(report.capabilities),
            "trials": len(report.entries),
            "clauses": table,
        },
    )
    return [f"{peer.name}: said to differ in {name}, and passed it: remove the claim" for name in stale(report, peer)]


def _write(into: Path, peer: Peer, found: dict[str, Any]) -> None:
    """Put it beside what is known of others, in the order of the catalogue."""
    known = json.loads(into.read_text("utf-8"))["peers"] if into.exists() else {}
    known[peer.name] = found
    order = [other.name for library in libraries() for other in peers(library)]
    document = {"peers": {name: known[name] for name in order if name in known}}
    into.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
