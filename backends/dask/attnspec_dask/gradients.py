"""The gradients of attention as a graph of tasks: what a chunk of queries and a chunk of keys give to each, added up.

A task runs the core's own walk back on its chunks, from the final sums of its rows. So nothing of size Q x K exists but
the gradient of a bias of that size, and chunks of keys that are hidden from a chunk of queries are in no task.
"""

from __future__ import annotations

from functools import reduce
from itertools import product
from operator import add, getitem
from typing import Any

import dask.array as da
import numpy as np
from dask.graph_manipulation import bind
from dask.task_spec import TaskRef

from attnspec import Request
from attnspec._compat import FLOATING, dtype_name, unwrapped, widened
from attnspec.backward import Gradients, Saved, attend_backward
from attnspec.fast import FAST
from attnspec.numerics import Numerics
from attnspec.reproducible.arrays import Identical
from attnspec.rows import OF_NO_KEYS, RESULTS
from attnspec.shards import from_the_start, layout
from attnspec.struct import arrays_in, with_arrays

from .chunks import Cut, Kinds, Operand, Part, bare, clothed
from .graph import Tasks, every


def pull(saved: Saved, numerics: Numerics) -> Gradients:
    """The results of `attnspec.backward.attend_backward` on Dask's arrays. Nothing is computed.

    All heads of a chunk are taken together. In reproducible mode, where sums are rounded in one order, so are all
    queries and keys: its gradients need the whole call in the memory of one worker.
    """
    request, results, cotangents = saved
    plain, kinds = bare(from_the_start(request))
    given, row_kinds = bare((*results, *cotangents))
    plain = _read_again(plain, given[0])
    q_chunks, k_chunks = plain.q.chunks[-2], plain.k.chunks[-2]
    if numerics is not FAST:
        q_chunks, k_chunks = (plain.axes.Q,), (plain.axes.K,)
    cut = Cut(plain, kinds, q_chunks, k_chunks)
    rows = [Operand.of(x, lies, q_chunks, k_chunks) for x, lies in zip(given, RESULTS * 2, strict=True)]
    tasks = Tasks("gradients", cut, type(numerics), [row.array for row in rows])
    found = {}
    for q in range(len(q_chunks)):
        of_rows = [row.ref(q, 0) for row in rows]
        for k in cut.seen_by(q):
            part = cut.part(q, k)
            found[q, k] = part, tasks.add(_of_part, numerics, part, row_kinds, *cut.refs(q, k), *of_rows)
    floats = [name for name, x in arrays_in("", request).items() if dtype_name(x) in FLOATING]
    gradients = {name[1:]: _summed(cut.operands[name], name, found, tasks, widened(plain.q)) for name in floats}
    return {name: Identical(x, "float64") for name, x in gradients.items()} if kinds else gradients


def _read_again(request: Request, out: da.Array) -> Request:
    """The call with arrays of keys that are made anew once out is known.

    Otherwise Dask would keep all that the forward pass has read until the walk back has read it too.
    """
    lies = layout(request)
    of_keys = {name: x for name, x in arrays_in("", request).items() if lies[name].keys is not None}
    return with_arrays("", request, {name: bind(x, out) for name, x in of_keys.items()})  # type: ignore[no-any-return]


def _of_part(numerics: Numerics, part: Part, row_kinds: Kinds, *arrays: Any) -> Gradients:
    n = len(part.names)
    rows = tuple(clothed({f".{n}": x for n, x in enumerate(arrays[n:])}, row_kinds).values())
    gradients = attend_backward((part.request(arrays[:n]), rows[:4], rows[4:]), numerics)
    return {name: unwrapped(x) for name, x in gradients.items()}


def _summed(
    operand: Operand, name: str, found: dict[tuple[int, int], tuple[Part, TaskRef]], tasks: Tasks, like: da.Array
) -> da.Array:
    """The gradient of an array, in the chunks that the tasks have of it."""
    x = operand.array
    parts: dict[tuple[int, ...], list[TaskRef]] = {place: [] for place in product(*map(range, x.numblocks))}
    for pair, (part, gradients) in found.items():
        if part.first or name not in OF_NO_KEYS:
            parts[operand.place(*pair)].append(tasks.add(getitem, gradients, name[1:]))
    sums = {}
    for place, terms in parts.items():
        shape = tuple(lengths[n] for lengths, n in zip(x.chunks, place, strict=True))
        sums[place] = _tree(terms, tasks) if terms else tasks.add(np.zeros, shape, like.dtype)
    return tasks.array(name[1:], sums, x.chunks, like)


def _tree(terms: list[TaskRef], tasks: Tasks) -> TaskRef:
    while len(terms) > 1:
        groups = [terms[n : n + every()] for n in range(0, len(terms), every())]
        terms = [tasks.add(_added, *group) if len(group) > 1 else group[0] for group in groups]
    return terms[0]


def _added(*terms: Any) -> Any:
    return reduce(add, terms)
