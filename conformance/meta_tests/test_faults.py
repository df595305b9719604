"""The suite judged beyond attention: with a part of attnspec replaced by a faulty one, the clause's tests fail."""

from __future__ import annotations

import importlib.util
import re

import faults
import pytest
import wrong
from attnspec_conformance.clauses import CLAUSES
from distributions import suite


def differentiating():
    """A backend with reverse mode that is installed."""
    found = [name for name in ("torch", "jax") if importlib.util.find_spec(name)]
    if not found:
        pytest.skip("no framework that differentiates is installed")
    return found[0]


@pytest.mark.parametrize("name", faults.FAULTS)
def test_a_fault_is_failed_by_the_tests_of_its_clause(tmp_path, name):
    fault = faults.FAULTS[name]
    backend = differentiating() if fault.differentiates else "numpy"
    tests = f"attnspec_conformance.{fault.tests}"
    done = suite(tmp_path, "-x", "-p", "faults", "--pyargs", tests, name=backend, ATTNSPEC_FAULT=name)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(rf"^ +failed: .*\b{fault.clause}\b", done.stdout, flags=re.MULTILINE), done.stdout


def test_every_clause_is_broken_by_some_fault():
    by_laws = {clause for _, clauses in wrong.CATALOGUE.values() for clause in clauses}
    assert by_laws | {fault.clause for fault in faults.FAULTS.values()} == set(CLAUSES)
