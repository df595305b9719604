"""Which clauses fail which wrong implementation: `python conformance/meta_tests/matrix.py` prints the table (Markdown).

Attentions (`wrong`) are judged by every law, faults of components (`faults`) by every test of their module.
"""

from __future__ import annotations

import json
import sys

import faults
import wrong
from attnspec_conformance.clauses import CLAUSES
from attnspec_conformance.laws import LAWS
from attnspec_conformance.subjects import judge
from distributions import python


def failed_by_laws(subject):
    """The clauses of the laws that the subject fails."""
    return {
        clause
        for law in LAWS.values()
        if any(not verdict.ok for _, verdict in judge(law, subject)[0])
        for clause in law.clauses
    }


def failed_by_tests():
    """The same for every fault of a component."""
    for line in python("-m", "faults", "--every-clause", *faults.FAULTS).stdout.splitlines():
        outcome = json.loads(line)
        yield outcome["name"], set(outcome["failed"])


def row(name, broken, failed):
    """One line of the table; the clause that the fault breaks stands first."""
    missed = [clause for clause in broken if clause not in failed]
    others = [clause for clause in CLAUSES if clause in failed and clause not in broken]
    print(f"| {name} | {', '.join(broken)} | {'no: ' + ', '.join(missed) if missed else 'yes'} | {', '.join(others)} |")
    return not missed


if __name__ == "__main__":
    print("| wrong implementation | breaks | failed by it | failed by other clauses too |\n| --- | --- | --- | --- |")
    caught = [row(name, clauses, failed_by_laws(cls())) for name, (cls, clauses) in wrong.CATALOGUE.items()]
    caught += [row(name, (faults.FAULTS[name].clause,), failed) for name, failed in failed_by_tests()]
    print(f"\n{len(caught)} wrong implementations, {sum(caught)} failed by their own clause")
    print(f"faultless: failed by {', '.join(failed_by_laws(wrong.Faultless())) or 'none'}")
    sys.exit(0 if all(caught) else 1)
