"""A plug-in as its author ships it: a wheel with one entry point, installed by pip, and nothing told to attnspec."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from distributions import backend, python


def _wheel(root: Path, name: str) -> Path:
    """A wheel is a zip of the package and its metadata."""
    files = {str(p.relative_to(root)): p.read_text() for p in sorted(root.rglob("*")) if p.is_file()}
    info = next(f.partition("/")[0] for f in files if ".dist-info/" in f)
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    wheel = root.parent / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return wheel


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that pip installed the plug-in's wheel into."""
    root = tmp_path_factory.mktemp("fresh")
    wheel = _wheel(backend(root / "source", "fresh"), "attnspec_fresh")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(root / "site")]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True, timeout=120)
    return root / "site"


def test_an_installed_wheel_with_an_entry_point_is_a_full_citizen(site: Path) -> None:
    listed = python("-m", "attnspec", "backends", "--json", paths=(site,))
    assert listed.returncode == 0, listed.stderr
    (fresh,) = [found for line in listed.stdout.splitlines() if (found := json.loads(line))["name"] == "fresh"]
    assert fresh["distributions"] == ["attnspec-fresh 1.0"]
    assert fresh["error"] is None

    code = (
        "from attnspec.backend import fresh, default; import attnspec; x = fresh.asarray([[1.0]]);"
        "print(fresh.name, default.name, fresh.attention is attnspec.attention, fresh.attention(x, x, x).tolist())"
    )
    used = python("-c", code, paths=(site,), ATTNSPEC_BACKEND="fresh")
    assert used.stdout.split() == ["fresh", "fresh", "True", "[[1.0]]"], used.stderr


def test_its_author_runs_the_suite_from_a_folder_of_his_own(site: Path, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\naddopts = "-q"\n')
    asked = ("--attnspec-backend", "fresh", "--attnspec-clause", "MASK-1", "--attnspec-clause", "NORM-2")
    suite = ("-m", "pytest", "-p", "attnspec_conformance.plugin", "--rootdir", str(tmp_path), "-p", "no:cacheprovider")
    by_name = python(*suite, "--pyargs", "attnspec_conformance", *asked, paths=(site,), cwd=tmp_path)
    assert by_name.returncode == 0, by_name.stdout + by_name.stderr
    assert re.search(r"fresh: 2 passed, 0 failed, .* of 2 clauses", by_name.stdout)

    (tmp_path / "conftest.py").write_text('pytest_plugins = ["attnspec_conformance.plugin"]\n')
    imports = "from attnspec_conformance.test_laws import *\nfrom attnspec_conformance.test_norm import *\n"
    (tmp_path / "test_ours.py").write_text(imports)
    imported = python("-m", "pytest", "-p", "no:cacheprovider", "test_ours.py", *asked, paths=(site,), cwd=tmp_path)
    assert imported.returncode == 0, imported.stdout + imported.stderr
    assert re.search(r"fresh: 2 passed, 0 failed, .* of 2 clauses", imported.stdout)


def conformance(root: Path, name: str, *arguments: str) -> tuple[Any, dict[str, Any]]:
    """What the command says of a backend of `root`, and its report as data."""
    file = root / "report.json"
    asked = ("-m", "attnspec", "conformance", "--backend", name, *arguments, "--cases", "2", "--json", str(file))
    done = python(*asked, paths=(root,), COLUMNS="200")
    return done, json.loads(file.read_text("utf-8"))["reports"][0] if file.is_file() else {}


@pytest.mark.parametrize(
    ("entry", "code", "outcome"),
    [
        ('[true_means_may_attend]\nkind = "never"\nreason = "false means attend here"', 0, "known"),
        ('[true_means_may_attend]\nkind = "todo"\nreason = "not yet"', 1, "failed"),
        ('[test_a_bias_is_no_mask_and_a_mask_is_no_bias]\nkind = "todo"\nreason = "not yet"', 1, "failed"),
    ],
)
def test_the_command_knows_known_failures(tmp_path: Path, entry: str, code: int, outcome: str) -> None:
    """By design, or not failing any more."""
    backend(tmp_path, "fake")
    (tmp_path / "attnspec_fake" / "known_failures.toml").write_text(entry)
    test = entry[1 : entry.index("]")]
    done, report = conformance(tmp_path, "fake", "--clause", "MASK-1")
    assert done.returncode == code, done.stdout + done.stderr
    assert outcome in {found["outcome"] for found in report["entries"] if test in found["law"]}
    assert report["clauses"][0][outcome] > 0


def test_an_entry_that_names_no_test_leaves_the_command_without_a_verdict(tmp_path: Path) -> None:
    backend(tmp_path, "fake")
    (tmp_path / "attnspec_fake" / "known_failures.toml").write_text('[no_such_law]\nkind = "never"\nreason = "x"\n')
    done, report = conformance(tmp_path, "fake", "--clause", "MASK-1")
    assert done.returncode == 2
    assert not report
    assert done.stderr.splitlines()[-1] == (
        "attnspec: fake: known_failures.toml names no_such_law, which is no test of the suite"
    )


def test_a_test_of_a_component_that_fails_is_reproduced_by_running_it(tmp_path: Path) -> None:
    backend(tmp_path, "fake", ("known_shapes", "vmap"))
    done, report = conformance(tmp_path, "fake", "--clause", "PATH-1")
    assert done.returncode == 1, done.stderr
    (reproduction,) = report["reproductions"]
    module, _, test = reproduction["law"].partition("::")
    assert module == "attnspec_conformance.test_transforms"
    again = python("-c", reproduction["code"], paths=(tmp_path,))
    assert again.returncode == 1
    assert re.search(rf"FAILED .*test_transforms.py::{re.escape(test)}", again.stdout)
    assert "AssertionError" in again.stderr
