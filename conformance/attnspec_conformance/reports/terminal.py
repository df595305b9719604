"""The report on a terminal: a table clause by clause, what failed and how to see it again, one line of verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich import box
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from ..clauses import CLAUSES
from ..verdict import Outcome, Report, Tally
from .findings import Findings

MOST_SHOWN = 3
WORST = "worst: the greatest error as a part of its bound; inf where a number is missing or is NaN"
STYLES: dict[Outcome, str] = {
    "passed": "green", "failed": "bold red", "known": "yellow", "unsupported": "cyan", "not judged": "dim",
}  # fmt: skip


def show(console: Console, findings: Findings) -> None:
    """Print all of it."""
    for part in _parts(findings):
        console.print(part, soft_wrap=isinstance(part, Text))
    console.print(verdict_line(findings.report), soft_wrap=True)


def verdict_line(report: Report) -> Text:
    """Whether the subject conforms, and if not, why not."""
    word, style = ("conforms", "bold green") if report.conforms() else ("does not conform", "bold red")
    return Text.assemble((report.subject, "bold"), " ", (word, style), f": {', '.join(_reasons(report))}")


def percentage(worst: float) -> str:
    """A fraction of a bound for people: nothing where nothing was measured, inf where a number is missing or wrong."""
    if worst == 0:
        return ""
    if not math.isfinite(worst):
        return "inf"
    return f"{worst:.1%}" if worst < 10 else f"{worst:.1e} x"


def _parts(findings: Findings) -> Iterator[RenderableType]:
    yield _table(findings.report)
    for failure in findings.failures[:MOST_SHOWN]:
        entry = failure.entry
        yield Text.assemble(("failed ", STYLES["failed"]), f"{', '.join(entry.clauses)}  {entry.law} [{entry.trial}]")
        yield Text(f"    {entry.message}")
        if failure.code:
            yield Syntax("", "python", background_color="default").highlight(failure.code)
    left = len(findings.failures) - MOST_SHOWN
    if left > 0:
        yield Text(f"and {left} more in the report that --json, --html or --junit-xml writes", style="dim")


def _table(report: Report) -> Table:
    table = Table(
        title=escape(report.subject),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("clause", no_wrap=True)
    table.add_column("level", no_wrap=True)
    for heading in ("pass", "fail", "unsupported", "known", "not judged", "worst"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.caption, table.caption_justify = WORST, "left"
    for tally in report.by_clause().values():
        style = STYLES[tally.outcome]
        level = CLAUSES[tally.clause].level.lower()
        table.add_row(Text(tally.clause, style=style), level, *_counts(tally), percentage(tally.worst))
    return table


def _counts(tally: Tally) -> Iterator[Text]:
    counts: dict[Outcome, int] = {
        "passed": tally.passed, "failed": tally.failed, "unsupported": tally.unsupported, "known": tally.known,
        "not judged": tally.not_judged,
    }  # fmt: skip
    for outcome, count in counts.items():
        yield Text(str(count) if count else "", style=STYLES[outcome])


def _reasons(report: Report) -> Iterator[str]:
    tallies = report.by_clause()
    held = sum(tallies[name].passed > 0 and not tallies[name].failed for name in report.required)
    yield f"{held} of {len(report.required)} required clauses hold"
    for title, binds in (("failed", True), ("extended clauses failed", False)):
        failed = [name for name, tally in tallies.items() if tally.failed and (name in report.binding) == binds]
        if failed:
            yield f"{len(failed)} {title} ({', '.join(failed)})"
    missing = [name for name in report.required if not tallies[name].passed and not tallies[name].failed]
    if missing:
        yield f"nothing passed of {', '.join(missing)}"
