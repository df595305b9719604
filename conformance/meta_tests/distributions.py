"""Distributions made on the spot: a folder with a module and its metadata is a real one to importlib."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

BACKEND = """
from attnspec_numpy.backend import *
from attnspec_numpy.backend import asarray, devices, jit, synchronize, to_numpy, xp

vjp = None
name = {name!r}
capabilities = frozenset({capabilities!r})
"""


def distribution(
    root: Path, name: str, points: dict[str, str], group: str = "attnspec.backends", **modules: str
) -> Path:
    """Write modules (dotted with __ for a package) and an entry point for each backend of `points`."""
    for module, text in modules.items():
        path = root / f"{module.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in path.relative_to(root).parents:
            if folder.parts:
                (root / folder / "__init__.py").touch()
        path.write_text(dedent(text))
    info = root / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{backend} = {module}" for backend, module in points.items()]
    (info / "entry_points.txt").write_text(f"[{group}]\n" + "\n".join(lines) + "\n")
    return root


def backend(root: Path, name: str, capabilities: tuple[str, ...] = ("known_shapes",), more: str = "") -> Path:
    """A backend in a package of its own that wraps NumPy's."""
    text = BACKEND.format(name=name, capabilities=capabilities) + dedent(more)
    return distribution(
        root, f"attnspec-{name}", {name: f"attnspec_{name}.backend"}, **{f"attnspec_{name}__backend": text}
    )


def python(
    *args: str, paths: tuple[Path, ...] = (), cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with these folders before all that this process imports from."""
    found = os.pathsep.join([*map(str, paths), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": found, "PYTHONDONTWRITEBYTECODE": "1", **variables}
    return subprocess.run(
        [sys.executable, *args], env=environment, cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )


def code(text: str, paths: tuple[Path, ...] = (), **variables: str) -> str:
    """What the program prints; it has to succeed."""
    done = python("-c", dedent(text), paths=paths, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def suite(root: Path, *args: str, name: str | None = "fake", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run pytest with the plug-in on a backend of `root`, or without naming one."""
    plugin = ("-m", "pytest", "-p", "attnspec_conformance.plugin", "-p", "no:cacheprovider", "-q", "-rsxX")
    ini = root / "empty.ini"
    ini.write_text("[pytest]\n")
    options = ("-c", str(ini), "--rootdir", str(root), *(("--attnspec-backend", name) if name else ()))
    return python(*plugin, *options, *args, paths=(root,), **variables)
