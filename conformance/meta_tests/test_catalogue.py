"""The suite judged: each wrong attention is failed by the clause it breaks, and a faultless one by none."""

from __future__ import annotations

import pytest
import wrong
from attnspec_conformance.laws import LAWS
from attnspec_conformance.subjects import judge


def failures(subject, law):
    verdicts, _ = judge(law, subject)
    assert law.needs <= subject.capabilities
    assert verdicts
    return [verdict.message for _, verdict in verdicts if not verdict.ok]


@pytest.mark.parametrize("law", LAWS.values(), ids=list(LAWS))
def test_a_faultless_implementation_passes_every_law(law):
    assert not failures(wrong.Faultless(), law)


@pytest.mark.parametrize("fault", wrong.CATALOGUE)
def test_a_fault_is_failed_by_each_clause_it_breaks(fault):
    cls, clauses = wrong.CATALOGUE[fault]
    for clause in clauses:
        laws = [law for law in LAWS.values() if clause in law.clauses]
        assert any(failures(cls(), law) for law in laws), f"no law of {clause} fails {fault}"


def test_the_catalogue_breaks_every_clause_that_laws_judge():
    broken = {clause for _, clauses in wrong.CATALOGUE.values() for clause in clauses}
    judged = {clause for law in LAWS.values() for clause in law.clauses}
    assert judged <= broken
