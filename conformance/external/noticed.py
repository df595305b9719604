"""How many of the wrong attentions each suite notices: `python conformance/external/noticed.py` writes docs/suites.md.

Every wrong attention of conformance/meta_tests is put in attnspec's place behind the adapter of a library, and the
suite written for that library is asked. It notices the fault if a case fails; the faultless control passes them all.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import re
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from attnspec_conformance.clauses import CLAUSES
from attnspec_conformance.laws import LAWS
from attnspec_conformance.subjects import judge
from case import Case
from rich.progress import track
from standing_in import put_in_place

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "suites.md"
sys.path.append(str(HERE.parent / "meta_tests"))

import wrong  # noqa: E402  after the path to it


class Suite(NamedTuple):
    """The cases of `module.cases(*arguments)`, which ask `attnspec.integrations.<integration>`."""

    title: str
    module: str
    arguments: tuple[Any, ...]
    integration: str
    distribution: str


SUITES = {
    "onnx": Suite("ONNX node tests of Attention", "onnx_nodes", ("numpy",), "onnx", "onnx"),
    "opinfo": Suite("PyTorch OpInfo, float64", "torch_opinfo", ("float64",), "torch", "torch"),
    "transformers": Suite(
        "transformers, model families in float32", "transformers_families", ("float32",), "transformers", "transformers"
    ),
    "mlx": Suite("MLX's grid", "mlx_grid", (), "mlx", "mlx"),
}


def main() -> int:
    """Ask all of them, or those that are named, and write the page if none was left out."""
    parser = argparse.ArgumentParser(description="Count the wrong attentions that each suite notices.")
    parser.add_argument("faults", nargs="*", help="names of wrong attentions; default all, and the page is written")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    alarms = [f"{suite}: {case}" for suite in SUITES for case in _failed(suite, wrong.Faultless())]
    if alarms:
        print("the faultless control fails", *alarms, sep="\n    ")
        return 1
    names = options.faults or list(wrong.CATALOGUE)
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        found = dict(track(pool.imap_unordered(_asked, names), "wrong attentions", total=len(names)))
    for name in names if options.faults else ():
        print(f"{name}: noticed by {', '.join(found[name]) or 'none'}")
    unnoticed = [name for name in names if "ours" not in found[name]]
    if not options.faults:
        PAGE.write_text(page({name: found[name] for name in names}, {name: len(_cases(name)) for name in SUITES}))
    return 1 if unnoticed else 0


def _asked(name: str) -> tuple[str, list[str]]:
    """The suites that notice this fault."""
    cls, clauses = wrong.CATALOGUE[name]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        noticing = [suite for suite in SUITES if any(_failed(suite, cls()))]
        of_clauses = (law for law in LAWS.values() if set(clauses) & set(law.clauses))
        if any(not verdict.ok for law in of_clauses for _, verdict in judge(law, cls())[0]):
            noticing.append("ours")
    return name, noticing


@cache
def _cases(suite: str) -> tuple[Case, ...]:
    return tuple(importlib.import_module(SUITES[suite].module).cases(*SUITES[suite].arguments))


def _failed(suite: str, subject: Any) -> Iterator[Case]:
    with put_in_place(subject, SUITES[suite].integration):
        for case in _cases(suite):
            try:
                case.check()
            except NotImplementedError:
                raise
            except Exception:  # whatever a wrong answer makes of what is computed with it
                yield case


def page(found: dict[str, list[str]], cases: dict[str, int]) -> str:
    """The text of docs/suites.md."""
    columns = {**SUITES, "ours": None}
    count = {suite: sum(suite in noticing for noticing in found.values()) for suite in columns}
    alone = sum(noticing == ["ours"] for noticing in found.values())
    together = sum(bool(set(noticing) - {"ours"}) for noticing in found.values())
    of_laws = sum(len(law.all_trials) for law in LAWS.values())
    lines = [INTRODUCTION.format(faults=len(found), together=together, alone=alone)]
    lines += ["| suite | version | cases | wrong attentions noticed |", "|---|---|---|---|"]
    for name, suite in SUITES.items():
        released = f"{suite.distribution} {version(suite.distribution)}"
        lines.append(f"| {suite.title} | {released} | {cases[name]} | {count[name]} of {len(found)} |")
    lines.append(f"| attnspec's laws | attnspec {version('attnspec')} | {of_laws} | {count['ours']} of {len(found)} |")
    lines += ["", "By the clause that is broken:", "", f"| clause | wrong | {' | '.join(columns)} |"]
    lines.append(f"|---|---|{'---|' * len(columns)}")
    for clause in CLAUSES:
        of_clause = [noticing for name, noticing in found.items() if clause in wrong.CATALOGUE[name][1]]
        if of_clause:
            counts = (sum(suite in noticing for noticing in of_clause) for suite in columns)
            lines.append(f"| {clause} | {len(of_clause)} | {' | '.join(map(str, counts))} |")
    lines += ["", "Noticed by no suite but attnspec's:", ""]
    for name, noticing in found.items():
        if noticing == ["ours"]:
            lines.append(f"- {_words(name)} ({', '.join(wrong.CATALOGUE[name][1])})")
    return "\n".join(lines) + "\n"


def _words(name: str) -> str:
    """MaskedNaNLeaks -> masked NaN leaks."""
    parts = re.findall(r"NaN|[A-Z][a-z0-9]*", name)
    return " ".join(part if part == "NaN" else part.lower() for part in parts)


INTRODUCTION = """\
# How good are the tests of others?

<!-- Made by conformance/external/noticed.py: nox -s suites -->

The {faults} wrong attentions by which attnspec's own suite is judged (`conformance/meta_tests/wrong`), each a right
implementation with one fault, were put in attnspec's place before the suites of others: as the operator of an ONNX
model, as PyTorch's function, as the attention of tiny random models, as MLX's function. A suite notices a fault if one
of its cases fails; the right implementation without a fault passes them all. Together the four notice {together};
{alone} are noticed by attnspec's laws alone. Most of those break what the other suites do not ask about: dropout's
choice, the log-sum-exp, half precision, NaN in what is hidden. Only forward passes are asked of the other suites here,
so that what is wrong in gradients alone is out of their reach.
"""

if __name__ == "__main__":
    sys.exit(main())
