"""A plug-in as its author ships it: a wheel with one entry point, installed by pip, and nothing told to attnspec."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

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


def test_an_installed_wheel_with_an_entry_point_is_a_full_citizen(tmp_path: Path) -> None:
    wheel = _wheel(backend(tmp_path / "source", "fresh"), "attnspec_fresh")
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(pip, check=True, capture_output=True, timeout=120)

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
