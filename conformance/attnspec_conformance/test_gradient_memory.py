"""PATH-1: memory of training grows with the length of a sequence, not with its square. Slow, as `test_memory`."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from .test_memory import RESET

LENGTH, HEADS, WIDTH = 8192, 4, 64
# As in `test_memory`: the second of two equal calls in a fresh process, from a peak that is reset between them. What
# the first one freed and the allocator kept would hide as much of the second: it is given back (glibc).
PROGRAM = """
import ctypes
import gc
import sys
import numpy as np
import attnspec
from attnspec.backend import choose

name, route, length, heads, width = *sys.argv[1:3], *map(int, sys.argv[3:])
backend = choose(name)

def attend(q, k, v):
    return attnspec.attention(q, k, v, mask=attnspec.causal())

def gradients(q, k, v, g):
    out, pull = (attnspec.vjp if route == "tape" else backend.vjp)(attend, q, k, v)
    return (out, *pull(g))

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

if route == "jit":
    gradients = backend.jit(gradients)
rng = np.random.default_rng(0)
arrays = [backend.asarray(rng.standard_normal((1, heads, length, width), np.float32)) for _ in "qkvg"]
list(map(backend.synchronize, gradients(*arrays)))
gc.collect()
if hasattr(ctypes.CDLL(None), "malloc_trim"):
    ctypes.CDLL(None).malloc_trim(0)
with open("/proc/self/clear_refs", "w") as reset:
    reset.write("5")
before = peak()
list(map(backend.synchronize, gradients(*arrays)))
print((peak() - before) * 1024)
"""


def check(backend: Any, route: str) -> None:
    """At most 200 MB over the inputs, which lie there before, and over the output and three gradients."""
    if not RESET.exists():
        pytest.skip("the peak of resident memory is read and reset as on Linux")
    command = [sys.executable, "-c", PROGRAM, backend.name, route, *map(str, (LENGTH, HEADS, WIDTH))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    over = int(done.stdout) - 4 * HEADS * LENGTH * WIDTH * 4
    assert over <= 200 * 10**6, f"{over / 1e6:.0f} MB over inputs and outputs"


@pytest.mark.slow
@pytest.mark.clause("PATH-1")
def test_memory_of_gradients_does_not_grow_with_the_square_of_the_length(backend: Any) -> None:
    check(backend, "tape")


@pytest.mark.slow
@pytest.mark.needs("vjp")
@pytest.mark.clause("PATH-1")
def test_nor_does_that_of_the_frameworks_reverse_mode(backend: Any) -> None:
    check(backend, "eager")


@pytest.mark.slow
@pytest.mark.needs("vjp", "jit")
@pytest.mark.clause("PATH-1")
def test_nor_does_that_of_the_compiled_one(backend: Any) -> None:
    check(backend, "jit")
