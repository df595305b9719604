"""What README.md and docs/examples show runs as it stands there."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from attnspec.errors import MissingFrameworkError, MissingModelError

ROOT = Path(__file__).parents[2]
SNIPPETS = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_the_readmes_python_runs(snippet):
    try:
        exec(compile(snippet, "README.md", "exec"), {"__name__": "__main__"})
    except (MissingFrameworkError, MissingModelError) as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_run(example):
    try:
        runpy.run_path(str(example), run_name="__main__")
    except (MissingFrameworkError, MissingModelError) as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", ["gradients.md", "reproducible.md"])
def test_a_page_runs(name):
    page = (ROOT / "docs" / name).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert blocks
    exec(compile("\n".join(blocks), name, "exec"), {"__name__": "__main__"})


def test_the_sessions_that_the_readme_names_exist():
    named = set(re.findall(r"nox -s \"?(\w+)", (ROOT / "README.md").read_text()))
    sessions = set(re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE))
    assert named
    assert named <= sessions


def test_the_readmes_pictures_are_there():
    pictures = re.findall(r"!\[[^]]*\]\(([^)]*)\)", (ROOT / "README.md").read_text())
    assert pictures
    assert all((ROOT / picture).is_file() for picture in pictures)
