"""`attnspec bench`: what attention costs here, beside what else computes it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import OptionError
from ..plot_picture import style
from .bench_peers import BACKENDS, PEERS
from .bench_peers import named as named_peers
from .bench_picture import draw
from .bench_problems import CASES
from .bench_problems import named as named_cases
from .bench_report import COLUMNS, NOTHING, Report, Row, cells, growth, lines, of_size
from .bench_run import run
from .bench_sizes import FORMS, Size, parsed
from .conformance import has_folders, progress

__all__ = ["bench"]


def bench(
    backend: Annotated[
        list[str] | None,
        typer.Option(
            metavar="B",
            help=f"attnspec on this backend (repeatable), compiled or not: jax:eager, torch:compiled. "
            f"Default: those of {', '.join(BACKENDS)} that load.",
        ),
    ] = None,
    against: Annotated[str, typer.Option(metavar="P,P", help=f"Beside these: {', '.join(PEERS)}.")] = ",".join(PEERS),
    case: Annotated[str, typer.Option(metavar="C,C", help=f"`all`, or some of {', '.join(CASES)}.")] = "plain,causal",
    shapes: Annotated[
        str | None, typer.Option(metavar="S,S", help=f"{FORMS}. Default: those of each case.", show_default=False)
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="Samples of each, taken in turns.")] = 7,
    threads: Annotated[int, typer.Option(metavar="N", min=1, help="Of every library.")] = 1,
    memory: Annotated[bool, typer.Option(help="Measure the peak too, each in a process of its own (Linux).")] = True,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write everything, each sample too.")] = None,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw cost against length.")] = None,
) -> None:
    """Measure attention side by side: time, memory and error; ratios above 1 say that attnspec needs less."""
    cases, sizes = named_cases(case), None if shapes is None else parsed(shapes)
    has_folders(json=json, svg=svg)
    if svg is not None:
        if find_spec("matplotlib") is None:
            style()  # refuses before the run that would be lost; it loads NumPy, so not otherwise
        if not any(len({size.K for size in one.sized(sizes)}) > 1 for one in cases):
            raise OptionError("--svg needs two lengths of one case, e.g. --shapes 1x8x512x64,1x8x1024x64.")
    with progress() as told:
        report = run(
            cases, sizes, backend, named_peers(against),
            rounds=rounds, count=threads, dtype=dtype, memory=memory, told=told,
        )  # fmt: skip
    _show(Console(highlight=False), report)
    if json is not None:
        json.write_text(report.json(), "utf-8")
    if svg is not None:
        draw(report).save(svg)


def _show(console: Console, report: Report) -> None:
    for case in report.cases():
        for size in dict.fromkeys(row.size for row in report.of(case)):
            console.print(Text(f"{case}{of_size(case, size)}: {CASES[case].says}", style="bold"), soft_wrap=True)
            console.print(_table(report, case, size))
        for subject, why in dict.fromkeys((row.subject, row.why) for row in report.of(case) if row.why is not None):
            console.print(Text(f"{subject} is not measured: {why}"), soft_wrap=True)
        found = lines(report, case)
        if found:
            lengths = sorted({row.size.K for line in found.values() for row in line})
            title = f"{case}: exponents of the growth from {lengths[0]} to {lengths[-1]}"
            console.print(Text(title, style="bold"), soft_wrap=True)
            console.print(_growth(found))
    for name, why in report.absent:
        console.print(Text(f"absent: {name}: {why}"), soft_wrap=True)
    seen = [report.machine["cpu"], *(f"{name} {version}" for name, version in report.libraries.items())]
    console.print(Text("; ".join(seen)), soft_wrap=True)
    said = f"Medians of {report.rounds} rounds; ratios to attnspec round by round, with quartiles; {report.dtype}"
    console.print(Text(f"{said}; threads: {'; '.join(report.limited)}"), soft_wrap=True)


def _table(report: Report, case: str, size: Size) -> Table:
    table = _empty(COLUMNS)
    for row in report.of(case):
        if row.size == size and row.cpu:
            table.add_row(*map(Text, cells(report, row)))
    return table


def _growth(found: dict[str, list[Row]]) -> Table:
    """b of cost = a K^b for each subject."""
    table = _empty(("", "CPU", "memory"))
    for name, line in found.items():
        table.add_row(name, *(NOTHING if power is None else f"{power:.2f}" for power in growth(line)))
    return table


def _empty(columns: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for n, heading in enumerate(columns):
        table.add_column(heading, justify="right" if n else "left", no_wrap=True)
    return table
