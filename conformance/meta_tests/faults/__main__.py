"""Run the suite's tests under one fault after another; see the package."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import traceback
from collections import defaultdict
from pathlib import Path

import attnspec_conformance
import pytest

from . import FAULTS, Fault

SUITE = Path(attnspec_conformance.__file__).parent


class Failures:
    """A plug-in that keeps the tests of the fault's clause and notes which of them fail, by clause."""

    def __init__(self, fault: Fault, every: bool) -> None:
        self.fault, self.every = fault, every
        self.failed: dict[str, list[str]] = defaultdict(list)
        self.ran = 0

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if not self.every:
            items[:] = [item for item in items if self.fault.clause in clauses(item)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.ran += report.when == "call" and not report.skipped
        if report.failed:
            for clause in dict(report.user_properties)["attnspec_clauses"]:
                self.failed[clause].append(report.nodeid.rpartition("::")[2])


def modules(fault: Fault) -> list[str]:
    """The modules of the suite that may have a test of the clause."""
    named = [path for path in sorted(SUITE.glob("test_*.py")) if f'"{fault.clause}"' in path.read_text("utf-8")]
    return [str(SUITE / f"{fault.tests}.py")] if fault.tests else list(map(str, named))


def clauses(item: pytest.Item) -> set[str]:
    """The clauses that a test is marked with."""
    return {name for mark in item.iter_markers("clause") for name in mark.args}


def run(name: str, every: bool) -> dict[str, object]:
    """The outcome of the suite under a fault."""
    fault = FAULTS[name]
    seen = Failures(fault, every)
    plugin = ("-p", "attnspec_conformance.plugin", "-p", "no:cacheprovider", "--assert=plain", "-q")
    place = ("-c", os.devnull, "--rootdir", str(SUITE), "--attnspec-backend", "numpy")
    tests = modules(fault)
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        try:
            fault.install(patch)
        except AttributeError:  # the part that it replaces has another name now
            traceback.print_exc(file=output)
        else:
            if tests:
                pytest.main([*plugin, *place, *tests, *(() if every else ("-x",))], plugins=[seen])
    return {"name": name, "ran": seen.ran, "failed": dict(seen.failed), "output": output.getvalue()[-2000:]}


if __name__ == "__main__":
    names = [argument for argument in sys.argv[1:] if argument != "--every-clause"]
    for name in names:
        print(json.dumps(run(name, "--every-clause" in sys.argv)), flush=True)
