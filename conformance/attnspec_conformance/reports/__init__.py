"""Reports for people and for programs: terminal, JSON with a schema, one HTML page, JUnit XML."""

from __future__ import annotations

import json as json_text
from collections.abc import Sequence
from pathlib import Path

from .document import document, schema
from .findings import Failure, Findings, of_report
from .junit import junit_xml
from .page import page

__all__ = ["Failure", "Findings", "document", "junit_xml", "of_report", "page", "schema", "write"]


def write(
    judged: Sequence[Findings], *, json: str | None = None, html: str | None = None, junit: str | None = None
) -> None:
    """Write the files that are asked for."""
    if json:
        Path(json).write_text(json_text.dumps(document(judged), indent=1) + "\n", "utf-8")
    if html:
        Path(html).write_text(page(judged), "utf-8")
    if junit:
        Path(junit).write_text(junit_xml(judged), "utf-8")
