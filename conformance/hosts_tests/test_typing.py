"""What users write is known to the type checkers, and what they must not write is reported."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SNIPPETS = Path(__file__).parents[1] / "typing_snippets"
FRAMEWORKS = ("numpy", "torch", "jax")
# A mistake in each snippet, and what is to be said about it.
MISTAKES = {
    "numpy": ('align="end"', 'align="middle"', "Align|Literal"),
    "torch": ("dropout=0.1)", 'dropout="0.1")', "float"),
    "jax": ("random.key(0)", 'random.key("0")', "int"),
}


def asked(checker: str, *options: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A type checker of this environment, away from the checkout."""
    pytest.importorskip(checker)
    # basedpyright looks for packages by the first Python on the path.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [sys.executable, "-m", checker, *map(str, options)],
        cwd=cwd, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture
def check(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A snippet under the strict rules of a checker."""

    def checked(checker: str, snippet: Path) -> subprocess.CompletedProcess[str]:
        if checker == "mypy":
            options = ("--strict", "--config-file=", "--cache-dir", request.config.cache.mkdir("mypy"))
            return asked(checker, *options, snippet, cwd=tmp_path)
        rules = {"include": [str(snippet)], "typeCheckingMode": "strict"}
        (tmp_path / "pyrightconfig.json").write_text(json.dumps(rules))
        return asked(checker, cwd=tmp_path)

    return checked


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("checker", ["mypy", "basedpyright"])
def test_a_user_s_code_passes_the_strict_checks(checker, framework, check):
    pytest.importorskip(framework)
    done = check(checker, SNIPPETS / f"{framework}_user.py")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("checker", ["mypy", "basedpyright"])
def test_a_user_s_mistake_is_reported(checker, framework, check, tmp_path):
    pytest.importorskip(framework)
    right, wrong, said = MISTAKES[framework]
    code = (SNIPPETS / f"{framework}_user.py").read_text()
    assert right in code
    snippet = tmp_path / "mistaken.py"
    snippet.write_text(code.replace(right, wrong, 1))
    done = check(checker, snippet)
    assert done.returncode == 1
    line = next(n for n, text in enumerate(snippet.read_text().splitlines(), 1) if wrong in text)
    assert f"mistaken.py:{line}:" in done.stdout
    assert any(word in done.stdout for word in said.split("|"))


@pytest.mark.parametrize("package", ["attnspec", "attnspec_numpy", "attnspec_torch", "attnspec_jax"])
def test_no_public_type_is_unknown(package, tmp_path):
    module = package if package == "attnspec" else f"{package}.backend"
    public = {f"{module}.{name}" for name in importlib.import_module(module).__all__}
    done = asked("basedpyright", "--verifytypes", package, "--ignoreexternal", "--outputjson", cwd=tmp_path)
    found = json.loads(done.stdout)["typeCompleteness"]
    unknown = [s["name"] for s in found["symbols"] if not (s["isTypeKnown"] or s["isTypeAmbiguous"])]
    assert found["pyTypedPath"]
    assert public <= {symbol["name"] for symbol in found["symbols"]}
    assert unknown == []
