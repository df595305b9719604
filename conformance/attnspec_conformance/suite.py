"""Everything that the suite has: for a registered backend the laws and the tests of all components, for a foreign
subject the laws, for answers in files what was asked there. This is what `attnspec conformance` runs.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from attnspec.errors import AttnspecError

from . import exchange, foreign, known_failures, placement, plugin
from .clauses import CLAUSES
from .drawn import CASES
from .gathering import COMPILED
from .reports import Findings, of_report
from .reports.reproduction import of_answers, of_test, of_trial
from .subjects import BackendSubject, Subject
from .verdict import Entry, Report, judge_all

Progress: TypeAlias = Callable[[str, int, int], None]


class SuiteError(AttnspecError, RuntimeError):
    """The suite could not run to its end, so that there is no verdict."""


@dataclass(frozen=True)
class Choice:
    """What is asked: by which clauses, with which dtype only, and how many calls drawn from which seed."""

    clauses: tuple[str, ...] = tuple(CLAUSES)
    dtype: str | None = None
    seed: int = 0
    cases: int = CASES


def judge_backend(name: str, device: str | None, choice: Choice, progress: Progress) -> Findings:
    """The laws, eager and compiled, and the component tests, in one report.

    `progress` is told what is being done, how much of it is done, and how much there is. Raises AttnspecError where
    the backend, its device or its known failures cannot be had.
    """
    try:
        backend = placement.load(name, device)
        known = known_failures.read(backend)
    except (LookupError, known_failures.InvalidEntryError) as error:
        raise SuiteError(str(error)) from error
    made_by = f"placement.load({', '.join(map(repr, filter(None, (name, device))))})"
    origins: dict[str, tuple[Subject, str]] = {}
    parts = []
    for jitted in (False, True) if "jit" in backend.capabilities else (False,):
        subject = BackendSubject(backend, jitted=jitted)
        told = partial(progress, f"{subject.name}: laws")
        part = judge_all(
            subject, clauses=choice.clauses, dtype=choice.dtype, seed=choice.seed, cases=choice.cases, known=known,
            progress=told,
        )  # fmt: skip
        part = _compiled(part) if jitted else part
        code = f"subjects.BackendSubject({made_by}{', jitted=True' if jitted else ''})"
        origins |= {entry.law: (subject, code) for entry in part.entries}
        parts.append(part)
    parts.append(_components(name, device, choice, partial(progress, f"{name}: components")))

    def reproduce(entry: Entry, seconds: float) -> str:
        if entry.law not in origins:
            return of_test(entry.law, _options(name, device))
        return of_trial(_plain(entry), *origins[entry.law], choice.seed, choice.cases, seconds=seconds)

    report = _merged(parts, name, choice, frozenset(backend.capabilities))
    return of_report(_of_something(report, choice), reproduce)


def judge_subject(spec: str, choice: Choice, progress: Progress) -> Findings:
    """The laws of attention. Raises SuiteError where the spec names nothing that can be judged."""
    try:
        subject = foreign.load(spec)
    except (Exception, SystemExit) as error:  # whatever somebody's module raises while it is imported
        raise SuiteError(f"{type(error).__name__}: {error}") from error
    report = judge_all(
        subject, clauses=choice.clauses, dtype=choice.dtype, seed=choice.seed, cases=choice.cases,
        progress=partial(progress, f"{subject.name}: laws"),
    )  # fmt: skip
    code = f"foreign.load({spec!r})"
    return of_report(
        _of_something(report, choice),
        lambda entry, seconds: of_trial(entry, subject, code, choice.seed, choice.cases, seconds=seconds),
    )


def judge_answers(directory: Path, results: Path) -> Findings:
    """The verdict on answers that some program wrote to files."""
    report = exchange.judge(directory, results)
    return of_report(report, lambda entry, _: of_answers(entry, report.seed, report.cases))


def _of_something(report: Report, choice: Choice) -> Report:
    """The report, if anything was asked. Raises SuiteError where a verdict would be about nothing."""
    if any(set(choice.clauses).intersection(entry.clauses) for entry in report.entries):
        return report
    about = ", ".join(choice.clauses) + (f" in {choice.dtype}" if choice.dtype else "")
    dtype = " or another dtype" if choice.dtype else ""
    draw = "" if choice.cases else ", or let calls be drawn (--cases)"
    msg = f"{report.subject}: no law asks it about {about}; choose other clauses{dtype}{draw}"
    raise SuiteError(msg)


def _compiled(report: Report) -> Report:
    return replace(report, entries=tuple(replace(entry, law=entry.law + COMPILED) for entry in report.entries))


def _plain(entry: Entry) -> Entry:
    return replace(entry, law=entry.law.removesuffix(COMPILED))


def _merged(parts: Iterable[Report], name: str, choice: Choice, capabilities: frozenset[str]) -> Report:
    parts = list(parts)
    required = {clause for part in parts for clause in part.required}
    return Report(
        subject=name,
        seed=choice.seed,
        cases=choice.cases,
        capabilities=capabilities,
        clauses=choice.clauses,
        required=tuple(clause for clause in choice.clauses if clause in required),
        entries=tuple(entry for part in parts for entry in part.entries),
        extended=True,
    )


def _components(name: str, device: str | None, choice: Choice, progress: Callable[[int, int], None]) -> Report:
    """The tests of the suite that are not laws of attention, by a pytest of their own in this process."""
    listener = _Listener(choice.dtype, progress)
    clauses = [option for clause in choice.clauses for option in ("--attnspec-clause", clause)]
    # Captured by `sys` alone, pytest's own errors end where they are redirected to, and not on the terminal.
    plain = ["-c", os.devnull, "--rootdir", str(Path(__file__).parent), "--capture", "sys", "-p", "no:cacheprovider"]
    arguments = ["-p", plugin.__name__, *_options(name, device), *clauses, "--pyargs", __package__]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = pytest.main([*plain, *arguments], plugins=[listener])
    if listener.interrupted:
        raise KeyboardInterrupt
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
        errors = [line for line in said.getvalue().splitlines() if line.startswith("ERROR")]
        raise SuiteError((errors or [f"pytest ended with {code!r}"])[-1].removeprefix("ERROR: "))
    empty = Report(name, 0, 0, frozenset(), choice.clauses, (), ())
    return next(iter(listener.reports()), empty)


def _options(name: str, device: str | None) -> list[str]:
    return ["--attnspec-backend", name, *(["--attnspec-device", device] if device else [])]


class _Listener:
    """Leaves the laws out, which are asked live, and passes on how far the rest is."""

    def __init__(self, dtype: str | None, progress: Callable[[int, int], None]) -> None:
        self._dtype = dtype
        self._progress = progress
        self.interrupted = False
        self._config: pytest.Config | None = None
        self._done = self._total = 0

    def reports(self) -> list[Report]:
        return self._config.stash[plugin.GATHERING].reports() if self._config else []

    def pytest_configure(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if self._is_asked(getattr(item, "callspec", None))]

    def _is_asked(self, callspec: Any) -> bool:
        params = callspec.params if callspec else {}
        return "law" not in params and self._dtype in (None, params.get("dtype", "float32"))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._total = len(session.items)

    def pytest_runtest_logfinish(self) -> None:
        self._done += 1
        self._progress(self._done, self._total)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self.interrupted = excinfo.type is KeyboardInterrupt
