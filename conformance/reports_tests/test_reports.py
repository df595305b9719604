"""A report says what its script prints, and the script notices when the fault is gone."""

from __future__ import annotations

import re

import pytest
from attnspec_conformance.clauses import CLAUSES
from report_pages import FIXES, FOLDER, INDEX, NAMES, STATES, Report, written_index

REPORTS = [Report(name) for name in NAMES]
every_report = pytest.mark.parametrize("report", REPORTS, ids=NAMES)


@every_report
def test_a_page_shows_its_script_and_what_the_script_prints_today(report):
    run = _run(report)
    assert run.code in STATES, run.complaints
    assert report.page.read_text("utf-8") == report.written(run), (
        "the page is not about the libraries that are installed; "
        "run conformance/reports_tests/report_pages.py and read what it changes"
    )


@every_report
def test_a_script_exits_with_0_once_the_library_is_mended(report):
    run = _run(report, fixed=True)
    assert run.code == 0, run.output + run.complaints


@every_report
def test_a_script_stands_alone_and_is_short(report):
    assert "attnspec" not in report.libraries()
    assert len(report.script.read_text("utf-8").splitlines()) <= 24


@every_report
def test_a_page_has_every_part_of_a_report(report):
    text = report.page.read_text("utf-8")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
        "What a user does",
        "What happens",
        "What should happen",
        "Reproduction",
        "Workaround",
    ]
    assert len(re.findall(r"^```(python|text)$", text, re.MULTILINE)) == 2
    assert report.facts().keys() == {"Title", "Run with", "State", "Clause", "Upstream"}


@every_report
def test_a_page_names_a_clause_of_the_suite(report):
    assert report.facts()["Clause"] in CLAUSES


def test_the_index_has_the_facts_of_every_page():
    assert INDEX.read_text("utf-8") == written_index()


def test_every_page_has_a_script_and_every_script_a_page_and_a_fix():
    pages = {path.stem for path in FOLDER.glob("*.md")} - {INDEX.stem}
    assert pages == set(NAMES) == {path.stem for path in FIXES.glob("*.py")}


def test_the_five_gravest_kinds_of_fault_are_reported():
    """Reading past k, NaN hidden, masked NaN in gradients, causal dropped, options that change the answer."""
    assert {"SHAPE-1", "MASK-7", "MASK-6c", "MASK-3", "PATH-1"} <= {report.facts()["Clause"] for report in REPORTS}


def _run(report, **how):
    if missing := report.missing():
        pytest.skip(f"{report.name} needs {', '.join(missing)}")
    return report.run(**how)
