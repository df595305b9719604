"""The clauses of the suite are those of the specification's pages: the same names, families and levels."""

from __future__ import annotations

import re
from pathlib import Path

from attnspec_conformance.clauses import CLAUSES

SPEC = Path(__file__).parents[2] / "docs" / "spec"
TOCTREE = re.search(r"```\{toctree\}\n(?::.*\n)*\n(.*?)```", (SPEC / "index.md").read_text("utf-8"), re.DOTALL)
PAGES = [(SPEC / f"{name}.md").read_text("utf-8") for name in TOCTREE[1].split()]
CLAUSE = re.compile(r"^\*\*([A-Z]+-\w+)\.\*\* (.+?)(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
TEXTS = {name: text for page in PAGES for name, text in CLAUSE.findall(page)}
PARENTS = {name[:-1] for name in TEXTS if name[-1].isalpha()}


def test_the_pages_and_the_suite_have_the_same_clauses_in_the_same_order():
    judged = [name for name in TEXTS if name not in PARENTS]
    assert sorted(judged) == sorted(CLAUSES)
    required = [name for name in judged if CLAUSES[name].level == "REQUIRED"]
    assert [name for name, clause in CLAUSES.items() if clause.level == "REQUIRED"] == required


def test_a_clause_stands_once():
    names = [name for page in PAGES for name, _ in CLAUSE.findall(page)]
    assert len(names) == len(set(names)) == len(TEXTS)
    assert not CLAUSE.findall((SPEC / "index.md").read_text("utf-8"))


def test_a_clause_that_is_extended_as_a_whole_begins_with_its_mark():
    extended = {name for name, text in TEXTS.items() if text.startswith("(E)")}
    assert extended == {name for name, clause in CLAUSES.items() if clause.level == "EXTENDED"}


def test_clauses_stand_under_the_heading_of_their_family():
    for page in PAGES:
        for section in re.split(r"^##? ", page, flags=re.MULTILINE)[1:]:
            names = re.findall(r"^\*\*([A-Z]+)-\w+\.\*\*", section, re.MULTILINE)
            assert set(names) in (set(), {section.split()[0]})


def test_the_sentence_of_a_clause_is_about_what_the_page_says_there():
    """No other clause of the pages has more of its words."""
    said_on_page = {name: words(text) for name, text in TEXTS.items()}
    said_on_page["MASK-6b"] |= said_on_page["MASK-6a"]  # "The same for ..."
    for name, clause in CLAUSES.items():
        said = words(clause.sentence)
        shared = {other: len(said & text) for other, text in said_on_page.items()}
        assert shared[name] == max(shared.values()), (name, shared)


def words(text):
    """Its longer words in small letters, without plurals."""
    return {word.rstrip("s") for word in re.findall(r"[a-z0-9]{4,}", text.lower())}
