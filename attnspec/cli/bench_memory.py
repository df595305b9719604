"""The peak of memory that a call takes, results included, over what is resident before it: in a process of its own.

    python -m attnspec.cli.bench_memory SUBJECT CASE SIZE DTYPE

The process makes a call of the same kind on small arrays, so that libraries have set themselves up, makes the arrays
and compiles, and then calls once. Linux's high-water mark of resident pages (VmHWM) is reset before and read after.
Large blocks go back to the system when they are freed, so that no earlier use hides a later one.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

from .bench_peers import find
from .bench_problems import CASES, problem
from .bench_sizes import Size, parsed, spelled

__all__ = ["free", "peak"]

SMALL = 256
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
RESET, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
MINUTES = 10


def peak(subject: str, case: str, size: Size, dtype: str) -> int | None:
    """Bytes; None where the system does not say, or the call fails."""
    if not RESET.exists():
        return None
    command = [sys.executable, "-m", __name__, subject, case, spelled(size), dtype]
    environment = os.environ | ALLOCATOR
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60 * MINUTES)
    except subprocess.TimeoutExpired:
        return None
    return int(done.stdout.split()[-1]) if done.returncode == 0 else None


def free() -> float:
    """Bytes of memory that are free, infinite where the system does not say."""
    path = Path("/proc/meminfo")
    if not path.exists():
        return float("inf")
    return 1024.0 * next(int(line.split()[1]) for line in path.read_text().splitlines() if "MemAvailable" in line)


def main(name: str, case: str, size: str, dtype: str) -> None:
    """Print the bytes."""
    kind, (whole,) = CASES[case], parsed(size)
    small = whole._replace(Q=min(whole.Q, SMALL), K=min(whole.K, SMALL))
    subject = find(name, dtype)
    subject.prepare(problem(kind, small, dtype)).call()
    call = subject.prepare(problem(kind, whole, dtype)).call
    gc.collect()
    RESET.write_text("5")
    before = _resident()
    results = call()
    after = _resident()
    del results
    print(after - before)


def _resident() -> int:
    return 1024 * next(int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))


if __name__ == "__main__":
    main(*sys.argv[1:])
