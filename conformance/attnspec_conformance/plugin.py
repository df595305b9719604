"""The pytest plug-in. Load it with `-p attnspec_conformance.plugin`; it is no entry point, so nobody gets it unasked.

A test that takes `backend` runs on each backend, one that takes `subject` and `law` on each backend in each mode.
Marks name clauses and capabilities, never a backend: `clause("NORM-1")`, `needs("jit")`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attnspec import registry
from attnspec.backend import choose
from attnspec.errors import BackendError

from . import known_failures, placement, report
from .clauses import CLAUSES
from .laws import LAWS
from .placement import Placed
from .subjects import BackendSubject
from .trials import Law

_BACKENDS = pytest.StashKey[dict[str, Any]]()
_SUITE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("attnspec")
    group.addoption(
        "--attnspec-backend",
        action="append",
        default=[],
        metavar="NAME",
        help="backend to judge (repeatable); default: every registered backend that loads",
    )
    group.addoption(
        "--attnspec-device",
        metavar="DEV",
        help="make every array on this device of the backend, by its name (cuda:0); default: the backend's own",
    )
    group.addoption("--attnspec-slow", action="store_true", help="run the tests that take long or much memory")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "clause(*identifiers): the clauses that the test judges")
    config.addinivalue_line("markers", "needs(*capabilities): run where the backend declares them all")
    config.addinivalue_line("markers", "slow: runs only with --attnspec-slow")
    # A framework's deprecations are its own affair, ours are not; every other warning is an error.
    for line in ("error", "default::DeprecationWarning", "error::DeprecationWarning:attnspec"):
        config.addinivalue_line("filterwarnings", line)
    config.option.strict_markers = True
    config.stash[_BACKENDS] = _load(config.getoption("attnspec_backend"), config.getoption("attnspec_device"))


def pytest_report_header(config: pytest.Config) -> list[str]:
    entries = registry.registered()
    loaded = [
        f"{name} ({entries[name][0].distribution} {entries[name][0].version})" for name in config.stash[_BACKENDS]
    ]
    device = config.getoption("attnspec_device")
    where = f", on {device}" if device else ""
    return [f"attnspec backends: {', '.join(loaded) or 'none'}{where}"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    backends = metafunc.config.stash[_BACKENDS]
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", backends.values(), ids=list(backends), scope="session")
    if "law" in metafunc.fixturenames:
        pairs = [
            pytest.param(subject, law, id=f"{subject.name}-{law.name}", marks=_marks(law))
            for subject in _subjects(backends)
            for law in LAWS.values()
            if law.jitted or not subject.jitted
        ]
        metafunc.parametrize(("subject", "law"), pairs)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    backends = config.stash[_BACKENDS]
    for item in items:
        _check_marks(item)
        name = _backend_name(item)
        item.user_properties.append(("attnspec_backend", name))
        item.user_properties.append(("attnspec_clauses", sorted(_named(item, "clause"))))
        if item.get_closest_marker("slow") and not config.getoption("attnspec_slow"):
            item.add_marker(pytest.mark.skip(reason="slow: runs with --attnspec-slow"))
        if name in backends:
            lacking = sorted(_named(item, "needs") - set(backends[name].capabilities))
            if lacking:
                item.add_marker(pytest.mark.skip(reason=f"{name} does not declare {', '.join(lacking)}"))
    whole = _is_whole(config, items)
    for name, backend in backends.items():
        _apply(name, backend, [item for item in items if _backend_name(item) == name], whole)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    report.write(terminalreporter)


def _load(names: list[str], device: str | None) -> dict[str, Placed]:
    """The backends asked for, all of which have to load and have the device, or those registered that do."""
    loaded = {}
    for name in names or registry.registered():
        try:
            backend = choose(name)
            if hasattr(backend, "enable"):
                backend.enable("float64")
            loaded[name] = Placed(backend, placement.find(backend, device) if device else None)
        except (BackendError, LookupError) as error:
            if names:
                raise pytest.UsageError(str(error)) from error
    return loaded


def _subjects(backends: dict[str, Any]) -> Iterator[BackendSubject]:
    for backend in backends.values():
        yield BackendSubject(backend)
        if "jit" in backend.capabilities:
            yield BackendSubject(backend, jitted=True)


def _marks(law: Law) -> list[pytest.MarkDecorator]:
    needs = [pytest.mark.needs(*sorted(law.needs))] if law.needs else []
    return [pytest.mark.clause(*law.clauses), *needs]


def _check_marks(item: pytest.Item) -> None:
    for mark, vocabulary in (("clause", CLAUSES), ("needs", registry.CAPABILITIES)):
        unknown = sorted(_named(item, mark) - set(vocabulary))
        if unknown:
            msg = f"{item.nodeid}: {mark} names {', '.join(unknown)}, which is none of {', '.join(vocabulary)}"
            raise pytest.UsageError(msg)


def _named(item: pytest.Item, mark: str) -> set[str]:
    return {name for found in item.iter_markers(mark) for name in found.args}


def _backend_name(item: pytest.Item) -> str:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    backend = params.get("backend") or getattr(params.get("subject"), "backend", None)
    return "" if backend is None else str(backend.name)


def _names(item: pytest.Item) -> set[str]:
    """What an entry of known_failures.toml may call the test: its law, its function, or both with its parameters."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    law = params.get("law")
    return {item.name, law.name if law else getattr(item, "originalname", item.name)}


def _apply(name: str, backend: Any, items: list[pytest.Item], whole: bool) -> None:
    try:
        entries = known_failures.read(backend)
    except known_failures.InvalidEntryError as error:
        raise pytest.UsageError(str(error)) from error
    for entry in entries:
        hits = [item for item in items if entry.test in _names(item)]
        if not hits and whole:
            msg = f"{name}: known_failures.toml names {entry.test}, which is no test of the suite"
            raise pytest.UsageError(msg)
        mark = (
            pytest.mark.skip(reason=entry.why)
            if entry.kind == "never"
            else pytest.mark.xfail(reason=entry.why, strict=True)
        )
        for item in hits:
            item.add_marker(mark)


def _is_whole(config: pytest.Config, items: list[pytest.Item]) -> bool:
    """Whether the whole suite was collected, so that an entry without a test is a mistake."""
    narrowed = config.option.keyword or config.option.markexpr or config.getoption("deselect", None)
    collected = {item.path for item in items}
    every = set(_SUITE.glob("test_*.py"))
    return not narrowed and not any("::" in arg for arg in config.args) and every <= collected
