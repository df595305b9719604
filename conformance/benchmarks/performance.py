"""Everything that docs/performance.md shows, measured again by `attnspec bench`, or drawn again from what was measured.

    python conformance/benchmarks/performance.py [--quick] [--redraw] [--only NAME] [--docs docs]

Each run of `RUNS` is one command, whose report goes to docs/performance/. The pictures and the tables between the
marks of the page are made of these reports alone. `--quick` takes few rounds and short sequences, to see that all of it
works; `--redraw` measures nothing.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from attnspec.cli.bench_measure import ratio, spread
from attnspec.cli.bench_picture import draw
from attnspec.cli.bench_report import COLUMNS, Report, Row, cells, growth, lines, of_size

MARK = re.compile(r"(<!-- measured: ([^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
OWN = ("--backend", "numpy", "--backend", "torch", "--backend", "jax")
EAGER = ("--backend", "jax:eager")


class Run(NamedTuple):
    """The arguments of a command, and those that make it quick; None where it is left out then."""

    arguments: tuple[str, ...]
    quick: tuple[str, ...] | None


QUICK = ("--rounds", "2", "--shapes", "1x8x128x64,1x8x256x64")
ONE = ("--rounds", "2", "--shapes", "1x8x256x64", "--no-memory")
RUNS = {
    "length": Run((*OWN, "--case", "plain,causal"), (*QUICK, "--no-memory")),
    "long": Run(
        (*OWN, "--case", "plain,causal", "--shapes", "1x8x16384x64", "--rounds", "3", "--against", "limit,sdpa"), None
    ),
    "masks": Run((*OWN, "--case", "padding,boolean,alibi,grouped"), ONE),
    "decode": Run((*OWN, "--case", "decode,grouped-decode"), ("--rounds", "2", "--shapes", "Q1 K1024", "--no-memory")),
    "gradients": Run((*OWN, "--case", "gradients"), (*QUICK, "--against", "naive,limit")),
    "small": Run((*OWN, *EAGER, "--case", "overhead,dropout", "--no-memory"), ("--rounds", "2")),
    "import": Run((*OWN, "--case", "import", "--against", "naive"), ("--rounds", "2")),
    "threads": Run(
        (*OWN, "--case", "plain,causal", "--shapes", "1x8x2048x64,1x8x4096x64", "--threads", "2", "--no-memory"), ONE
    ),
}
PICTURES = {
    "numpy": ("length", ("attnspec numpy", "naive numpy", "limit numpy", "onnxruntime")),
    "torch": ("length", ("attnspec torch", "naive torch", "limit torch", "sdpa", "keras")),
    "jax": ("length", ("attnspec jax", "naive jax", "jax")),
    "gradients": ("gradients", None),
}


def main() -> None:
    """Measure, draw, and write the tables."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--quick", action="store_true")
    options.add_argument("--redraw", action="store_true")
    options.add_argument("--only", action="append", choices=RUNS)
    options.add_argument("--docs", type=Path, default=Path(__file__).parents[2] / "docs")
    given = options.parse_args()
    reports = given.docs / "performance"
    reports.mkdir(exist_ok=True)
    for name, run in {} if given.redraw else RUNS.items():
        arguments = _arguments(run, given.quick)
        if arguments is not None and (given.only is None or name in given.only):
            command = [sys.executable, "-m", "attnspec", "bench", *arguments, "--json", str(reports / f"{name}.json")]
            subprocess.run(command, check=True)
    found = read(reports)
    for name, (run, subjects) in PICTURES.items():
        if run in found:
            draw(found[run], subjects=subjects).save(given.docs / "images" / f"bench-{name}.svg")
    page = given.docs / "performance.md"
    page.write_text(filled(page.read_text("utf-8"), found), "utf-8")


def _arguments(run: Run, quick: bool) -> list[str] | None:
    """Where an option stands twice the latter counts."""
    if not quick:
        return list(run.arguments)
    return None if run.quick is None else [*run.arguments, *run.quick]


def read(folder: Path) -> dict[str, Report]:
    """The reports by the name of their run."""
    return {path.stem: Report.read(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))}


def filled(page: str, reports: dict[str, Report]) -> str:
    """The page with all that stands between its marks made anew: `<!-- measured: RUN FORM [CASE] -->`."""
    return MARK.sub(lambda mark: mark[1] + "\n".join(_made(mark[2].split(), reports)) + "\n" + mark[3], page)


def _made(words: Sequence[str], reports: dict[str, Report]) -> Iterator[str]:
    name, form, *case = words
    if name not in reports:
        yield f"Not measured yet: `{' '.join(('attnspec bench', *RUNS[name].arguments))}`."
        return
    yield from {"machine": _machine, "lengths": _lengths, "rows": _rows}[form](reports[name], *case)


def _machine(report: Report) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in report.libraries.items())
    yield f"{report.machine['cpu']}, {report.machine['cores']} cores, {report.machine['system']}; Python"
    yield f"{report.machine['python']}, {versions};"
    yield f"{report.dtype}, {report.rounds} rounds, {report.threads} thread{'s' * (report.threads > 1)}."
    for absent, why in report.absent:
        yield f"Absent: {absent} ({why})."


def _lengths(report: Report, case: str) -> Iterator[str]:
    """CPU time and ratio by length, and what is known of the longest; a line for each subject."""
    found = lines(report, case)
    lengths = sorted({row.size.K for line in found.values() for row in line})
    yield f"| | {' | '.join(map(str, lengths))} | K^ | memory at {lengths[-1]} | K^ | error |"
    yield "|---|" + "---|" * (len(lengths) + 4)
    for subject, line in found.items():
        by_length = {row.size.K: row for row in line}
        times = (_time(report, by_length.get(length)) for length in lengths)
        *_, memory, error = cells(report, line[-1])
        exponents = ["-" if power is None else f"{power:.2f}" for power in growth(line)]
        yield f"| {subject} | {' | '.join(times)} | {exponents[0]} | {memory} | {exponents[1]} | {error} |"
    yield from _left_out(report, case)


def _time(report: Report, row: Row | None) -> str:
    if row is None:
        return "-"
    beside = report.beside(row)
    own = "" if beside is None or beside is row else f" ({ratio(row.cpu, beside.cpu).median:.2f})"
    return f"{1e3 * spread(row.cpu).median:.3g} ms{own}"


def _rows(report: Report, case: str) -> Iterator[str]:
    """Every row as the command prints it."""
    several = len({row.size for row in report.of(case)}) > 1
    yield f"|{' shape |' * several} {' | '.join(COLUMNS)} |"
    yield "|---|" + "---|" * (len(COLUMNS) - 1 + several)
    for row in report.of(case):
        if row.cpu:
            shape = f" {of_size(case, row.size).strip()} |" * several
            yield f"|{shape} {' | '.join(cells(report, row))} |"
    yield from _left_out(report, case)


def _left_out(report: Report, case: str) -> Iterator[str]:
    said = dict.fromkeys(f"{row.subject}: {row.why}." for row in report.of(case) if row.why is not None)
    if said:
        yield f"\nNot measured: {' '.join(said)}"


if __name__ == "__main__":
    main()
