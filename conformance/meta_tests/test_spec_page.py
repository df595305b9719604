"""The clauses of the suite are those of the specification's page: the same names, families and levels."""

from __future__ import annotations

import re
from pathlib import Path

from attnspec_conformance.clauses import CLAUSES

PAGE = Path(__file__).parents[2] / "docs" / "spec" / "index.md"
TEXTS = dict(re.findall(r"^\*\*([A-Z]+-\w+)\.\*\* (.+?)(?=\n\n|\Z)", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL))
PARENTS = {name[:-1] for name in TEXTS if name[-1].isalpha()}


def test_the_page_and_the_suite_have_the_same_clauses_in_the_same_order():
    judged = [name for name in TEXTS if name not in PARENTS]
    assert sorted(judged) == sorted(CLAUSES)
    required = [name for name in judged if CLAUSES[name].level == "REQUIRED"]
    assert [name for name, clause in CLAUSES.items() if clause.level == "REQUIRED"] == required


def test_a_clause_that_is_extended_as_a_whole_begins_with_its_mark():
    extended = {name for name, text in TEXTS.items() if text.startswith("(E)")}
    assert extended == {name for name, clause in CLAUSES.items() if clause.level == "EXTENDED"}


def test_clauses_stand_under_the_heading_of_their_family():
    for family in re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        names = re.findall(r"^\*\*([A-Z]+)-\w+\.\*\*", family, re.MULTILINE)
        assert set(names) == {family.split()[0]}


def test_the_sentence_of_a_clause_is_about_what_the_page_says_there():
    """No other clause of the page has more of its words."""
    said_on_page = {name: words(text) for name, text in TEXTS.items()}
    said_on_page["MASK-6b"] |= said_on_page["MASK-6a"]  # "The same for ..."
    for name, clause in CLAUSES.items():
        said = words(clause.sentence)
        shared = {other: len(said & text) for other, text in said_on_page.items()}
        assert shared[name] == max(shared.values()), (name, shared)


def words(text):
    """Its longer words in small letters, without plurals."""
    return {word.rstrip("s") for word in re.findall(r"[a-z0-9]{4,}", text.lower())}
