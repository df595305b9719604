"""The pages of what was found: `python conformance/peers/tables.py` makes docs/peers.md and docs/peers.html.

Both say what docs/peers.json says and nothing else; `--check` writes nothing and exits 1 if they say anything else.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

from attnspec_conformance.clauses import CLAUSES
from catalogue import HERE
from page import page

DOCS = HERE.parents[1] / "docs"
SIGNS = {"holds": "✓", "differs": "≠", "fails": "✗", "cannot": "·"}
Found = dict[str, Any]


def main() -> int:
    """Write or compare."""
    parser = argparse.ArgumentParser(description="Make the pages of docs/peers.json.")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a page is not what it would be")
    options = parser.parse_args()
    found = json.loads((DOCS / "peers.json").read_text("utf-8"))
    pages = {DOCS / "peers.md": markdown(found), DOCS / "peers.html": page(found, SIGNS)}
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text("utf-8") != text]
    for path in stale:
        if options.check:
            print(f"{path} is not what conformance/peers/tables.py makes of peers.json", file=sys.stderr)
        else:
            path.write_text(pages[path], "utf-8")
    return 1 if stale and options.check else 0


def markdown(found: Found) -> str:
    """The text of docs/peers.md."""
    peers = found["peers"]
    (suite,) = {json.dumps(peer["suite"]): peer["suite"] for peer in peers.values()}.values()
    lines = [
        INTRODUCTION.format(
            peers=len(peers), attnspec=suite["attnspec"], seed=suite["seed"], cases=suite["drawn calls"]
        )
    ]
    lines += ["## Who was judged", "", *_summary(peers), "", "## Clause by clause", ""]
    for library in dict.fromkeys(peer["library"] for peer in peers.values()):
        lines += [*_by_clause({name: peer for name, peer in peers.items() if peer["library"] == library}), ""]
    lines += ["## What fails", "", FAILS, ""]
    for name, peer in peers.items():
        lines += _faults(name, peer)
    return "\n".join(lines).rstrip() + "\n"


def _summary(peers: Found) -> Iterator[str]:
    yield "| peer | what | versions | holds | differs | fails | cannot | clauses that fail |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, peer in peers.items():
        count = Counter(cell["verdict"] for cell in peer["clauses"].values())
        failed = ", ".join(clause for clause, cell in peer["clauses"].items() if cell["verdict"] == "fails")
        versions = ", ".join(f"{distribution} {version}" for distribution, version in peer["versions"].items())
        counts = " | ".join(str(count[verdict]) for verdict in SIGNS)
        yield f"| {name} | [{peer['title']}]({peer['documentation']}) | {versions} | {counts} | {failed} |"


def _by_clause(peers: Found) -> Iterator[str]:
    """The cells of one library's peers, and what they differ in."""
    yield f"| clause | {' | '.join(peers)} |"
    yield f"|---|{'---|' * len(peers)}"
    notes: dict[str, list[str]] = {}
    for clause in CLAUSES:
        cells = [peer["clauses"].get(clause) for peer in peers.values()]
        if not any(cells):
            continue
        yield f"| {clause} | {' | '.join(SIGNS[cell['verdict']] if cell else SIGNS['cannot'] for cell in cells)} |"
        for name, cell in zip(peers, cells, strict=True):
            for reason in cell["why different"] if cell else ():
                notes.setdefault(reason, []).append(f"{name} {clause}")
    if notes:
        yield ""
        yield "Differs:"
        yield ""
    for reason, where in notes.items():
        yield f"- {reason} ({', '.join(where)})"


def _faults(name: str, peer: Found) -> Iterator[str]:
    """Each fault once, with the clauses that it breaks."""
    faults: dict[str, tuple[Found, list[str]]] = {}
    for clause, cell in peer["clauses"].items():
        if "fault" in cell:
            faults.setdefault(cell["fault"]["code"], (cell["fault"], []))[1].append(clause)
    if not faults:
        return
    yield f"### {name}"
    yield ""
    for fault, clauses in faults.values():
        yield f"**{', '.join(clauses)}**: `{fault['law']}`. {error(fault)}"
        yield ""
        yield from ("```text", fault["message"], "```", "", "```python", fault["code"].rstrip(), "```", "")


def error(fault: Found) -> str:
    """The error beside its bound, in words."""
    part = fault["error as a part of its bound"]
    return f"The error is {part:.3g} times its bound." if part else "No bound covers it."


INTRODUCTION = """\
# What other implementations do

<!-- Made by conformance/peers/tables.py of docs/peers.json. `nox -s peers` makes both. -->

The suite of attnspec {attnspec} was put to {peers} ways in which other libraries can be asked for attention, on the
CPU, each library in a pinned environment of its own. `nox -s peers` does it again, `nox -s "peers(torch)"` for one
library. The same as [one page](peers.html) and [as data](peers.json).

A peer is judged within what its documentation promises.

| | |
|---|---|
| ✓ holds | every trial that can be put in the peer's words was passed, but drawn calls that another clause fails |
| ≠ differs | the clause is a choice of attnspec's that the peer's documentation makes otherwise, or leaves open |
| ✗ fails | an answer breaks what the peer's documentation promises, or the formula that it gives |
| · cannot | no trial of the clause can be put in the peer's words: it has no such option, dtype or output |

What is a choice stands in `conformance/peers/choices.toml`, what a peer promises or documents otherwise in the
`peers.toml` of its library. Calls are those of the laws, and {cases} drawn from seed {seed}, with the computed bounds
of [the suite](judge.md). [Reports](reports/index.md) tell the gravest faults without attnspec.
"""

FAILS = """\
For each clause the smallest call found that still shows it. The code runs in
`conformance/peers/libraries/<library>` with `PYTHONPATH=../..`, in an environment with its `constraints.txt` and
attnspec's suite: `.nox/peers-<library>` is one."""

if __name__ == "__main__":
    sys.exit(main())
