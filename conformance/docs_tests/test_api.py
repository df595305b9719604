"""Every public name has an entry on the API pages: what the `__all__` of a module lists, and what the pages import."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
import shutil
import sys
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import pytest
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

import attnspec.minilm

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "backends" / "dask"))  # as docs/conf.py does
PACKAGES = ["attnspec", "attnspec_conformance", *sorted(path.name for path in ROOT.glob("backends/*/attnspec_*"))]
# Whose interface is another: commands; clauses; the Array API standard.
ELSEWHERE = re.compile(r"attnspec\.cli|attnspec_conformance\.(laws|test_\w+)|attnspec_dask\.namespace|.*\.__main__")
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
NEEDED = ("dask", "jax", "torch")

pytestmark = pytest.mark.filterwarnings("ignore:'myst_parser")  # of what Sphinx 11 will not have


@pytest.fixture(scope="module")
def entries_of(tmp_path_factory):
    """Builds the API pages, each put through `change` first: the names that have an entry."""

    def build(change=str):
        if missing := [name for name in NEEDED if find_spec(name) is None]:
            pytest.skip(f"needs {', '.join(missing)}")
        site = tmp_path_factory.mktemp("site")
        (site / "index.md").write_text("# Site\n\n```{toctree}\napi/index\n```\n", "utf-8")
        for page in shutil.copytree(ROOT / "docs" / "api", site / "api").iterdir():
            page.write_text(change(page.read_text("utf-8")), "utf-8")
        out = [str(site / name) for name in ("html", "trees")]
        with docutils_namespace():
            app = Sphinx(str(site), str(ROOT / "docs"), *out, "dummy", None, None, StringIO())
            app.build()
        return set(app.env.domains.python_domain.objects)

    return build


@pytest.fixture(scope="module")
def entries(entries_of):
    return entries_of()


@pytest.mark.parametrize("package", PACKAGES)
def test_what_a_module_lists_as_public_has_an_entry(package, entries):
    names = public(package)
    assert names
    assert lacking(names, entries) == []


def test_what_the_pages_and_examples_import_has_an_entry(entries):
    names = imported()
    assert len(names) > 20
    assert lacking(names, entries) == []


def test_a_name_without_an_entry_is_found(entries_of):
    gone = re.compile(
        r" attnspec\.minilm|\.\. autofunction:: attnspec_jax\.backend\.enable|\.\. api:: attnspec_torch\.\*"
    )
    entries = entries_of(lambda page: gone.sub("", page))
    assert lacking(public("attnspec"), entries) == sorted(f"attnspec.minilm.{name}" for name in attnspec.minilm.__all__)
    assert lacking(public("attnspec_jax"), entries) == ["attnspec_jax.backend.enable"]
    assert "attnspec_torch.modules.AddAndNorm" in lacking(public("attnspec_torch"), entries)


def public(package):
    """`module.name` for each name that a module of the package lists in its `__all__`."""
    whole = import_module(package)
    found = [package, *(one.name for one in pkgutil.walk_packages(whole.__path__, f"{package}."))]
    listing = map(import_module, (name for name in found if not ELSEWHERE.match(name)))
    return {f"{module.__name__}.{name}" for module in listing for name in getattr(module, "__all__", ())}


def imported():
    """`module.name` for each name of attnspec's that the Python of a page or an example imports."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs" / "examples").rglob("*.py")]
    # What failed of others' attention is shown in the suite's own words there.
    texts = [path.read_text("utf-8") for path in pages if path.name != "peers.md" and "_build" not in path.parts]
    programs = [text if "```" not in text else "\n".join(PYTHON.findall(text)) for text in texts if "import " in text]
    nodes = [node for program in programs for node in ast.walk(ast.parse(program)) if isinstance(node, ast.ImportFrom)]
    found = {f"{node.module}.{name.name}" for node in nodes for name in node.names if name.name != "*"}
    return {name for name in found if name.startswith("attnspec") and not ELSEWHERE.match(name)}


def lacking(names, entries):
    """Of the names, those without an entry: by that name, as the same thing by another, as part of the contract."""
    things = (inspect.isroutine, inspect.isclass, inspect.ismodule)  # and no numbers, of which many are one object
    known = {id(value) for value in map(value_of, entries) if any(is_one(value) for is_one in things)}
    return sorted(
        name
        for name in names
        if name not in entries
        and f"attnspec.backend.Backend.{name.rpartition('.backend.')[2]}" not in entries
        and not name.startswith("attnspec.backend.")  # a backend by its name
        and id(value_of(name)) not in known
    )


def value_of(name):
    """None where nothing has that name: Sphinx knows a class by the module that made it, too."""
    try:
        return pkgutil.resolve_name(name)
    except (AttributeError, ImportError):
        return None
