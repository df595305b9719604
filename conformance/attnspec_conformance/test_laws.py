"""Every law about attention, on every backend, eager and compiled."""

from __future__ import annotations

import pytest

from .subjects import BackendSubject, judge
from .trials import Law


def test_law(subject: BackendSubject, law: Law) -> None:
    """The law's own name says what is promised."""
    # Every call is a program of its own to a compiler, so a compiled subject is asked one trial of a law.
    verdicts, unsupported = judge(law, subject, 1 if subject.jitted else None)
    if not verdicts:
        pytest.skip(f"unsupported: {unsupported[0]}")
    failed = [verdict.message for _, verdict in verdicts if not verdict.ok]
    assert not failed, f"{len(failed)} of {len(verdicts)} trials: {failed[0]}"
