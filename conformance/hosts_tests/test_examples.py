"""The examples of docs/examples/hosts run as they stand there, each in a process of its own."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "docs" / "examples" / "hosts").glob("*.py"))
KERAS = [("keras_layer", backend) for backend in ("numpy", "torch", "jax")]


def needed(example):
    """What the example imports, by top-level name, other examples aside."""
    nodes = list(ast.walk(ast.parse(example.read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names} - {path.stem for path in EXAMPLES}


@pytest.mark.parametrize(
    ("name", "backend"), [(path.stem, "") for path in EXAMPLES if path.stem != "keras_layer"] + KERAS
)
def test_an_example_runs(name, backend, tmp_path):
    (example,) = (path for path in EXAMPLES if path.stem == name)
    missing = sorted(module for module in needed(example) if find_spec(module) is None)
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")
    env = os.environ | {"KERAS_BACKEND": backend or "numpy", "KERAS_HOME": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, str(example)], env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_page_of_hosts_names_every_example_and_no_other():
    page = (ROOT / "docs" / "do" / "hosts.md").read_text()
    linked = {name.partition(")")[0] for name in page.split("](../examples/hosts/")[1:]}
    assert linked == {path.name for path in EXAMPLES}
