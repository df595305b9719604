"""Attention as a graph of tasks: a partial result for each chunk of queries and chunk of keys, and how they merge.

A task runs the core's own walk on its chunks, so it holds those, its partial result and one tile of scores. Chunks of
keys that are known to be hidden from a chunk of queries are in no task, and are never read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import getitem
from typing import Any

import dask
import dask.array as da
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task, TaskRef

from attnspec import Request, Span
from attnspec._compat import widened
from attnspec.parts import joined
from attnspec.struct import arrays_in, with_arrays
from attnspec.tiling import status_of

from .chunks import Lengths, Lies, Operand, by_heads, layout, prepared
from .modes import Mode

_CALL = ("q", "k", "v", "mask", "bias", "scale", "softcap", "sink", "q_positions", "k_positions")


def attend(request: Request, mode: Mode) -> tuple[da.Array, da.Array]:
    """(out (..., H, Q, E), lse (..., H, Q)) of a call on Dask's arrays. Nothing is computed."""
    ahead = request.axes.K - request.axes.Q
    request = replace(request, mask=prepared(request.mask, ahead), bias=prepared(request.bias, ahead))
    found = [(block, _of_heads(part, mode)) for block, part in by_heads(request)]
    out, lse = (joined(request.xp, [(block, results[n]) for block, results in found]) for n in range(2))
    return out, lse


def _of_heads(request: Request, mode: Mode) -> tuple[da.Array, da.Array]:
    """The same, where the axes (..., H) are one chunk."""
    axes = request.axes
    q_chunks, k_chunks = request.q.chunks[-2], mode.key_chunks(request.k.chunks[-2])
    call = {name: getattr(request, name) for name in _CALL}
    places = layout(call)
    operands = {
        name: Operand.of(x, places.get(name, Lies()), q_chunks, k_chunks) for name, x in arrays_in("", call).items()
    }
    frame = with_arrays("", call, dict.fromkeys(operands))
    arrays = [operand.array for operand in operands.values()]
    every = max(2, dask.config.get("split_every", 4))
    tasks = _Tasks(f"attention-{tokenize(type(mode), every, frame, [x.name for x in arrays])}")

    k_spans = list(_spans(k_chunks, request.k_positions))
    rows = []
    for i, q in enumerate(_spans(q_chunks, request.q_positions)):
        parts: list[TaskRef] = []
        for j in [j for j, k in enumerate(k_spans) if status_of(request, q, k) != "none"] or [0]:
            part = _Part(mode, frame, tuple(operands), q.bounds, k_spans[j].bounds, first=not parts)
            parts.append(tasks.add(part, *(TaskRef(operand.key(i, j)) for operand in operands.values())))
        rows.append(tasks.add(mode.finish, mode.merged(parts, tasks.add, every), request.q.dtype))

    chunks = (*((n,) for n in (*axes.lead, axes.H)), q_chunks)
    out = tasks.array(0, rows, (*chunks, (axes.E,)), request.q.dtype, arrays)
    return out, tasks.array(1, rows, chunks, widened(request.q).dtype, arrays)


def _spans(lengths: Lengths, positions: Any) -> Iterator[Span]:
    """The stretch of each chunk, as rules read it that look at no array."""
    first = positions.start if isinstance(positions, range) else 0
    known = positions is None or isinstance(positions, range)
    for end, n in zip(accumulate(lengths), lengths, strict=True):
        bounds = (first + end - n, first + end) if known else None
        yield Span(end - n, n, sum(lengths), None, bounds)


class _Tasks(dict[Any, Task]):
    """The tasks of one layer of a graph."""

    def __init__(self, name: str) -> None:
        self.name = name

    def add(self, function: Callable[..., Any], *args: Any) -> TaskRef:
        """One more, given the results of those tasks that are among the arguments."""
        key = (self.name, len(self))
        self[key] = Task(key, function, *args)
        return TaskRef(key)

    def array(self, part: int, rows: list[TaskRef], chunks: Any, dtype: Any, needed: list[da.Array]) -> da.Array:
        """The array whose chunk of each stretch of queries is that part of what a task returns."""
        name = f"{'out' if part == 0 else 'lse'}-{self.name}"
        rank, axis = len(chunks), len(chunks) - (2 if part == 0 else 1)
        layer = {}
        for n, row in enumerate(rows):
            key = (name, *(n if place == axis else 0 for place in range(rank)))
            layer[key] = Task(key, getitem, row, part)
        below = HighLevelGraph.from_collections(self.name, self, needed)
        graph = HighLevelGraph({**below.layers, name: layer}, {**below.dependencies, name: {self.name}})
        return da.Array(graph, name, chunks, dtype=dtype, meta=needed[0]._meta)


@dataclass(frozen=True)
class _Part:
    """A call without its arrays, for one stretch of queries and one of keys; a task calls it with them."""

    mode: Mode
    frame: dict[str, Any]
    names: tuple[str, ...]
    q_bounds: tuple[int, int] | None
    k_bounds: tuple[int, int] | None
    first: bool

    def __call__(self, *arrays: Any) -> Any:
        call = with_arrays("", self.frame, dict(zip(self.names, arrays, strict=True)))
        for name, bounds in (("q_positions", self.q_bounds), ("k_positions", self.k_bounds)):
            if bounds is not None:
                call[name] = range(*bounds)
        if not self.first:
            call["sink"] = None
        return self.mode.partial(**call)
