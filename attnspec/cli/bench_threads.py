"""How many threads the libraries may take: said before they are loaded, where that is still possible."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

__all__ = ["allowed", "threads"]

VARIABLES = (
    "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "NPROC",  # of XLA's processor client
)  # fmt: skip
XLA_FLAGS, ONE = "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false"
READ_ONCE = ("numpy", "torch", "jax")  # by these, when they are loaded


@contextmanager
def threads(count: int) -> Iterator[list[str]]:
    """Inside, processes that are started and libraries that are loaded take `count` threads; yields how that is so."""
    before = dict(os.environ)
    early = [name for name in READ_ONCE if name in sys.modules]
    os.environ.update(dict.fromkeys(VARIABLES, str(count)))
    if count == 1:
        os.environ[XLA_FLAGS] = f"{before.get(XLA_FLAGS, '')} {ONE}".strip()
    controlled = _controlled(count)
    try:
        yield _said(count, early, controlled is not None)
    finally:
        if controlled is not None:
            controlled.restore_original_limits()
        os.environ.clear()
        os.environ.update(before)


def allowed() -> int:
    """How many that are now."""
    return int(os.environ.get(VARIABLES[0], "1"))


def _controlled(count: int) -> Any:
    """The pools of what is loaded, limited by threadpoolctl if that is installed."""
    if find_spec("threadpoolctl") is None:
        return None
    import_module("numpy")  # whose pool would not be found before
    return import_module("threadpoolctl").threadpool_limits(count)


def _said(count: int, early: list[str], controlled: bool) -> list[str]:
    lines = [f"{', '.join(VARIABLES)} = {count}"] + ["threadpoolctl"] * controlled
    left = [name for name in early if not controlled or name == "jax"]  # whose threads threadpoolctl does not know
    if left:
        lines.append(f"loaded before and not limited: {', '.join(left)}")
    return lines
