"""What imports cost, each in a process of its own that has imported nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from .bench_measure import Sample, Timer

__all__ = ["imported", "statements"]

PROGRAM = """
from time import perf_counter, process_time
cpu, wall = process_time(), perf_counter()
{statement}
print(process_time() - cpu, perf_counter() - wall)
"""
ALONE = {"array_api_compat": "import array_api_compat", "attnspec": "import attnspec"}


def statements(backends: Sequence[str]) -> dict[str, tuple[str, str]]:
    """For each subject its statement, and the subject that it is beside."""
    found = {name: (statement, "attnspec") for name, statement in ALONE.items()}
    for name in backends:
        found[f"attnspec {name}"] = (f"from attnspec.backend import {name}", f"attnspec {name}")
        found[f"{name} alone"] = (f"import {name}", f"attnspec {name}")
    return found


def imported(statement: str) -> Timer:
    """Takes a sample of a statement."""

    def sample() -> Sample:
        program = [sys.executable, "-c", PROGRAM.format(statement=statement)]
        done = subprocess.run(program, capture_output=True, text=True, check=True)
        return Sample(*map(float, done.stdout.split()[-2:]))

    return sample
