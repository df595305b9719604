"""The report as one HTML page that needs nothing but itself: no script, no font, no picture from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from importlib.metadata import version
from importlib.resources import files

from ..clauses import CLAUSES
from ..verdict import Report, Tally
from .findings import Failure, Findings
from .terminal import WORST, percentage, verdict_line

_NAME, _UNBROKEN = re.compile(r"\b[A-Z]+-\d+[a-z]?\b"), r"<span class=name>\g<0></span>"
COLUMNS = ("passed", "failed", "unsupported", "known", "not judged")


def page(judged: Sequence[Findings]) -> str:
    """The text of the file."""
    style = (files(__package__) / "page.css").read_text("utf-8")
    body = "\n".join(line for findings in judged for line in _section(findings))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(", ".join(findings.report.subject for findings in judged))}: attnspec conformance</title>
<style>
{style}</style>
</head>
<body>
<main>
<h1>Conformance to attnspec {escape(version("attnspec"))}</h1>
{body}
</main>
</body>
</html>
"""


def _section(findings: Findings) -> Iterator[str]:
    report = findings.report
    state = "passed" if report.conforms() else "failed"
    yield "<section>"
    yield f"<h2>{escape(report.subject)}</h2>"
    yield f'<p class="verdict {state}">{_NAME.sub(_UNBROKEN, escape(str(verdict_line(report))))}</p>'
    yield f"<p class=about>{escape(_about(report))}</p>"
    yield '<table><thead><tr><th scope="col">clause</th>'
    yield "".join(f'<th scope="col" class="number">{column}</th>' for column in (*COLUMNS, "worst"))
    yield "</tr></thead>"
    for tally in report.by_clause().values():
        yield from _row(tally, tally.clause in report.required)
    yield f"</table><p class=about>{escape(WORST)}</p>"
    if findings.failures:
        yield "<h3>What failed</h3>"
    for failure in findings.failures:
        yield from _failure(failure)
    yield "</section>"


def _about(report: Report) -> str:
    drawn = f"{report.cases} calls drawn from seed {report.seed}" if report.cases else "no drawn calls"
    declared = ", ".join(sorted(report.capabilities)) or "nothing"
    return f"{len(report.entries)} trials and tests, {drawn}. The subject declares: {declared}."


def _row(tally: Tally, required: bool) -> Iterator[str]:
    clause = CLAUSES[tally.clause]
    outcome = tally.outcome.replace(" ", "-")
    yield f'<tr class="{outcome}"><th scope="row"><details><summary><b>{tally.clause}</b>'
    yield f" <span class=level>{clause.level.lower()}</span></summary>"
    yield f"<p>{escape(clause.sentence)}</p>"
    if not required and clause.level == "REQUIRED":
        yield "<p>Not required of this subject, which lacks the capability.</p>"
    yield from (f"<p class=reason>{escape(reason)}</p>" for reason in tally.reasons)
    yield "</details></th>"
    counts = (tally.passed, tally.failed, tally.unsupported, tally.known, tally.not_judged)
    for column, count in zip(COLUMNS, counts, strict=True):
        kind = column.replace(" ", "-") if count else "none"
        yield f'<td class="number {kind}" data-label="{column}">{count or ""}</td>'
    yield f'<td class="number" data-label="worst">{percentage(tally.worst)}</td></tr>'


def _failure(failure: Failure) -> Iterator[str]:
    entry = failure.entry
    yield "<article>"
    yield f"<h4>{escape(', '.join(entry.clauses))}: {escape(entry.law)} [{entry.trial}]</h4>"
    yield f"<p>{escape(entry.message)}</p>"
    if failure.code:
        yield f"<pre><code>{escape(failure.code)}</code></pre>"
    yield "</article>"
