"""Hooks of a conftest: tests marked `slow` run with `--attnspec-slow` alone, as those of the suite do."""

from __future__ import annotations

from contextlib import suppress

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    with suppress(ValueError):  # the suite's plugin has it already, if both are loaded
        parser.addoption("--attnspec-slow", action="store_true", help="run the tests that take long or much memory")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: runs only with --attnspec-slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") is not None and not config.getoption("attnspec_slow"):
            item.add_marker(pytest.mark.skip(reason="slow: runs with --attnspec-slow"))
