"""PATH-1: memory grows with the length of a sequence, not with its square. Slow: asked for by --attnspec-slow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# The second of two equal calls in a fresh process, so that neither compiling nor first uses are counted. Linux: writing
# 5 to clear_refs starts the peak (VmHWM, in kB) again from what is resident.
RESET = Path("/proc/self/clear_refs")
PROGRAM = """
import sys
import numpy as np
import attnspec
from attnspec.backend import choose

name, mode, length = sys.argv[1], sys.argv[2], int(sys.argv[3])
backend = choose(name)

def attend(q, k, v, lengths):
    return attnspec.attention(q, k, v, mask=attnspec.causal() & attnspec.padding(lengths))

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

if mode == "jit":
    attend = backend.jit(attend)
rng = np.random.default_rng(0)
arrays = [backend.asarray(rng.standard_normal((1, 2, length, 64), np.float32)) for _ in "qkv"]
arrays.append(backend.asarray(np.array([length], np.int32)))
backend.synchronize(attend(*arrays))
with open("/proc/self/clear_refs", "w") as reset:
    reset.write("5")
before = peak()
backend.synchronize(attend(*arrays))
print((peak() - before) * 1024)
"""


def peak(name: str, mode: str, length: int) -> int:
    """Bytes by which a call raises the peak."""
    if not RESET.exists():
        pytest.skip("the peak of resident memory is read and reset as on Linux")
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
