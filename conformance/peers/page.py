"""docs/peers.html: one table, clauses by peers, that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from importlib.resources import files
from typing import Any

from attnspec_conformance.clauses import CLAUSES
from catalogue import HERE

Found = dict[str, Any]


def page(found: Found, signs: Mapping[str, str]) -> str:
    """The text of the file."""
    peers = found["peers"]
    suite = next(iter(peers.values()))["suite"]
    style = (files("attnspec_conformance.reports") / "page.css").read_text("utf-8")
    style += (HERE / "page.css").read_text("utf-8")
    table = "\n".join(_table(peers, signs))
    details = "\n".join(line for name, peer in peers.items() for line in _peer(name, peer, signs))
    legend = ", ".join(f'<span class="{verdict}">{sign} {verdict}</span>' for verdict, sign in signs.items())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Attention of {len(peers)} peers, clause by clause</title>
<style>
{style}</style>
</head>
<body>
<main>
<h1>Attention of {len(peers)} peers, clause by clause</h1>
<p class=about>The suite of attnspec {escape(suite["attnspec"])}, with {suite["drawn calls"]} calls drawn from seed
{suite["seed"]}. {legend}. A peer is judged within what its documentation promises; a sign links to what was found.</p>
<div class=wide>
{table}
</div>
{details}
</main>
</body>
</html>
"""


def _table(peers: Found, signs: Mapping[str, str]) -> Iterator[str]:
    yield "<table class=matrix><thead><tr><th></th>"
    for name, peer in peers.items():
        yield f'<th scope="col"><a href="#{_id(name)}" title="{escape(peer["title"])}">{escape(name)}</a></th>'
    yield "</tr></thead><tbody>"
    for clause, about in CLAUSES.items():
        cells = {name: peer["clauses"][clause] for name, peer in peers.items() if clause in peer["clauses"]}
        if not cells:
            continue
        yield f'<tr><th scope="row" title="{escape(about.sentence)}">{clause}</th>'
        for name in peers:
            verdict = cells[name]["verdict"] if name in cells else "cannot"
            label = f'aria-label="{escape(name)}, {clause}: {verdict}" title="{escape(name)}, {clause}: {verdict}"'
            link = f'<a href="#{_id(name, clause)}" {label}>{signs[verdict]}</a>'
            yield f'<td class="{verdict}">{link if name in cells else signs[verdict]}</td>'
        yield "</tr>"
    yield "</tbody></table>"


def _peer(name: str, peer: Found, signs: Mapping[str, str]) -> Iterator[str]:
    versions = ", ".join(f"{distribution} {version}" for distribution, version in peer["versions"].items())
    yield f'<section id="{_id(name)}"><h2>{escape(name)}</h2>'
    yield f'<p><a href="{escape(peer["documentation"])}">{escape(peer["title"])}</a>, {escape(versions)}</p>'
    declared = ", ".join(peer["capabilities"]) or "nothing"
    yield f"<p class=about>{peer['trials']} trials. Declared: {escape(declared)}.</p>"
    for clause, cell in peer["clauses"].items():
        yield f'<details><summary><span class="{cell["verdict"]}">'
        yield f"{signs[cell['verdict']]}</span> <b>{clause}</b> <span class=level>{_counts(cell)}</span></summary>"
        # A link to what is inside opens the details; a link to the details does not.
        yield f'<p id="{_id(name, clause)}">{escape(CLAUSES[clause].sentence)}</p>'
        yield from (f"<p>{escape(reason)}</p>" for reason in cell["why different"])
        yield from (f"<p class=reason>{escape(reason)}</p>" for reason in cell["why unsupported"])
        for kind in ("fault", "difference"):
            if kind in cell:
                yield from _example(cell[kind])
        yield "</details>"
    yield "</section>"


def _counts(cell: Found) -> str:
    kinds = ("passed", "failed", "differed", "unsupported", "of other clauses")
    counts = ", ".join(f"{cell[kind]} {kind}" for kind in kinds if cell[kind])
    return f"{counts} ({', '.join(cell['other clauses'])})" if cell["other clauses"] else counts


def _example(example: Found) -> Iterator[str]:
    part = example["error as a part of its bound"]
    beside = f", {part:.3g} times its bound" if part else ""
    yield f"<article><h4>{escape(example['law'])} [{example['trial']}]{beside}</h4>"
    yield f"<p>{escape(example['message'])}</p><pre><code>{escape(example['code'])}</code></pre></article>"


def _id(*parts: str) -> str:
    return "-".join(part.replace(".", "-").replace(" ", "-") for part in parts)
