"""Eight devices in one process, and tests that are asked for by `--attnspec-slow`, as in the suite."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

# Read when JAX makes its devices, at the first computation. Programs of tests run once: they need not be fast.
os.environ["XLA_FLAGS"] = " ".join(
    (os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=8", "--xla_backend_optimization_level=0")
)


def pytest_addoption(parser: pytest.Parser) -> None:
    with suppress(ValueError):  # the suite's plugin has it already, if both are loaded
        parser.addoption("--attnspec-slow", action="store_true", help="run the tests that take long or much memory")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: runs only with --attnspec-slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") is not None and not config.getoption("attnspec_slow"):
            item.add_marker(pytest.mark.skip(reason="slow: runs with --attnspec-slow"))
