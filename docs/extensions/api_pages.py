"""`.. api:: module ...`: every public name of modules, by autodoc, with docstrings in the form that attnspec writes.

Public is what `__all__` lists; without it, what the module defines and does not begin with an underscore. `package.*`
stands for the modules of a package that have an `__all__`. Names that another page documents are only listed.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar

from docstring_form import restructured
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import nested_parse_with_titles

BASE = "attnspec"
ALREADY_CHOSEN = ("backend", "host")  # of a backend's package: reached by `attnspec.backend`, never imported by name


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive, and the form of the docstrings."""
    app.add_directive("api", Api)
    app.connect("autodoc-process-docstring", _process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class Api(SphinxDirective):
    """The arguments are modules; `:grouped:` sorts the names of a package by the modules that define them."""

    required_arguments = 1
    optional_arguments = 100
    option_spec: ClassVar[dict[str, Any]] = {"grouped": lambda _: True}

    def run(self) -> list[nodes.Node]:
        lines: list[str] = []
        for module in _modules(self.arguments):
            lines += _grouped(module) if "grouped" in self.options else _whole(module)
        node = nodes.container()
        node.document = self.state.document
        nested_parse_with_titles(self.state, StringList(lines, "docs/extensions/api_pages.py"), node)
        return node.children


def _modules(names: list[str]) -> Iterator[ModuleType]:
    for name in names:
        if not name.endswith(".*"):
            yield import_module(name)
            continue
        package = import_module(name.removesuffix(".*"))
        for found in pkgutil.iter_modules(package.__path__):
            module = import_module(f"{package.__name__}.{found.name}")
            if hasattr(module, "__all__") and found.name not in ALREADY_CHOSEN:
                yield module


def _whole(module: ModuleType) -> Iterator[str]:
    """A section with what the module's docstring says, and its names."""
    yield from _title(module.__name__)
    yield from (*restructured(inspect.getdoc(module) or ""), "")
    yield f".. py:module:: {module.__name__}"
    yield ""
    elsewhere = [name for name in _public(module) if _is_base(module, name)]
    for name in _public(module):
        if name not in elsewhere:
            yield from _entry(module, name)
    if elsewhere:
        yield f"The same as in ``{BASE}``: {', '.join(f':py:obj:`~{BASE}.{name}`' for name in elsewhere)}."
        yield ""


def _grouped(package: ModuleType) -> Iterator[str]:
    """A section for each module that defines some of the names, in the order of the modules' names in the package."""
    yield f".. py:module:: {package.__name__}"
    yield ""
    groups: dict[str, list[str]] = {}
    for name in _public(package):
        value = getattr(package, name)
        if not inspect.ismodule(value):
            groups.setdefault(value.__module__, []).append(name)
    for origin, names in sorted(groups.items()):
        yield from _title(re.split(r"[.:](?:\s|$)", inspect.getdoc(import_module(origin)) or "")[0].replace("\n", " "))
        for name in names:
            yield from _entry(package, name)


def _entry(module: ModuleType, name: str) -> Iterator[str]:
    value = getattr(module, name)
    full = f"{module.__name__}.{name}"
    if inspect.ismodule(value):
        yield f"``{full}``: {(inspect.getdoc(value) or '').splitlines()[0]}"
    elif inspect.isclass(value):
        yield f".. auto{'exception' if issubclass(value, BaseException) else 'class'}:: {full}"
        yield "   :members:"
    else:
        yield f".. auto{'function' if callable(value) else 'data'}:: {full}"
    yield ""


def _public(module: ModuleType) -> list[str]:
    if hasattr(module, "__all__"):
        return list(module.__all__)
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return [name for name in own if not name.startswith("_")]


def _is_base(module: ModuleType, name: str) -> bool:
    base = import_module(BASE)
    return module is not base and getattr(base, name, None) is getattr(module, name)


def _title(text: str) -> Iterator[str]:
    yield from (text, "-" * len(text), "")


def _process(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """What autodoc calls for each docstring, which it takes from `lines`."""
    lines[:] = restructured("\n".join(lines), value if inspect.isclass(value) else None)
