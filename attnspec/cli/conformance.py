"""`attnspec conformance`: what a backend, or somebody else's kernel, is worth by the specification."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .. import registry
from .._compat import FLOATING
from ..errors import AttnspecError, BackendError, MissingFrameworkError, OptionError

__all__ = ["conformance", "has_folders", "progress"]

FAILS, COULD_NOT_RUN = 1, 2

Told = Callable[[str, int, int], None]

Seed = Annotated[int, typer.Option(metavar="N", help="The seed of the drawn calls.")]
Cases = Annotated[int | None, typer.Option(metavar="N", min=0, help="How many calls are drawn.")]
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON.")]
HtmlFile = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write it as one HTML page.")]
JunitFile = Annotated[Path | None, typer.Option("--junit-xml", metavar="FILE", help="Write it as JUnit XML.")]

conformance = typer.Typer(
    help="Judge a backend, a foreign kernel, or answers in files, clause by clause.", invoke_without_command=True
)


def _or_could_not_run(command: Callable[..., None]) -> Callable[..., None]:
    """Whatever ends a run before its verdict is exit code 2, a refusal in one line: 1 would be taken for a verdict."""

    @wraps(command)
    def run(*args: Any, **options: Any) -> None:
        try:
            command(*args, **options)
        except typer.Exit:
            raise
        except (AttnspecError, OSError) as error:
            print(f"attnspec: {error}", file=sys.stderr)
        except SystemExit as error:
            print(f"attnspec: something ended the run with {error!r}", file=sys.stderr)
        except Exception:
            traceback.print_exc()
        else:
            return
        raise typer.Exit(COULD_NOT_RUN)

    return run


@conformance.callback()
@_or_could_not_run
def judge_live(
    context: typer.Context,
    backend: Annotated[
        list[str] | None, typer.Option(metavar="B", help="A backend (repeatable). Default: all that load.")
    ] = None,
    device: Annotated[str | None, typer.Option(metavar="DEV", help="The backend's device to judge it on.")] = None,
    dtype: Annotated[str | None, typer.Option(metavar="D", help="Only calls of this dtype.")] = None,
    subject: Annotated[
        str | None, typer.Option(metavar="S", help="A foreign kernel, as module:name, in place of a backend.")
    ] = None,
    clause: Annotated[
        list[str] | None, typer.Option(metavar="C", help="Only this clause or family: MASK-6, MASK (repeatable).")
    ] = None,
    level: Annotated[str | None, typer.Option(metavar="L", help="Only required, or only extended clauses.")] = None,
    seed: Seed = 0,
    cases: Cases = None,
    json: JsonFile = None,
    html: HtmlFile = None,
    junit_xml: JunitFile = None,
) -> None:
    """Judge, and exit with 0 if all conform, 1 if one does not, 2 if there is no verdict."""
    if context.invoked_subcommand is not None:
        return
    if dtype is not None and dtype not in FLOATING:
        raise OptionError(f"no dtype {dtype!r}. Choose one of {', '.join(FLOATING)}.")
    if subject is not None and (backend or device):
        raise OptionError("a foreign subject brings its own arrays: give --subject without --backend and --device.")
    has_folders(json=json, html=html, junit_xml=junit_xml)
    suite = _suite()
    choice = suite.Choice(_select(clause or (), level), dtype, seed, **_given(cases=cases))
    with progress() as told:
        if subject is not None:
            judged = [suite.judge_subject(subject, choice, told)]
        else:
            judged = [suite.judge_backend(name, device, choice, told) for name in backend or _loadable()]
    _report(judged, json=json, html=html, junit=junit_xml)


@conformance.command()
@_or_could_not_run
def export(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A folder, made if it is not there.")],
    seed: Seed = 0,
    cases: Cases = None,
) -> None:
    """Write every call of every law to files, for a program in any language to answer."""
    _suite()
    import_module("attnspec_conformance.exchange").export(directory, seed=seed, **_given(cases=cases))
    print(f"wrote the calls to {directory}; judge answers with: attnspec conformance judge {directory} RESULTS")


@conformance.command()
@_or_could_not_run
def judge(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that `export` wrote.")],
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="The folder with the answers.")],
    json: JsonFile = None,
    html: HtmlFile = None,
    junit_xml: JunitFile = None,
) -> None:
    """Judge the answers that a program wrote to the calls of DIR."""
    has_folders(json=json, html=html, junit_xml=junit_xml)
    _report([_suite().judge_answers(directory, results)], json=json, html=html, junit=junit_xml)


def has_folders(**paths: Path | None) -> None:
    """Refuse a report's path that cannot be written to, before the run that it would be lost after."""
    for name, path in paths.items():
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            option = f"--{name.replace('_', '-')} {path}"
            raise OptionError(f"{option}: a report is a file in a folder that is there; make it, or name another.")


def _suite() -> Any:
    """The suite is a package of its own, which the core does not know; it needs the extra `conformance`."""
    try:
        import_module("hypothesis")  # only its tests import it, which would fail one by one
        return import_module("attnspec_conformance.suite")
    except ModuleNotFoundError as error:
        msg = f"the suite needs {error.name!r}, which is not installed: pip install 'attnspec[conformance]'"
        raise MissingFrameworkError(msg) from error


def _select(clauses: Any, level: str | None) -> Any:
    return import_module("attnspec_conformance.selection").select(clauses, level)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _loadable() -> list[str]:
    """Every registered backend that loads."""
    names = [name for name in registry.registered() if not isinstance(registry.status(name), BackendError)]
    if not names:
        raise OptionError("no backend loads; `attnspec backends` says why.")
    return names


def _report(judged: list[Any], **paths: Path | None) -> None:
    reports, terminal = (import_module(f"attnspec_conformance.{name}") for name in ("reports", "reports.terminal"))
    for findings in judged:
        terminal.show(Console(), findings)
    reports.write(judged, **paths)
    if not all(findings.report.conforms() for findings in judged):
        raise typer.Exit(FAILS)


@contextmanager
def progress() -> Iterator[Told]:
    """A bar for each thing that is being done, on standard error; a line each where that is no terminal."""
    # Tests run with `sys.stderr` redirected and its descriptor captured: the stream of now is kept, and drawn on
    # between tests only, not from a thread.
    stream = sys.stderr
    console = Console(file=stream)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, auto_refresh=False, disable=not console.is_terminal) as bars:
        tasks: dict[str, Any] = {}

        def told(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, refresh=done == total or done % 8 == 0)
            if done == total and not console.is_terminal:
                print(f"{what}: {done} done", file=stream)

        yield told
