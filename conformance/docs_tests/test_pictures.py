"""Pictures of the pages are what their scripts draw: nobody has edited one, and no code has drifted away from one."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SCRIPTS = sorted(path for path in (DOCS / "pictures").glob("*.py") if "__main__" in path.read_text("utf-8"))
FOLDERS = ("learn", "spec")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A copy of the pages and scripts, without pictures, in which every script has run."""
    copy = tmp_path_factory.mktemp("docs")
    for folder in ("pictures", *FOLDERS):
        shutil.copytree(DOCS / folder, copy / folder, ignore=shutil.ignore_patterns("*.svg", "__pycache__"))
    for script in SCRIPTS:
        program = [sys.executable, "-W", "error", str(copy / "pictures" / script.name)]
        result = subprocess.run(program, capture_output=True, text=True)
        if "is not installed: pip install" in result.stderr:
            pytest.skip(result.stderr.splitlines()[-1])
        assert result.returncode == 0, result.stderr
    return copy


def pictures(docs):
    return {str(path.relative_to(docs)) for folder in FOLDERS for path in (docs / folder).rglob("*.svg")}


def test_every_picture_has_a_script_and_every_script_its_pictures(drawn):
    assert pictures(drawn) == pictures(DOCS)
    assert pictures(DOCS)


@pytest.mark.parametrize("name", sorted(pictures(DOCS)))
def test_a_picture_is_what_its_script_draws(drawn, name):
    assert (drawn / name).read_bytes() == (DOCS / name).read_bytes()


@pytest.mark.parametrize("name", sorted(pictures(DOCS)))
def test_a_picture_is_small_and_says_nothing_of_when_it_was_made(name):
    text = (DOCS / name).read_text("utf-8")
    assert len(text) < 70_000
    assert "<dc:date>" not in text


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda path: str(path.relative_to(DOCS)))
def test_pictures_are_there_and_are_said_in_words(page):
    for words, place in re.findall(r"!\[([^]]*)\]\(([^)]*)\)", page.read_text("utf-8")):
        assert (page.parent / place).is_file()
        assert len(words) > 10, place
