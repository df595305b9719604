"""How a call on chunked arrays is cut: by heads, then into stretches of queries and of keys, two for each task.

Whatever has an entry for each query or for each key (q, k, v, positions, ids of segments, array masks and biases) is
rechunked along them, and a task gets its chunk. Every other array is small, and each task gets all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, product
from typing import Any, NamedTuple

import dask.array as da
from dask.task_spec import TaskRef

from attnspec import Request, Span
from attnspec.errors import OptionError
from attnspec.parts import Block
from attnspec.reproducible.arrays import Identical, Numbers
from attnspec.reproducible.steady import CHUNK
from attnspec.shards import Lies, Tile, layout
from attnspec.struct import arrays_in, with_arrays
from attnspec.tiling import status_of

Lengths = tuple[int, ...]  # of the chunks along one axis
Kinds = Mapping[str, str]  # what arrays of reproducible mode stand for, by the arrays' names


def unsupported(request: Request) -> str | None:
    """Why a call cannot be taken apart into chunks; None if it can."""
    try:
        layout(request)
    except OptionError as error:
        return str(error)
    return 'implementation="portable" asks for plain operations' if request.portable else None


def bare(tree: Any) -> tuple[Any, Kinds]:
    """A call, or anything else, with Dask's arrays in place of those of reproducible mode; and what these stood for."""
    arrays = arrays_in("", tree)
    wrapped = {name: x for name, x in arrays.items() if isinstance(x, Numbers)}
    return (
        with_arrays("", tree, {name: x.value for name, x in wrapped.items()}),
        {name: x.kind for name, x in wrapped.items()},
    )


def clothed(arrays: Mapping[str, Any], kinds: Kinds) -> dict[str, Any]:
    """Chunks of such arrays as reproducible mode has them."""
    return {name: Identical(x, kinds[name]) if name in kinds else x for name, x in arrays.items()}


def by_heads(request: Request) -> Iterator[tuple[Block, Request]]:
    """The call for each chunk of the axes (..., H): whole groups of heads, chunked as q is, else as k or v."""
    axes, rank = request.axes, len(request.axes.lead)
    chunks = [_lengths(request, n - rank - 3, size) for n, size in enumerate(axes.lead)]
    chunks.append(_multiples(request.q.chunks[-3], max(1, axes.H // max(1, axes.G))))
    blocks = list(product(*map(_slices, chunks)))
    for block in blocks:
        yield block, request if len(blocks) == 1 else request.part(block)


def _lengths(request: Request, axis: int, size: int) -> Lengths:
    """The chunks along a leading axis, in the first array that is not broadcast along it."""
    whole = (x for x in (request.q, request.k, request.v) if x.ndim >= -axis and x.shape[axis] == size)
    return next(whole).chunks[axis]  # type: ignore[no-any-return]


def _slices(lengths: Lengths) -> list[slice]:
    ends = accumulate(lengths)
    return [slice(end - n, end) for n, end in zip(lengths, ends, strict=True)]


def key_chunks_of_whole_sums(lengths: Lengths) -> Lengths:
    """Chunks of keys near those that there are, for sums that are rounded once for so many keys."""
    return _multiples(lengths, CHUNK)


def _multiples(lengths: Lengths, unit: int) -> Lengths:
    """Chunks near those that there are, which end after a multiple of `unit`, and at the end."""
    total = sum(lengths)
    ends = sorted({min(total, -(-end // unit) * unit) for end in accumulate(lengths)})
    return tuple(end - start for start, end in zip((0, *ends), ends, strict=False))


class Operand(NamedTuple):
    """An array in the chunks of the tasks, and the axes along which there may be several."""

    array: da.Array
    lies: Lies

    @classmethod
    def of(cls, x: da.Array, lies: Lies, q_chunks: Lengths, k_chunks: Lengths) -> Operand:
        """Rechunked."""
        chunks: list[Lengths] = [(n,) for n in x.shape]
        for axis, lengths in ((lies.queries, q_chunks), (lies.keys, k_chunks)):
            if axis is not None:
                chunks[axis] = lengths
        return cls(x.rechunk(tuple(chunks)), lies)

    def place(self, q: int, k: int) -> tuple[int, ...]:
        """Which chunk belongs to the q-th chunk of queries and the k-th of keys."""
        index = [0] * self.array.ndim
        for axis, n in ((self.lies.queries, q), (self.lies.keys, k)):
            if axis is not None:
                index[axis] = n
        return tuple(index)

    def ref(self, q: int, k: int) -> TaskRef:
        """That chunk, for a task."""
        return TaskRef((self.array.name, *self.place(q, k)))


class Cut:
    """A call from the start (`attnspec.shards.from_the_start`) on Dask's arrays, in chunks of queries and of keys."""

    def __init__(self, request: Request, kinds: Kinds, q_chunks: Lengths, k_chunks: Lengths) -> None:
        arrays, lies = arrays_in("", request), layout(request)
        self.axes, self.kinds, self.q_chunks, self.k_chunks = request.axes, kinds, q_chunks, k_chunks
        self.operands = {name: Operand.of(x, lies[name], q_chunks, k_chunks) for name, x in arrays.items()}
        self.frame: Request = with_arrays("", request, dict.fromkeys(arrays))
        self._q, self._k = _spans(q_chunks, request.q_positions), _spans(k_chunks, request.k_positions)
        self._status = [[status_of(request, q, k) for k in self._k] for q in self._q]

    @property
    def arrays(self) -> list[da.Array]:
        """What all tasks together read."""
        return [operand.array for operand in self.operands.values()]

    def seen_by(self, q: int) -> list[int]:
        """The chunks of keys that a chunk of queries may see; one where it sees none."""
        return [k for k, status in enumerate(self._status[q]) if status != "none"] or [0]

    def part(self, q: int, k: int) -> Part:
        """The call of two chunks, but for its arrays."""
        of_q, of_k = self._q[q], self._k[k]
        tile = Tile(0, of_q.size, 0, of_k.size, of_q.start, of_k.start)
        return Part(self.frame, tuple(self.operands), self.kinds, tile, first=k == self.seen_by(q)[0])

    def refs(self, q: int, k: int) -> list[TaskRef]:
        """Its arrays, for a task."""
        return [operand.ref(q, k) for operand in self.operands.values()]


def _spans(lengths: Lengths, positions: Any) -> list[Span]:
    """The stretch of each chunk, as rules read it that look at no array."""
    first = positions.start if isinstance(positions, range) else 0
    known = positions is None or isinstance(positions, range)
    total = sum(lengths)
    return [
        Span(end - n, n, total, None, (first + end - n, first + end) if known else None)
        for end, n in zip(accumulate(lengths), lengths, strict=True)
    ]


@dataclass(frozen=True)
class Part:
    """A call without its arrays, for one chunk of queries and one of keys; a task completes it."""

    frame: Request
    names: tuple[str, ...]
    kinds: Kinds
    tile: Tile
    first: bool  # of those that its queries see: the sink belongs to it

    def request(self, arrays: tuple[Any, ...]) -> Request:
        """The call of the chunks."""
        whole: Request = with_arrays("", self.frame, clothed(dict(zip(self.names, arrays, strict=True)), self.kinds))
        found = self.tile.request(whole, {}, {})
        return replace(found, sink=whole.sink) if self.first else found
