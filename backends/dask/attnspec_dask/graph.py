"""Attention as a graph of tasks: a partial result for each chunk of queries and chunk of keys, and how they merge.

A task runs the core's own walk on its chunks, so it holds those, its partial result and one tile of scores. Chunks of
keys that are known to be hidden from a chunk of queries are in no task, and are never read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import getitem
from typing import Any

import dask
import dask.array as da
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Alias, Task, TaskRef

from attnspec import Request
from attnspec._compat import dtype_name, widened
from attnspec.parts import joined
from attnspec.shards import from_the_start

from .chunks import Cut, Lengths, Part, bare, by_heads
from .host import scope
from .modes import Mode, Rows

Place = tuple[int, ...]  # of a chunk, along each axis
Chunks = tuple[Lengths, ...]


def attend(request: Request, mode: Mode) -> Rows:
    """The results of `attnspec.blocks.attend` on Dask's arrays. Nothing is computed."""
    plain, kinds = bare(from_the_start(request))
    found = []
    for block, part in by_heads(plain):
        cut = Cut(part, kinds, part.q.chunks[-2], mode.key_chunks(part.k.chunks[-2]))
        found.append((block, _of_heads(cut, mode, widened(part.q))))
    out, lse, reference, total = (joined(plain.xp, [(block, rows[n]) for block, rows in found]) for n in range(4))
    return mode.results((out, lse, reference, total), dtype_name(request.q))


def _of_heads(cut: Cut, mode: Mode, like: da.Array) -> Rows:
    """The same, where the axes (..., H) are one chunk."""
    tasks, axes = Tasks("attention", cut, type(mode)), cut.axes
    rows = []
    for q in range(len(cut.q_chunks)):
        parts = [tasks.add(_of_part, mode, cut.part(q, k), *cut.refs(q, k)) for k in cut.seen_by(q)]
        rows.append(tasks.add(mode.finish, mode.merged(parts, tasks.add, every())))
    lead: Chunks = (*((n,) for n in (*axes.lead, axes.H)), cut.q_chunks)
    of_results: list[Chunks] = [(*lead, (axes.E,)), lead, (*lead, (1,)), (*lead, (1,))]
    results = []
    for n, chunks in enumerate(of_results):
        places = [tuple(q if axis == len(lead) - 1 else 0 for axis in range(len(chunks))) for q in range(len(rows))]
        found = {place: tasks.add(getitem, row, n) for place, row in zip(places, rows, strict=True)}
        results.append(tasks.array(f"rows-{n}", found, chunks, like))
    out, lse, reference, total = results
    return out, lse, reference, total


def _of_part(mode: Mode, part: Part, *arrays: Any) -> Any:
    return mode.partial(part.request(arrays))


def every() -> int:
    """How many results one task merges."""
    return max(2, int(dask.config.get("split_every", 4)))


class Tasks(dict[Any, Task]):
    """The tasks of one layer of a graph, which read the arrays of a call and others."""

    def __init__(self, what: str, cut: Cut, static: Any, others: Sequence[da.Array] = ()) -> None:
        self.needed = [*cut.arrays, *others]
        names = [x.name for x in self.needed]
        self.name = f"{what}-{tokenize(static, every(), cut.frame, cut.kinds, cut.q_chunks, cut.k_chunks, names)}"

    def add(self, function: Callable[..., Any], *args: Any) -> TaskRef:
        """One more, given the results of those tasks that are among the arguments."""
        key = (self.name, len(self))
        self[key] = Task(key, quietly, function, *args)
        return TaskRef(key)

    def array(self, what: str, parts: Mapping[Place, TaskRef], chunks: Chunks, like: da.Array) -> da.Array:
        """The array whose chunk at each place is what a task returns."""
        name = f"{what}-{self.name}"
        layer = {(name, *place): Alias((name, *place), part) for place, part in parts.items()}
        below = HighLevelGraph.from_collections(self.name, self, self.needed)
        graph = HighLevelGraph({**below.layers, name: layer}, {**below.dependencies, name: {self.name}})
        return da.Array(graph, name, chunks, dtype=like.dtype, meta=like._meta)


def quietly(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """In a task: as the doors of attnspec call what is behind them."""
    with scope():
        return function(*args, **options)
