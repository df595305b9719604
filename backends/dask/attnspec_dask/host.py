"""What Dask adds to the standard: attention by chunks, in tasks that Dask schedules.

A host may be loaded while attnspec itself is being imported, so what needs the whole of it is imported when called.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import Any

import dask.array as da
import numpy as np

from attnspec._compat import cast, remember
from attnspec.host import Host, Kernel

from . import namespace


def scope() -> AbstractContextManager[None]:
    """While a graph is built, Dask tries operations on empty arrays: NumPy's warnings about those are silenced."""
    return np.errstate(all="ignore")


def dtype(xp: Any, name: str) -> Any:
    """NumPy's, of which the namespace names some; bfloat16 is that of ml_dtypes, where it is installed."""
    if name == "bfloat16" and find_spec("ml_dtypes"):
        import ml_dtypes

        return ml_dtypes.bfloat16
    return getattr(np, name, None)


def threefry(rng: tuple[Any, Any], counter: tuple[Any, Any]) -> tuple[Any, Any]:
    """`prng.rounds` as one task for each chunk: as tasks of their own its operations are hundreds."""
    packed = da.map_blocks(_packed, *rng, *counter, dtype=np.int64)
    return (packed >> 32).astype(np.int32), packed.astype(np.int32)


def _packed(*words: Any) -> Any:
    from attnspec.prng import rounds

    with np.errstate(over="ignore"):
        high, low = rounds(words[:2], words[2:])
    return np.asarray(high, np.int64) << 32 | np.asarray(low, np.int64) & 0xFFFFFFFF


def run(function: Callable[..., Any], operands: Any, *static: Any) -> Any:
    """Attention and its gradients by chunks, where they can be taken apart; anything else as it is."""
    from attnspec.backward import attend_backward
    from attnspec.blocks import attend

    from . import gradients, graph, modes

    if function is attend and unsupported(operands) is None:
        return graph.attend(operands, modes.mode_of(*static))
    if function is attend_backward and unsupported(operands[0]) is None:
        return gradients.pull(operands, *static)
    return function(operands, *static)


def sealed(function: Callable[..., Any], *arrays: Any, **static: Any) -> Any:
    """One task for each chunk, where chunks have nothing to do with each other."""
    from . import sealed as by_chunk

    return by_chunk.sealed(function, *arrays, **static)


def unsupported(request: Any) -> str | None:
    """Why a call cannot be taken apart into chunks; None if it can."""
    from . import chunks

    return chunks.unsupported(request)


def by_chunks(request: Any) -> tuple[Any, Any]:
    """(out, lse), in default mode."""
    from . import graph, modes

    out, lse, *_ = graph.attend(request, modes.Default())
    return cast(out, request.q.dtype), lse


remember(da.Array, namespace)

kernels = (Kernel("chunks", unsupported, by_chunks),)

HOST = Host(scope=scope, dtype=dtype, run=run, threefry=threefry, kernels=kernels, sealed=sealed)
