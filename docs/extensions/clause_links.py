"""Clauses can be linked to, and wherever a page names one it is a link.

A paragraph of the specification that begins with `**MASK-5.**` gets the anchor `mask-5`; the text MASK-5, in any page
and docstring, leads there. A name that looks like a clause of a known family and is none is a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from attnspec_conformance.clauses import CLAUSES
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform
from sphinx.util import logging
from sphinx.util.nodes import make_refnode

FAMILIES = "|".join(dict.fromkeys(name.partition("-")[0] for name in CLAUSES))
NAME = re.compile(rf"(?<![\w-])(?:{FAMILIES})-\d+[a-z]?(?![\w-])")
LOGGER = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the two passes."""
    app.add_transform(Anchors)
    app.connect("doctree-resolved", link_names)
    app.connect("env-purge-doc", _forget)
    app.connect("env-merge-info", _merge)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


class Anchors(SphinxTransform):
    """While a page is read: where its clauses stand."""

    default_priority = 700

    def apply(self, **kwargs: Any) -> None:
        for paragraph in self.document.findall(nodes.paragraph):
            first = next((child for child in paragraph if child.astext()), None)
            if not isinstance(first, nodes.strong):
                continue
            name = first.astext().removesuffix(".")
            if NAME.fullmatch(name) and first.astext().endswith("."):
                paragraph["ids"].append(name.lower())
                paragraph["classes"].append("clause")
                _places(self.env)[name] = self.env.docname


def link_names(app: Sphinx, page: nodes.document, docname: str) -> None:
    """Once all pages are read: each name becomes a link."""
    for text in list(page.findall(nodes.Text)):
        if _inside(text, nodes.reference, nodes.title, nodes.literal_block, nodes.raw):
            continue
        if isinstance(text.parent, nodes.strong) and "clause" in text.parent.parent.get("classes", ()):
            continue
        if NAME.search(text):
            text.parent.replace(text, list(_pieces(app, docname, text)))


def _pieces(app: Sphinx, docname: str, text: nodes.Text) -> Iterator[nodes.Node]:
    done, places = 0, _places(app.env)
    for found in NAME.finditer(text):
        name = found.group()
        if name not in places:
            LOGGER.warning("no page of the specification has the clause %s", name, location=text.parent)
            continue
        yield nodes.Text(text[done : found.start()])
        inside = nodes.inline("", name)
        link = make_refnode(app.builder, docname, places[name], name.lower(), inside)
        link["classes"].append("clause-link")
        yield link
        done = found.end()
    yield nodes.Text(text[done:])


def _inside(node: nodes.Node, *kinds: type[nodes.Node]) -> bool:
    parent = node.parent
    while parent is not None and not isinstance(parent, kinds):
        parent = parent.parent
    return parent is not None


def _places(env: BuildEnvironment) -> dict[str, str]:
    """Clause -> page."""
    if not hasattr(env, "clause_places"):
        env.clause_places = {}  # type: ignore[attr-defined]
    return env.clause_places  # type: ignore[attr-defined, no-any-return]


def _forget(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    for name in [name for name, page in _places(env).items() if page == docname]:
        del _places(env)[name]


def _merge(app: Sphinx, env: BuildEnvironment, docnames: list[str], other: BuildEnvironment) -> None:
    _places(env).update(_places(other))
