"""The report as JUnit XML: a suite for each subject, a case for each trial, its clauses for a class name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from ..verdict import Entry
from .findings import Findings

# Characters that XML 1.0 cannot hold, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(judged: Sequence[Findings]) -> str:
    """The text of the file."""
    root = ElementTree.Element("testsuites", name="attnspec conformance")
    for findings in judged:
        entries = findings.report.entries
        codes = {id(failure.entry): failure.code for failure in findings.failures}
        counts = {
            "tests": len(entries),
            "failures": sum(entry.outcome == "failed" for entry in entries),
            "skipped": sum(entry.outcome not in ("failed", "passed") for entry in entries),
            "errors": 0,
        }
        attributes = {"name": findings.report.subject} | {name: str(count) for name, count in counts.items()}
        suite = ElementTree.SubElement(root, "testsuite", attributes)
        for entry in entries:
            _case(suite, entry, codes.get(id(entry), ""))
    ElementTree.indent(root, " ")
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ElementTree.Element, entry: Entry, code: str) -> None:
    name = {"classname": ".".join(entry.clauses), "name": f"{entry.law}[{entry.trial}]"}
    case = ElementTree.SubElement(suite, "testcase", {key: _allowed(text) for key, text in name.items()})
    if entry.outcome == "failed":
        failure = ElementTree.SubElement(case, "failure", message=_allowed(entry.message))
        failure.text = _allowed(code)
    elif entry.outcome != "passed":
        ElementTree.SubElement(case, "skipped", message=_allowed(f"{entry.outcome}: {entry.message}"))


def _allowed(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
