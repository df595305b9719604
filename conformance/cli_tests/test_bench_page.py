"""docs/performance.md: what stands there is what the reports say, and nobody has copied or mended a number by hand."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from attnspec.cli.bench_picture import draw
from attnspec.cli.bench_problems import named as named_cases
from attnspec.cli.bench_report import Report, Row
from attnspec.cli.bench_sizes import Size

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "conformance" / "benchmarks"))

import performance  # noqa: E402

PAGE = (DOCS / "performance.md").read_text("utf-8")
MARKS = [mark[2].split() for mark in performance.MARK.finditer(PAGE)]


def report():
    rows = [
        Row("plain", Size(1, 2, 2, K, K, 8, 8), name, "attnspec numpy", (a * K,) * 3, (2 * a * K,) * 3, K * 10**6, 1e-7)
        for K in (64, 256)
        for name, a in (("attnspec numpy", 1e-3), ("naive numpy", 2e-3))
    ]
    lost = Row("plain", rows[0].size, "sdpa", "attnspec numpy", why="it cannot")
    return Report([*rows, lost], [("keras", "not there")], {"cpu": "c", "cores": 2, "system": "s", "python": "3"})


def test_the_page_shows_what_the_reports_say():
    reports = performance.read(DOCS / "performance")
    assert reports
    assert performance.filled(PAGE, reports) == PAGE


@pytest.mark.parametrize("name", sorted(performance.PICTURES))
def test_the_pictures_show_what_the_reports_say(name):
    if find_spec("matplotlib") is None:
        pytest.skip("needs matplotlib")
    run, subjects = performance.PICTURES[name]
    found = performance.read(DOCS / "performance")[run]
    assert draw(found, subjects=subjects).svg() == (DOCS / "images" / f"bench-{name}.svg").read_text("utf-8")


def test_every_run_is_shown_and_every_mark_has_its_run():
    assert {run for run, *_ in MARKS} == set(performance.RUNS)
    for run, form, *cases in MARKS:
        arguments = performance.RUNS[run].arguments
        asked = {case.name for case in named_cases(arguments[arguments.index("--case") + 1])}
        assert set(cases) <= asked
        assert form == "machine" or len(cases) == 1
    assert set(re.findall(r"\(images/bench-(\w+)\.svg\)", PAGE)) == set(performance.PICTURES)


def test_a_table_by_length_has_times_ratios_growth_memory_and_error():
    page = "<!-- measured: length lengths plain -->\nold\n<!-- end -->\n"
    assert performance.filled(page, {"length": report()}).splitlines() == [
        "<!-- measured: length lengths plain -->",
        "| | 64 | 256 | K^ | memory at 256 | K^ | error |",
        "|---|---|---|---|---|---|---|",
        "| attnspec numpy | 64 ms | 256 ms | 1.00 | 256 MB | 1.00 | 1e-07 |",
        "| naive numpy | 128 ms (2.00) | 512 ms (2.00) | 1.00 | 256 MB | 1.00 | 1e-07 |",
        "",
        "Not measured: sdpa: it cannot.",
        "<!-- end -->",
    ]


def test_a_table_of_rows_has_what_the_command_prints():
    page = "<!-- measured: length rows plain -->\n<!-- end -->\nmore <!-- measured: length machine -->\n<!-- end -->"
    shown = performance.filled(page, {"length": report()})
    assert (
        "| 1x2x64x8 | naive numpy | 128 ms | 256 ms | 2.00 (2.00-2.00) | 2.00 (2.00-2.00) | 64.0 MB | 1e-07 |" in shown
    )
    assert "Absent: keras (not there)." in shown
    assert performance.filled(shown, {"length": report()}) == shown


def test_what_has_not_been_measured_says_how_to():
    page = "<!-- measured: decode rows decode -->\n<!-- end -->\n"
    assert "Not measured yet: `attnspec bench --backend numpy" in performance.filled(page, {})
