"""SHARD-5: in reproducible mode no bit depends on the number of workers. The law is in `laws.shard`."""

from __future__ import annotations

from typing import Any

import pytest

from attnspec.host import DEFAULT, host_of

from .judges import holds
from .laws.shard import the_number_of_workers_changes_no_bit
from .subjects import Reproducible, judge


@pytest.mark.clause("SHARD-5")
def test_no_bit_depends_on_the_number_of_workers(backend: Any) -> None:
    # Where each call is a program to compile, those along the sequence are asked.
    most = None if host_of(backend.like).run is DEFAULT.run else 1
    verdicts, unsupported = judge(the_number_of_workers_changes_no_bit, Reproducible(backend), most)
    assert verdicts
    assert not unsupported
    for _, verdict in verdicts:
        holds(verdict)
