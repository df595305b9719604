"""The code on the pages runs as it stands there, and the commands are ones that `attnspec` has.

The Python of a page runs from top to bottom in one namespace. A block that needs what may be missing is skipped by a
comment above it, `<!--- skip: next if(condition, reason="...") --->`; where `nox -s docs` runs, nothing is missing.
`<!--- skip: next --->` is for what shows a failure, or stands for files of the reader's own.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from unittest import SkipTest

import pytest
from sybil.document import Document
from sybil.parsers.myst import PythonCodeBlockParser, SkipParser

ROOT = Path(__file__).parents[2]
# Faults of other libraries, which fail as they should: conformance/peers and conformance/reports_tests run them. What
# needs several devices or workers: the tests of its engine do.
ELSEWHERE = ("peers.md", "reports", "scale")
PAGES = {
    str(path.relative_to(ROOT)): path
    for path in [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
    if not set(ELSEWHERE) & set(path.relative_to(ROOT).parts[1:]) and "_build" not in path.parts
}
WITH_PYTHON = [name for name, path in PAGES.items() if "```python" in path.read_text("utf-8")]
SH = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMANDS = {
    line.partition("  #")[0].strip(): name
    for name, path in PAGES.items()
    for block in SH.findall(path.read_text("utf-8"))
    for line in block.splitlines()
    if re.match(r"(\w+=\w+ )?attnspec ", line)
}
# Seconds. The others judge for minutes, train, or name a kernel, a backend or a folder of the reader's own.
CHEAP = re.compile(r"attnspec (backends|embed|conformance export|demo(?!.*--train))")
MISSING = "is not installed: pip install"


@pytest.mark.parametrize("name", WITH_PYTHON)
def test_the_python_of_a_page_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some write files
    document = Document.parse(str(PAGES[name]), PythonCodeBlockParser(), SkipParser())
    skipped = []
    for example in document.examples():
        try:
            example.evaluate()
        except SkipTest as reason:
            skipped.append(str(reason))
    if skipped:
        pytest.skip(f"all but {len(skipped)} blocks run: {', '.join(skipped)}")


def test_pages_have_python_and_none_is_read_past():
    """As many blocks as lines that begin one."""
    for name in WITH_PYTHON:
        document = Document.parse(str(PAGES[name]), PythonCodeBlockParser())
        begun = re.findall(r"^```\{?(?:code-block\} )?python\b", PAGES[name].read_text("utf-8"), re.MULTILINE)
        assert len(list(document.examples())) == len(begun), name


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_the_options_that_the_page_gives_it(command):
    words = [word for word in shlex.split(command) if "=" not in word]
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    group = words[1:3] if words[2:] and words[2] in ("export", "judge") else words[1:2]
    shown = attnspec(*group, "--help").stdout
    assert not [option for option in options if option not in shown]


@pytest.mark.parametrize("command", [command for command in COMMANDS if CHEAP.match(command)])
def test_a_cheap_command_runs(command, tmp_path):
    (tmp_path / "docs" / "images").mkdir(parents=True)  # where the README has its picture
    words = shlex.split(command)[1:]
    on = ("--backend", "numpy") if words[0] in ("embed", "demo") else ()  # conformance/cli_tests runs all of them
    result = attnspec(*words, *on, cwd=tmp_path)
    if MISSING in result.stderr:
        pytest.skip(result.stderr.strip())
    assert result.returncode == 0, result.stderr


def attnspec(*arguments, cwd=None):
    program = [sys.executable, "-m", "attnspec", *arguments]
    wide = os.environ | {"COLUMNS": "200", "NO_COLOR": "1"}  # in a narrow terminal the help cuts options short
    return subprocess.run(program, capture_output=True, text=True, cwd=cwd, env=wide)
