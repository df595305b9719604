"""The pytest plug-in. Load it with `-p attnspec_conformance.plugin`; it is no entry point, so nobody gets it unasked.

A test that takes `backend` runs on each backend; one that takes `subject` and `law` on each backend in each mode, and
on each foreign subject. Marks name clauses and capabilities, never a backend: `clause("NORM-1")`, `needs("jit")`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from attnspec import registry
from attnspec.errors import BackendError, OptionError

from . import foreign, known_failures, placement, report, reports, selection
from .clauses import CLAUSES
from .gathering import COMPILED, KNOWN, Gathering, label
from .laws import LAWS
from .placement import Placed
from .reports import Findings
from .subjects import BackendSubject, Subject
from .trials import OF_SUBJECTS, Law

_BACKENDS = pytest.StashKey[dict[str, Placed]]()
_RUN = pytest.StashKey[int]()
_TESTS = 50
_FOREIGN = pytest.StashKey[list[Subject]]()
GATHERING = pytest.StashKey[Gathering]()
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
    group.addoption(
        "--attnspec-subject",
        action="append",
        default=[],
        metavar="MODULE:NAME",
        help="foreign kernel to hold the laws of attention to (repeatable); backends are then judged only if named",
    )
    group.addoption(
        "--attnspec-clause",
        action="append",
        default=[],
        metavar="NAME",
        help="only what judges this clause, or one that begins like it: MASK-6, MASK (repeatable)",
    )
    group.addoption("--attnspec-level", metavar="LEVEL", help="only clauses of this level: required or extended")
    group.addoption("--attnspec-json", metavar="FILE", help="write the report as JSON")
    group.addoption("--attnspec-html", metavar="FILE", help="write the report as one HTML page")
    group.addoption("--attnspec-slow", action="store_true", help="run the tests that take long or much memory")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "clause(*identifiers): the clauses that the test judges")
    config.addinivalue_line("markers", "needs(*capabilities): run where the backend declares them all")
    config.addinivalue_line("markers", "slow: runs only with --attnspec-slow")
    # A framework's deprecations are its own affair, ours are not; every other warning is an error.
    for line in ("error", "default::DeprecationWarning", "error::DeprecationWarning:attnspec"):
        config.addinivalue_line("filterwarnings", line)
    config.option.strict_markers = True
    names, subjects = config.getoption("attnspec_backend"), config.getoption("attnspec_subject")
    chosen = names or ([] if subjects else list(registry.registered()))
    config.stash[_BACKENDS] = _load(chosen, config.getoption("attnspec_device"), strictly=bool(names))
    config.stash[_FOREIGN] = list(map(_foreign, subjects))
    try:
        clauses = selection.select(config.getoption("attnspec_clause"), config.getoption("attnspec_level"))
    except OptionError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[GATHERING] = Gathering(clauses)
    config.pluginmanager.register(config.stash[GATHERING])


def pytest_report_header(config: pytest.Config) -> list[str]:
    entries = registry.registered()
    loaded = [
        f"{name} ({entries[name][0].distribution} {entries[name][0].version})" for name in config.stash[_BACKENDS]
    ]
    device = config.getoption("attnspec_device")
    where = f", on {device}" if device else ""
    header = [f"attnspec backends: {', '.join(loaded) or 'none'}{where}"]
    subjects = [subject.name for subject in config.stash[_FOREIGN]]
    return [*header, f"attnspec subjects: {', '.join(subjects)}"] if subjects else header


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    backends = metafunc.config.stash[_BACKENDS]
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", backends.values(), ids=list(backends), scope="session")
    if "law" in metafunc.fixturenames:
        pairs = [
            pytest.param(subject, law, id=f"{subject.name}-{law.name}", marks=_marks(law))
            for subject in (*_subjects(backends), *metafunc.config.stash[_FOREIGN])
            for law in LAWS.values()
            if law.jitted or not getattr(subject, "jitted", False)
        ]
        metafunc.parametrize(("subject", "law"), pairs)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        _check_marks(item)
    _excuse(config, items)
    _deselect(config, items)
    capabilities = {name: BackendSubject(backend).capabilities for name, backend in config.stash[_BACKENDS].items()}
    capabilities |= {subject.name: subject.capabilities for subject in config.stash[_FOREIGN]}
    for item in items:
        name, needs = _judged(item), _named(item, "needs")
        lacking = sorted(needs - set(capabilities.get(name, needs)))
        slow = item.get_closest_marker("slow") is not None and not config.getoption("attnspec_slow")
        if slow:
            item.add_marker(pytest.mark.skip(reason="slow: runs with --attnspec-slow"))
        if lacking:
            item.add_marker(pytest.mark.skip(reason=f"{name} does not declare {', '.join(lacking)}"))
        label(item, name, _test(item), _named(item, "clause"), applies=not lacking, postponed=slow)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """After some tests, backends forget what they compiled for them: what the whole suite compiles is too much."""
    stash = item.config.stash
    stash[_RUN] = stash.get(_RUN, 0) + 1
    if stash[_RUN] % _TESTS == 0:
        for backend in stash[_BACKENDS].values():
            if hasattr(backend, "forget"):
                backend.forget()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    judged = [Findings(found) for found in config.stash[GATHERING].reports()]
    report.write(terminalreporter, [findings.report for findings in judged])
    reports.write(judged, json=config.getoption("attnspec_json"), html=config.getoption("attnspec_html"))


def _load(names: Sequence[str], device: str | None, *, strictly: bool) -> dict[str, Placed]:
    """The backends of these names: those that load and have the device, or strictly all of them."""
    loaded = {}
    for name in names:
        try:
            loaded[name] = placement.load(name, device)
        except (BackendError, LookupError) as error:
            if strictly:
                raise pytest.UsageError(str(error)) from error
    return loaded


def _foreign(spec: str) -> Subject:
    try:
        return foreign.load(spec)
    except (Exception, SystemExit) as error:  # whatever somebody's module raises while it is imported
        raise pytest.UsageError(f"{type(error).__name__}: {error}") from error


def _subjects(backends: dict[str, Any]) -> Iterator[BackendSubject]:
    for backend in backends.values():
        yield BackendSubject(backend)
        if "jit" in backend.capabilities:
            yield BackendSubject(backend, jitted=True)


def _marks(law: Law) -> list[pytest.MarkDecorator]:
    needs = [pytest.mark.needs(*sorted(law.needs))] if law.needs else []
    return [pytest.mark.clause(*law.clauses), *needs]


def _check_marks(item: pytest.Item) -> None:
    for mark, vocabulary in (("clause", CLAUSES), ("needs", registry.CAPABILITIES | OF_SUBJECTS)):
        unknown = sorted(_named(item, mark) - set(vocabulary))
        if unknown:
            msg = f"{item.nodeid}: {mark} names {', '.join(unknown)}, which is none of {', '.join(vocabulary)}"
            raise pytest.UsageError(msg)


def _named(item: pytest.Item, mark: str) -> set[str]:
    return {name for found in item.iter_markers(mark) for name in found.args}


def _judged(item: pytest.Item) -> str:
    """The name of the backend, or of the foreign subject, that the test judges."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    backend, subject = params.get("backend"), params.get("subject")
    for one in item.config.stash[_FOREIGN]:
        if subject is one:
            return str(one.name)
    judged = getattr(subject, "backend", backend)
    return str(judged.name) if isinstance(judged, Placed) else ""


