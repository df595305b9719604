"""How a call on chunked arrays is cut: by heads, then into stretches of queries and of keys, two for each task.

Whatever has an entry for each query or for each key (q, k, v, positions, ids of segments, array masks and biases) is
rechunked along them, and a task gets its chunk. Every other array is small, and each task gets all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import accumulate, product
from typing import Any, NamedTuple

import dask.array as da
import numpy as np

from attnspec import Request
from attnspec.parts import Block
from attnspec.positional import Alibi, Relative
from attnspec.reproducible.steady import CHUNK
from attnspec.rules import And, ArrayMask, Not, Or, Padding, Segments, Window
from attnspec.struct import Struct
from attnspec.terms import ArrayBias, Sum

Lengths = tuple[int, ...]  # of the chunks along one axis


class Lies(NamedTuple):
    """Which axis of an array, counted from the end, is that of the queries, and which that of the keys."""

    queries: int | None = None
    keys: int | None = None


_OWN = {
    ".q": Lies(queries=-2), ".k": Lies(keys=-2), ".v": Lies(keys=-2),
    ".q_positions": Lies(queries=-1), ".k_positions": Lies(keys=-1),
}  # fmt: skip
_HELD: dict[type, dict[str, Lies]] = {
    Window: {}, Padding: {}, And: {}, Or: {}, Not: {}, Sum: {}, Alibi: {}, Relative: {},
    Segments: {"q_ids": Lies(queries=-1), "k_ids": Lies(keys=-1)},
    ArrayMask: {"array": Lies(-2, -1)}, ArrayBias: {"array": Lies(-2, -1)},
}  # fmt: skip


def unsupported(request: Request) -> str | None:
    """Why a call cannot be taken apart into chunks; None if it can."""
    if request.dropout is not None:
        return "dropout draws by the index of a key in the whole call, which a chunk does not know"
    for option in (request.mask, request.bias):
        stranger = _stranger(option)
        if stranger:
            return f"a {stranger} does not say which of its arrays lie along the queries and the keys"
    return None


def _stranger(option: Any) -> str | None:
    if not isinstance(option, Struct):
        return None
    if type(option) not in _HELD:
        return type(option).__name__
    found = (_stranger(getattr(option, f.name)) for f in fields(option))  # type: ignore[arg-type]
    return next(filter(None, found), None)


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


def prepared(option: Any, ahead: int) -> Any:
    """The rule as parts of the call read it: counted from the first key, K - Q ahead, and no long lists in it."""
    if not isinstance(option, Struct):
        return option
    changed = {f.name: prepared(getattr(option, f.name), ahead) for f in fields(option)}  # type: ignore[arg-type]
    if changed.get("align") == "end":
        offset = changed["offset"]
        later = tuple(n + ahead for n in offset) if isinstance(offset, tuple) else offset + ahead
        changed |= {"align": "start", "offset": later}
    if isinstance(option, Segments):
        ids = {name: x for name, x in changed.items() if isinstance(x, tuple)}
        changed |= {name: da.asarray(np.asarray(x, np.int32)) for name, x in ids.items()}
    return type(option)(**changed)


def layout(call: Mapping[str, Any]) -> dict[str, Lies]:
    """How the arrays of a call lie that do not go to every task whole, by their names in `arrays_in("", call)`."""
    return _OWN | {name: place for option in call for name, place in _held(f".{option}", call[option]).items()}


def _held(name: str, option: Any) -> dict[str, Lies]:
    if not isinstance(option, Struct):
        return {}
    found = {f"{name}.{field}": place for field, place in _HELD[type(option)].items()}
    for f in fields(option):  # type: ignore[arg-type]
        found |= _held(f"{name}.{f.name}", getattr(option, f.name))
    return found


class Operand(NamedTuple):
    """An array in the chunks of the tasks, and the axes along which there may be several."""

    array: da.Array
    axes: Lies

    @classmethod
    def of(cls, x: da.Array, place: Lies, q_chunks: Lengths, k_chunks: Lengths) -> Operand:
        """Rechunked; an axis of length 1 is broadcast."""
        axes = Lies(*(axis if axis is not None and x.ndim >= -axis and x.shape[axis] != 1 else None for axis in place))
        chunks: list[Lengths] = [(n,) for n in x.shape]
        for axis, lengths in zip(axes, (q_chunks, k_chunks), strict=True):
            if axis is not None:
                chunks[axis] = lengths
        return cls(x.rechunk(tuple(chunks)), axes)

    def key(self, q: int, k: int) -> tuple[Any, ...]:
        """Dask's key of what belongs to the q-th chunk of queries and the k-th of keys."""
        index = [0] * self.array.ndim
        for axis, n in zip(self.axes, (q, k), strict=True):
            if axis is not None:
                index[axis] = n
        return (self.array.name, *index)
