"""PATH-1: memory grows with the length of a sequence, not with its square. Slow: asked for by --attnspec-slow."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

# Peak resident memory in kilobytes (Linux) of a fresh process, with the inputs made and a small call done before.
PROGRAM = """
import resource, sys
import numpy as np
import attnspec
from attnspec.backend import choose

name, mode, length = sys.argv[1], sys.argv[2], int(sys.argv[3])
backend = choose(name)

def attend(q, k, v, lengths):
    return attnspec.attention(q, k, v, mask=attnspec.causal() & attnspec.padding(lengths))

if mode == "jit":
    attend = backend.jit(attend)

def call(n):
    x = np.random.default_rng(0).standard_normal((3, 1, 2, n, 64)).astype(np.float32)
    arrays = [backend.asarray(np.ascontiguousarray(a)) for a in x]
    lengths = backend.asarray(np.array([n], np.int32))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    backend.synchronize(attend(*arrays, lengths))
    return before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

call(600)
before, after = call(length)
print((after - before) * 1024)
"""


def peak(name: str, mode: str, length: int) -> int:
    """Bytes by which the largest call raises the peak."""
    command = [sys.executable, "-c", PROGRAM, name, mode, str(length)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def allowed(length: int) -> int:
    """The output, and 64 MB of tiles: a matrix of length x length floats would be 1 GB a head."""
    return 2 * length * 64 * 4 + 64 * 2**20


@pytest.mark.slow
@pytest.mark.clause("PATH-1")
def test_memory_does_not_grow_with_the_square_of_the_length(backend: Any) -> None:
    used = peak(backend.name, "eager", 16384)
    assert used <= allowed(16384), f"{used / 2**20:.0f} MB"


@pytest.mark.slow
@pytest.mark.needs("jit")
@pytest.mark.clause("PATH-1")
def test_compiled_memory_does_not_grow_with_the_square_either(backend: Any) -> None:
    used = peak(backend.name, "jit", 16384)
    assert used <= allowed(16384), f"{used / 2**20:.0f} MB"