def _test(item: pytest.Item) -> str:
    """What a report calls the test: its law, or where it is to be found."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    if "law" in params:
        return f"{params['law'].name}{COMPILED if getattr(params['subject'], 'jitted', False) else ''}"
    module: Any = getattr(item, "module", None)
    return f"{module.__name__}::{item.name}" if module else item.nodeid


def _names(item: pytest.Item) -> set[str]:
    """What an entry of known_failures.toml may call the test: its law, its function, or both with its parameters."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    law = params.get("law")
    return {item.name, law.name if law else getattr(item, "originalname", item.name)}


def _deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests that judge the clauses asked about, and a subject that is there."""
    clauses, backends = set(config.stash[GATHERING].clauses), config.stash[_BACKENDS]

    def asked(item: pytest.Item) -> bool:
        named = _named(item, "clause")
        ours = item.path.parent == _SUITE or "backend" in getattr(item, "fixturenames", ())
        return (not named or bool(named & clauses)) and (bool(backends) or bool(_judged(item)) or not ours)

    left_out = [item for item in items if not asked(item)]
    if left_out:
        items[:] = [item for item in items if asked(item)]
        config.hook.pytest_deselected(items=left_out)


def _excuse(config: pytest.Config, items: list[pytest.Item]) -> None:
    whole = _is_whole(config, items)
    for name, backend in config.stash[_BACKENDS].items():
        _apply(name, backend, [item for item in items if _judged(item) == name], whole)


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
            item.user_properties.append((KNOWN, entry.kind))


def _is_whole(config: pytest.Config, items: list[pytest.Item]) -> bool:
    """Whether the whole suite was collected, so that an entry without a test is a mistake."""
    narrowed = config.option.keyword or config.option.markexpr or config.getoption("deselect", None)
    collected = {item.path for item in items}
    every = set(_SUITE.glob("test_*.py"))
    return not narrowed and not any("::" in arg for arg in config.args) and every <= collected
