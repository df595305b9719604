"""The suite judged beyond attention: with a part of attnspec replaced by a faulty one, the clause's tests fail."""

from __future__ import annotations

import json

import faults
import pytest
import wrong
from attnspec_conformance.clauses import CLAUSES
from distributions import python


@pytest.fixture(scope="module")
def outcomes(request):
    """What became of the faults that this run asks about, all in one process."""
    asked = [item.callspec.params["name"] for item in request.session.items if "outcomes" in item.fixturenames]
    done = python("-m", "faults", *asked)
    assert done.returncode == 0, done.stdout + done.stderr
    return {outcome["name"]: outcome for outcome in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", faults.FAULTS)
def test_a_fault_is_failed_by_the_tests_of_its_clause(outcomes, name):
    fault, outcome = faults.FAULTS[name], outcomes[name]
    assert outcome["ran"], outcome["output"]
    assert fault.clause in outcome["failed"], f"{outcome['ran']} tests of {fault.clause} pass with {name}"


def test_every_clause_is_broken_by_some_fault():
    by_laws = {clause for _, clauses in wrong.CATALOGUE.values() for clause in clauses}
    assert by_laws | {fault.clause for fault in faults.FAULTS.values()} == set(CLAUSES)
