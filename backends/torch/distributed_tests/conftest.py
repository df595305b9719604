"""Groups of processes that stay for the whole run, and tests asked for by `--attnspec-slow`, as in the suite."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from ranks import Ranks  # type: ignore[import-not-found]

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))


def pytest_addoption(parser: pytest.Parser) -> None:
    with suppress(ValueError):  # the suite's plugin has it already, if both are loaded
        parser.addoption("--attnspec-slow", action="store_true", help="run the tests that take long or much memory")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: runs only with --attnspec-slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") is not None and not config.getoption("attnspec_slow"):
            item.add_marker(pytest.mark.skip(reason="slow: runs with --attnspec-slow"))


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
