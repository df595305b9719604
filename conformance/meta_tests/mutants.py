"""Mutants: every small change of the code is noticed by a test, or listed in `mutants.toml` with why none can.

    python conformance/meta_tests/mutants.py FOLDER [--children N]

The folder gets a copy of what the tests need, mutmut changes it there one place at a time and runs the suite on NumPy,
and the tests of the seam to kernels, which NumPy has none of.
The wording of refusals is left alone: `msg = ...`, the lines of a text that goes on, `raise SomeError(msg)`.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULES = ("attention", "masks", "rules", "softmax", "norm", "dropout")
# Draws and rotations read none of the modules.
LEFT_OUT = ("test_random.py", "test_rotary.py", "test_memory.py", "test_textbook.py")
SETTINGS = """
[mutmut]
source_paths = attnspec
timeout_multiplier = 3
only_mutate = {modules}
do_not_mutate_patterns =
    ^\\s*msg \\+?=
    ^\\s*f?"
    ^\\s*raise \\w+\\(msg\\)
also_copy =
    backends
    conformance
pytest_add_cli_args =
    -p
    attnspec_conformance.plugin
    -p
    no:cacheprovider
    --attnspec-backend
    numpy
pytest_add_cli_args_test_selection =
    conformance/attnspec_conformance
    conformance/meta_tests/test_host.py
    {left_out}
"""
NAME = re.compile(r"x(?:_|ǁ(?P<cls>\w+)ǁ)(?P<function>\w+?)__mutmut_(?P<number>orig|\d+)$")
SURVIVED = 0


def prepare(folder: Path) -> None:
    """The copy that is mutated, and mutmut's settings beside it."""
    shutil.rmtree(folder, ignore_errors=True)
    for part in ("attnspec", "backends", "conformance"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    modules = "".join(f"\n    attnspec/{name}.py" for name in MODULES)
    left_out = "\n    ".join(f"--deselect=conformance/attnspec_conformance/{name}" for name in LEFT_OUT)
    (folder / "setup.cfg").write_text(SETTINGS.format(modules=modules, left_out=left_out), "utf-8")


def run(folder: Path, children: int) -> int:
    """mutmut, in the copy; the tests import what it changes, from the copy that it makes for itself."""
    mutants = folder.resolve() / "mutants"
    packages = ["conformance", *(f"backends/{path.name}" for path in sorted((folder / "backends").iterdir()))]
    paths = [*(str(mutants / package) for package in packages), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(children)]
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


def outcomes(folder: Path) -> dict[tuple[str, str], int]:
    """(function, what changed in it) -> the exit status of the tests, for every mutant."""
    found = {}
    for meta in sorted((folder / "mutants" / "attnspec").glob("*.py.meta")):
        source = meta.with_suffix("").read_text("utf-8")
        texts = dict(_functions(source))
        for key, status in json.loads(meta.read_text("utf-8"))["exit_code_by_key"].items():
            name = key.rpartition(".")[2]
            parts = NAME.match(name)
            original = name[: -len(parts["number"])] + "orig"
            function = ".".join(filter(None, (meta.name.split(".")[0], parts["cls"], parts["function"])))
            found[function, _change(texts[original], texts[name])] = status
    return found


def _functions(source: str) -> list[tuple[str, list[str]]]:
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and NAME.match(node.name):
            yield node.name, [line.replace(node.name, "def") for line in lines[node.lineno - 1 : node.end_lineno]]


def _change(was: list[str], becomes: list[str]) -> str:
    """`old line -> new line`, without indentation."""
    lines = list(difflib.ndiff(was, becomes))
    sides = (" ".join(" ".join(line[2:].split()) for line in lines if line[0] == sign) for sign in "-+")
    return " -> ".join(sides)


def listed() -> dict[tuple[str, str], str]:
    """(function, change) -> why no test can notice it."""
    entries = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    return {
        (function, change): group["reason"]
        for function, groups in entries.items()
        for group in groups
        for change in group["changes"]
    }


def compare(found: dict[tuple[str, str], int]) -> int:
    """Print the table and what is not as listed; how much that is."""
    known = listed()
    survivors = {mutant for mutant, status in found.items() if status == SURVIVED}
    print("| module | mutants | killed | survive, equivalent | survive, not listed |\n| --- | --- | --- | --- | --- |")
    for module in MODULES:
        here = [mutant for mutant in found if mutant[0].startswith(f"{module}.")]
        count = Counter("killed" if m not in survivors else "listed" if m in known else "new" for m in here)
        print(f"| {module} | {len(here)} | {count['killed']} | {count['listed']} | {count['new']} |")
    for title, mutants in (
        ("survive and are not listed", survivors - set(known)),
        ("are listed and do not survive", set(known) - survivors),
    ):
        if mutants:
            print(f"\n{len(mutants)} mutants {title}:")
            for function, change in sorted(mutants):
                print(f"  {function}: {change}")
    return len(survivors ^ set(known))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--children", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--again", action="store_true", help="compare what an earlier run left in the folder")
    asked = parser.parse_args()
    if not asked.again:
        prepare(asked.folder)
        if run(asked.folder, asked.children):
            sys.exit("mutmut could not run")
    sys.exit(1 if compare(outcomes(asked.folder)) else 0)
