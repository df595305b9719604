"""Groups of processes that stay for the whole run, and tests asked for by `--attnspec-slow`, as in the suite."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attnspec_conformance.slow import (
    pytest_addoption as pytest_addoption,
)
from attnspec_conformance.slow import (
    pytest_collection_modifyitems as pytest_collection_modifyitems,
)
from attnspec_conformance.slow import (
    pytest_configure as pytest_configure,
)
from ranks import Ranks  # type: ignore[import-not-found]

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))


@pytest.fixture(scope="session")
def ranks() -> Iterator[Callable[[int], Ranks]]:
    """`ranks(n)`: n processes of one group, started when they are first asked for."""
    started: dict[int, Ranks] = {}

    def of(n: int) -> Ranks:
        if n not in started or started[n].ended:
            started[n] = Ranks(n)
        return started[n]

    yield of
    for group in started.values():
        group.end()
