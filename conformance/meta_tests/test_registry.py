"""Backends as plug-ins: a distribution with an entry point is a full citizen, a broken one harms nobody."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from distributions import backend, code, distribution, suite

import attnspec

FRAMEWORKS = ("numpy", "torch", "jax", "array_api_strict")

ASK = """
    from attnspec import registry
    from attnspec.backend import choose
    try:
        print("loaded", choose({name!r}).name)
    except ImportError as error:
        print(type(error).__name__, error)
    print(choose("numpy").name)
"""


def ask(name, *roots):
    first, *_, last = code(ASK.format(name=name), paths=roots).splitlines()
    assert last == "numpy"
    return first


def test_a_third_party_is_chosen_by_name_listed_and_judged(tmp_path):
    root = backend(tmp_path, "fake")
    assert ask("fake", root) == "loaded fake"
    listed = code("from attnspec import registry; print(*registry.registered())", paths=(root,)).split()
    assert "fake" in listed
    assert "numpy" in listed
    chosen = code(
        "from attnspec.backend import fake; import attnspec; print(fake.attention is attnspec.attention)", paths=(root,)
    )
    assert chosen == "True"
    default = code("from attnspec.backend import default; print(default.name)", paths=(root,), ATTNSPEC_BACKEND="fake")
    assert default == "fake"
    done = suite(
        root, "--pyargs", "attnspec_conformance", "-k", "test_law and (true_means_may_attend or any_two_masks)"
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_an_unknown_name_lists_those_that_exist():
    said = ask("nowhere")
    assert said.startswith("UnknownBackendError")
    assert "numpy" in said


def test_a_missing_framework_is_named_with_what_to_install(tmp_path):
    root = distribution(tmp_path, "attnspec-far", {"far": "attnspec_far"}, attnspec_far="import a_framework_far_away\n")
    said = ask("far", root)
    assert said.startswith("MissingFrameworkError")
    assert "pip install 'a_framework_far_away'" in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise RuntimeError('out of luck')\n", ("RuntimeError", "out of luck")),
        ("import attnspec_ill.nothing\n", ("ModuleNotFoundError",)),
        ("name = 'ill'\n", ("lacks", "asarray", "capabilities")),
    ],
)
def test_a_broken_backend_is_named_with_its_error(tmp_path, text, words):
    root = distribution(tmp_path, "attnspec-ill", {"ill": "attnspec_ill"}, attnspec_ill=text)
    said = ask("ill", root)
    assert said.startswith("BrokenBackendError")
    assert all(word in said for word in (*words, "attnspec-ill 1.0"))


def test_an_unknown_capability_is_a_broken_backend(tmp_path):
    said = ask("fake", backend(tmp_path, "fake", ("levitation",)))
    assert said.startswith("BrokenBackendError")
    assert "levitation" in said


def test_the_same_registration_twice_is_one(tmp_path):
    for folder in ("one", "two"):
        backend(tmp_path / folder, "fake")
    assert ask("fake", tmp_path / "one", tmp_path / "two") == "loaded fake"


def test_two_registrations_of_one_name_are_an_error_whatever_the_order(tmp_path):
    """PR-01: pydata/xarray#5944."""
    for name in ("one", "two"):
        module = f"attnspec_{name}"
        distribution(tmp_path / name, f"attnspec-{name}", {"fake": module}, **{module: "name = 'fake'\n"})
    roots = (tmp_path / "one", tmp_path / "two")
    said = ask("fake", *roots)
    assert said.startswith("DuplicateBackendError")
    assert all(word in said for word in ("attnspec_one", "attnspec_two", "attnspec-one 1.0", "attnspec-two 1.0"))
    assert ask("fake", *reversed(roots)) == said


def test_a_failure_is_not_remembered(tmp_path):
    """PR-01: jaraco/keyring#486."""
    text = "import os\nif os.environ.pop('FAIL', ''):\n    raise OSError('busy')\n" + (
        "from attnspec_numpy.backend import *\nfrom attnspec_numpy.backend import xp\nname = 'fake'\n"
    )
    root = distribution(tmp_path, "attnspec-fake", {"fake": "attnspec_fake"}, attnspec_fake=text)
    again = """
        from attnspec import registry
        print(type(registry.status("fake")).__name__, registry.status("fake").__name__)
    """
    assert code(again, paths=(root,), FAIL="1") == "BrokenBackendError attnspec_fake"


def imported(text):
    """Which frameworks a program ends up with."""
    return code(f"import sys\n{text}\nprint(*(n for n in {FRAMEWORKS!r} if n in sys.modules))").split()


def test_importing_attnspec_imports_no_framework():
    assert imported("import attnspec, attnspec.backend, attnspec.registry") == []


@pytest.mark.parametrize(
    ("name", "module"), [("numpy", "numpy"), ("strict", "array_api_strict"), ("torch", "torch"), ("jax", "jax")]
)
def test_a_backend_imports_its_own_framework_and_no_other(name, module):
    pytest.importorskip(module)
    program = (
        f"from attnspec.backend import {name} as b\nx = b.asarray([[1.0, 2.0]], dtype='float32')\nb.attention(x, x, x)"
    )
    assert set(imported(program)) == {"numpy", module}


def test_a_project_that_copies_attnspec_in_can_use_its_copy(tmp_path):
    home = tmp_path / "other_project"
    home.mkdir()
    (home / "__init__.py").touch()
    shutil.copytree(
        Path(attnspec.__file__).parent, home / "attnspec_copy", ignore=shutil.ignore_patterns("__pycache__")
    )
    said = code(
        """
        import sys
        import numpy as np
        from other_project import attnspec_copy as a
        x = np.eye(2)
        print(a.attention(x, x, x, mask=a.causal())[0].tolist(), "attnspec" in sys.modules)
        """,
        paths=(tmp_path,),
    )
    assert said.startswith("[1.0, 0.0]")
