"""`{peers} MASK`: what docs/peers.json knows of the clauses of one family, made while the site is built.

How many peers hold each clause, in what the others differ, and, folded, every peer with its verdicts.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from attnspec_conformance.clauses import CLAUSES
from docutils import nodes
from sphinx.addnodes import download_reference
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

DOCS = Path(__file__).parents[1]
DATA = DOCS / "peers.json"
TABLE = "peers_table.html"  # what docs/peers.html is in the site, where peers.md has that name
SIGNS = {"holds": "✓", "differs": "≠", "fails": "✗", "cannot": "·"}
MEANING = {
    "holds": "every trial passed",
    "differs": "documented otherwise, or left open",
    "fails": "an answer breaks what the peer's documentation promises",
    "cannot": "the peer has no such option, dtype or output",
}


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("peers", Peers)
    app.add_post_transform(ToTable)
    app.connect("build-finished", _beside_the_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class Peers(SphinxDirective):
    """The argument is a family of clauses."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(DATA))
        peers = _peers()
        (family,) = self.arguments
        judged = [
            clause
            for clause in CLAUSES
            if clause.startswith(f"{family}-") and any(clause in peer["clauses"] for peer in peers.values())
        ]
        if not judged:
            raise self.error(f"docs/peers.json has no clause of the family {family!r}")
        about = nodes.paragraph()
        about += nodes.Text(f"Of {len(peers)} ways to ask other libraries for attention, judged by ")
        about += _link("the suite", f"{self._up}{TABLE}")
        about += nodes.Text(": ")
        for n, (verdict, sign) in enumerate(SIGNS.items()):
            about += nodes.Text("; " if n else "")
            about += nodes.inline("", f"{sign} {verdict}", classes=[f"verdict-{verdict}"])
            about += nodes.Text(f", {MEANING[verdict]}")
        about += nodes.Text(".")
        return [about, self._counts(judged), *self._differences(judged), *self._everyone(judged)]

    @property
    def _up(self) -> str:
        return "../" * self.env.docname.count("/")

    def _counts(self, judged: list[str]) -> nodes.Node:
        """A row for a clause."""
        rows = []
        for clause in judged:
            found = [_verdict(peer, clause) for peer in _peers().values()]
            row: list[nodes.Node] = [nodes.paragraph("", clause), nodes.paragraph("", CLAUSES[clause].sentence)]
            row += [_sign(str(found.count(verdict) or ""), verdict) for verdict in SIGNS]
            rows.append(row)
        heads = [nodes.paragraph("", ""), nodes.paragraph("", "in one sentence")]
        return _table([*heads, *(_sign(sign, verdict) for verdict, sign in SIGNS.items())], rows)

    def _differences(self, judged: list[str]) -> Iterator[nodes.Node]:
        """Each reason once, with its clauses and libraries."""
        reasons: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
        for peer in _peers().values():
            for clause in judged:
                for reason in peer["clauses"].get(clause, {}).get("why different", ()):
                    clauses, libraries = reasons.setdefault(reason, ({}, {}))
                    clauses[clause] = libraries[peer["library"]] = None
        if not reasons:
            return
        yield nodes.paragraph("", "What differs:")
        items = nodes.bullet_list(bullet="-")
        for reason, (clauses, libraries) in reasons.items():
            line = nodes.paragraph("", f"{', '.join(clauses)}: {reason} ({', '.join(libraries)}).")
            items += nodes.list_item("", line)
        yield items

    def _everyone(self, judged: list[str]) -> Iterator[nodes.Node]:
        """Peers of one library with equal verdicts share a row."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for name, peer in _peers().items():
            groups.setdefault((peer["library"], *(_verdict(peer, clause) for clause in judged)), []).append(name)
        rows = []
        for (_, *verdicts), names in groups.items():
            who = nodes.paragraph()
            for n, name in enumerate(names):
                who += nodes.Text(", " if n else "")
                who += _link(name, f"{self._up}{TABLE}#{_anchor(name)}")
            signs = [
                _sign(SIGNS[verdict], verdict, link=f"{self._up}{TABLE}#{_anchor(names[0], clause)}")
                if verdict != "cannot"
                else _sign(SIGNS[verdict], verdict)
                for clause, verdict in zip(judged, verdicts, strict=True)
            ]
            rows.append([who, *signs])
        yield nodes.raw("", "<details><summary>Every peer</summary>", format="html")
        table = _table([nodes.paragraph("", "peer"), *(nodes.paragraph("", clause) for clause in judged)], rows)
        table["classes"].append("every-peer")
        yield table
        yield nodes.raw("", "</details>", format="html")


class ToTable(SphinxPostTransform):
    """A link to docs/peers.html opens the page and does not download a copy of it."""

    default_priority = 5

    def run(self, **kwargs: Any) -> None:
        for link in list(self.document.findall(download_reference)):
            if link.get("reftarget") == "peers.html":
                link.replace_self(nodes.reference("", "", *link.children, refuri=TABLE, internal=True))


def _beside_the_pages(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        shutil.copyfile(DOCS / "peers.html", Path(app.outdir) / TABLE)


@cache
def _peers() -> dict[str, Any]:
    return json.loads(DATA.read_text("utf-8"))["peers"]  # type: ignore[no-any-return]


def _verdict(peer: dict[str, Any], clause: str) -> str:
    return peer["clauses"].get(clause, {}).get("verdict", "cannot")  # type: ignore[no-any-return]


def _anchor(*parts: str) -> str:
    """As conformance/peers/page.py makes them."""
    return "-".join(part.replace(".", "-").replace(" ", "-") for part in parts)


def _sign(text: str, verdict: str, *, link: str | None = None) -> nodes.paragraph:
    inside = _link(text, link) if link else nodes.Text(text)
    return nodes.paragraph("", "", nodes.inline("", "", inside, classes=[f"verdict-{verdict}"]))


def _link(text: str, target: str) -> nodes.reference:
    return nodes.reference("", text, refuri=target, internal=True)


def _table(head: list[nodes.Node], rows: list[list[nodes.Node]]) -> nodes.table:
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in head), cols=len(head))
    group += nodes.thead("", _row(head))
    group += nodes.tbody("", *map(_row, rows))
    return nodes.table("", group)


def _row(cells: list[nodes.Node]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", cell) for cell in cells))
