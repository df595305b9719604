"""Keras's own tests of attention, in a process of their own for each of Keras's backends.

The tests are in Keras's wheel. This module is both who starts pytest on them and a plug-in of that pytest, which puts
attnspec in the place of Keras's attention and writes down what became of each test and how often it asked for
attention. `dot_product_attention` of the backend is what is replaced and counted: layers that are asked for their
scores, or drop some of them, do not get there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

BACKENDS = ("numpy", "torch", "jax")
FILES = (
    "layers/attention/multi_head_attention_test.py",
    "layers/attention/grouped_query_attention_test.py",
    "ops/nn_test.py",
)
WHOLE = "attention_test.py or dot_product_attention"
# Compiling the layers' tests for JAX takes minutes.
QUICK = "(dot_product_attention and Correctness) or causal_only"

MODE, REPORT = "ATTNSPEC_KERAS_MODE", "ATTNSPEC_KERAS_REPORT"


@dataclass(frozen=True)
class Outcome:
    """What became of the tests, and how many calls of attention each made."""

    passed: frozenset[str]
    failed: frozenset[str]
    calls: dict[str, int]


def run(backend: str, mode: str, select: str, folder: Path) -> Outcome:
    """Run the selected tests with Keras's "own" attention, with "attnspec"'s, or with one of a "wrong sign"."""
    keras = find_spec("keras")
    assert keras is not None
    assert keras.origin is not None
    tests = [str(Path(keras.origin).parent / "src" / name) for name in FILES]
    report = folder / f"{backend}-{mode}.json"
    env = os.environ | {
        "KERAS_BACKEND": backend, "KERAS_HOME": str(folder), "PYTHONPATH": str(Path(__file__).parent),
        MODE: mode, REPORT: str(report),
    }  # fmt: skip
    options = ["-c", os.devnull, "--rootdir", str(folder), "-p", "no:cacheprovider", "-q", "-k", select]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "keras_tests", *options, *tests],
        env=env, cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), ended.stdout + ended.stderr
    written = json.loads(report.read_text())
    return Outcome(frozenset(written["passed"]), frozenset(written["failed"]), written["calls"])


class Plugin:
    """Counts calls of attention for each test of Keras, and keeps the outcomes."""

    def __init__(self, mode: str) -> None:
        self.calls: Counter[str] = Counter()
        self.ended: dict[str, set[str]] = {"passed": set(), "failed": set(), "skipped": set()}
        self.current = ""
        self.stack = ExitStack()
        self._replace(mode)

    def _replace(self, mode: str) -> None:
        from keras.src import backend

        from attnspec.integrations import keras as adapter

        if mode == "own":
            self._wrap(backend.nn, "dot_product_attention", self._counted)
            return
        self._wrap(adapter, "attention", self._counted if mode == "attnspec" else _with_a_wrong_sign)
        self.stack.enter_context(adapter.install())

    def _wrap(self, module: Any, name: str, wrapper: Callable[..., Any]) -> None:
        self.stack.enter_context(mock.patch.object(module, name, wrapper(getattr(module, name))))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls[self.current] += 1
            return function(*args, **kwargs)

        return counted

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """As Keras's own conftest, which is not in the wheel: nothing is trained on NumPy."""
        if os.environ["KERAS_BACKEND"] == "numpy":
            for item in items:
                if item.get_closest_marker("requires_trainable_backend"):
                    item.add_marker(pytest.mark.skip(reason="NumPy does not train"))

    def pytest_runtest_setup(self, item: Any) -> None:
        self.current = item.nodeid.partition("::")[2]

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.failed:
            self.ended[report.outcome].add(report.nodeid.partition("::")[2])

    def pytest_sessionfinish(self) -> None:
        self.stack.close()
        written = {name: sorted(tests) for name, tests in self.ended.items()} | {"calls": self.calls}
        Path(os.environ[REPORT]).write_text(json.dumps(written))


def _with_a_wrong_sign(attention: Callable[..., Any]) -> Callable[..., Any]:
    """Of the scale. At a third of the scale all of Keras's tests pass: its scores are so great that one key has all."""

    def wrong(q: Any, k: Any, v: Any, *, scale: float | None = None, **more: Any) -> Any:
        return attention(q, k, v, scale=-(q.shape[-1] ** -0.5 if scale is None else scale), **more)

    return wrong


def pytest_configure(config: Any) -> None:
    """The door of the plug-in."""
    config.addinivalue_line("markers", "requires_trainable_backend: Keras's own")
    config.pluginmanager.register(Plugin(os.environ[MODE]))
