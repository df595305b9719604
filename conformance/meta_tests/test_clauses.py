"""Every clause has a law or a test, and every mark a clause."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import attnspec_conformance
from attnspec_conformance.clauses import CLAUSES
from attnspec_conformance.laws import LAWS

SUITE = Path(attnspec_conformance.__file__).parent


def marks():
    """Every clause that a test of the suite is marked with."""
    for path in sorted(SUITE.glob("test_*.py")):
        for arguments in re.findall(r"mark\.clause\(([^)]*)\)", path.read_text("utf-8")):
            yield from re.findall(r'"([^"]+)"', arguments)


def test_every_clause_is_judged_by_something():
    judged = {clause for law in LAWS.values() for clause in law.clauses} | set(marks())
    assert judged == set(CLAUSES)


def test_every_clause_says_something():
    for name, clause in CLAUSES.items():
        assert clause.identifier == name
        assert clause.level in ("REQUIRED", "EXTENDED")
        assert clause.sentence.endswith(".")


def test_laws_name_no_backend():
    for path in sorted((SUITE / "laws").glob("*.py")):
        code = re.sub(r'""".*?"""', "", path.read_text("utf-8"), flags=re.DOTALL)
        assert not re.search(r"\b(torch|jax|strict)\b", code), path


def test_every_test_of_the_suite_is_marked_with_a_clause():
    for path in sorted(SUITE.glob("test_*.py")):
        text = path.read_text("utf-8")
        if path.name == "test_laws.py" or "pytestmark" in text:
            continue
        for function in ast.walk(ast.parse(text)):
            if isinstance(function, ast.FunctionDef) and function.name.startswith("test_"):
                marks = " ".join(map(ast.unparse, function.decorator_list))
                assert "mark.clause(" in marks, f"{path.name}: {function.name}"
