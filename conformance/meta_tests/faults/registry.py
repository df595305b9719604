"""What a fault of a component is, and the table of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

Install = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Fault:
    """What has to fail: a clause, by the tests of a module of the suite or, without one, of all of them, on NumPy."""

    clause: str
    tests: str | None
    install: Install


FAULTS: dict[str, Fault] = {}


def breaks(clause: str, tests: str | None = None) -> Callable[[Install], Install]:
    """Enter a fault; the function's name says what is wrong."""

    def enter(install: Install) -> Install:
        FAULTS[install.__name__] = Fault(clause, tests, install)
        return install

    return enter
