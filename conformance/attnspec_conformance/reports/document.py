"""The report as data. `report.schema.json` beside this module is its JSON Schema; its `$id` ends in the version."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from .findings import Findings


def document(judged: Sequence[Findings]) -> dict[str, Any]:
    """Everything in one document, for `json.dumps`."""
    return {
        "attnspec": version("attnspec"),
        "conforms": bool(judged) and all(findings.report.conforms() for findings in judged),
        "reports": [
            {
                **findings.report.to_json(),
                "reproductions": [
                    {
                        "law": failure.entry.law,
                        "trial": failure.entry.trial,
                        "message": failure.entry.message,
                        "code": failure.code,
                    }
                    for failure in findings.failures
                ],
            }
            for findings in judged
        ],
    }


def schema() -> dict[str, Any]:
    """The JSON Schema of `document`."""
    found: dict[str, Any] = json.loads((files(__package__) / "report.schema.json").read_text("utf-8"))
    return found
