"""The table: one line an environment, compared with the first one problem by problem.

python -m attnspec_conformance.identity [--problems N] [--seed N] [--environments NAME,...]

A NAME is an environment's, or that of a backend for all of its environments. The exit status is 1 if any bit differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from ..exact_numbers import same
from .calls import CONFIGURATIONS
from .environments import Environment, environments, process_variables
from .problems import FAMILIES, drawn

Findings = dict[str, Any]
AT_ONCE = 2
SHOWN = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=1005)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--environments", default="", metavar="NAME,...")
    asked = parser.parse_args()
    chosen = _chosen([name for name in asked.environments.split(",") if name])
    print(f"{asked.problems} problems of seed {asked.seed}:", end=" ")
    print(f"{len(CONFIGURATIONS)} configurations, {len(FAMILIES)} families of numbers", flush=True)
    print(f"{'environment':30} {'problems':>8} {'values':>10} {'differ':>6} {'NaN':>4} {'SHA-256':>16} {'seconds':>7}")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        table = _Table(asked.seed, asked.problems, Path(folder))
        first, *others = chosen
        table.add(first)
        list(pool.map(table.add, others))
        table.cut()
        table.explain()
    return 1 if table.faults else 0


def _chosen(names: list[str]) -> list[Environment]:
    found, every = [], environments()
    for environment in every:
        if names and not {environment.name, environment.backend} & set(names):
            continue
        if environment.lacks:
            print(f"{environment.name}: skipped, there is no {environment.lacks}")
        else:
            found.append(environment)
    known = {name for environment in every for name in (environment.name, environment.backend)}
    if not found or set(names) - known:
        sys.exit(f"no environment {', '.join(sorted(set(names) - known))}; there are {', '.join(sorted(known))}")
    return found


class _Table:
    """Runs environments, prints their lines, and keeps what differs."""

    def __init__(self, seed: int, count: int, folder: Path) -> None:
        self.seed, self.count, self.folder = seed, count, folder
        self.first: tuple[Environment, Findings] | None = None
        self.differing: list[tuple[Environment, str]] = []
        self.faults = 0

    def add(self, environment: Environment) -> None:
        """One line."""
        start = time.monotonic()
        try:
            found = {n: x for n, x in json.loads(self._run(environment).read_text()).items() if x is not None}
        except subprocess.CalledProcessError as error:
            self.faults += 1
            print(f"{environment.name:30} failed: {_last_line(error)}", flush=True)
            return
        self.first = self.first or (environment, found)
        wanted = self.first[1]
        differing = [n for n in found if n in wanted and found[n]["digest"] != wanted[n]["digest"]]
        unlike = sum(not x["nan"] for x in found.values())
        self.differing += [(environment, n) for n in differing]
        self.faults += len(differing) + unlike
        whole = hashlib.sha256("".join(x["digest"] for x in found.values()).encode()).hexdigest()
        values = sum(x["values"] for x in found.values())
        line = f"{environment.name:30} {len(found):8} {values:10} {len(differing):6} {unlike:4} {whole[:16]}"
        print(f"{line} {time.monotonic() - start:7.0f}", flush=True)

    def cut(self) -> None:
        """The invariances, in the first environment."""
        if self.first is None:
            return
        print(f"\nin {self.first[0].name}:")
        try:
            results = json.loads(self._run(self.first[0], "cuts").read_text())
        except subprocess.CalledProcessError as error:
            self.faults += 1
            print(f"failed: {_last_line(error)}")
            return
        for name, (count, differing) in results.items():
            self.faults += len(differing)
            print(f"{name:50} {count:6} compared {len(differing):6} differ", *differing[:SHOWN], sep="\n    ")

    def explain(self) -> None:
        """Of the first problems that differ, the first numbers that do."""
        if self.first is None:
            return
        first, wanted = self.first
        names = {str(p.number): p.name for p in drawn(self.seed, self.count, CONFIGURATIONS)}
        for n in [n for n, x in wanted.items() if not x["nan"]][:SHOWN]:
            print(f"\n{first.name}, problem {names[n]}: NaN is not where the definition has it")
        for environment, n in self.differing[:SHOWN]:
            print(f"\n{environment.name}, problem {names[n]}:")
            try:
                one, other = (dict(np.load(self._run(e, n))) for e in (first, environment))
            except subprocess.CalledProcessError as error:
                print(f"  {_last_line(error)}")
                continue
            for name, x in one.items():
                y = other.get(name)
                if y is None or y.shape != x.shape:
                    print(f"  {name}: {x.shape} and {None if y is None else y.shape}")
                elif not np.all(same(x, y)):
                    place = tuple(int(i) for i in np.argwhere(~same(x, y))[0])
                    share = np.mean(~same(x, y))
                    print(
                        f"  {name}{list(place)}: {float(x[place])!r} and {float(y[place])!r}; {share:.1%} of it differ"
                    )

    def _run(self, environment: Environment, only: str = "") -> Path:
        suffix = ".npz" if only.isdigit() else ".json"
        file = self.folder / f"{re.sub(r'[^a-z0-9]+', '-', environment.name.lower())}{only}{suffix}"
        e = environment
        how = (e.backend, e.device, e.mode, e.threads, e.mkldnn, e.share, self.seed, self.count, file, only)
        command = [sys.executable, "-m", f"{__package__}.run", *map(str, how)]
        subprocess.run(command, env=process_variables(environment), check=True, capture_output=True, text=True)
        return file


def _last_line(error: subprocess.CalledProcessError) -> str:
    return str(error.stderr).strip().rpartition("\n")[2][:500]


if __name__ == "__main__":
    sys.exit(main())
