"""How partial results are made, merged and finished: the two modes of attnspec."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, Protocol

import attnspec
from attnspec import reproducible
from attnspec._compat import Array, cast, namespace, widened
from attnspec.numerics import Partial as Sums
from attnspec.reproducible.arrays import NUMERICS

from .chunks import Lengths, key_chunks_of_whole_sums

Add = Callable[..., Any]  # add(function, *results of tasks) -> the result of a task


class Mode(Protocol):
    """What a graph of attention is given."""

    def key_chunks(self, lengths: Lengths) -> Lengths:
        """The chunks of keys to take, near those that there are."""

    def partial(self, q: Array, k: Array, v: Array, **options: Any) -> Any:
        """Attention of some queries over some keys."""

    def merged(self, parts: Sequence[Any], add: Add, every: int) -> Any:
        """The result of the task that has merged them all; they come in the order of their keys."""

    def finish(self, part: Any, dtype: Any) -> tuple[Array, Array]:
        """(out in that dtype, lse)."""


class Default:
    """Outputs and lse; a tree."""

    def key_chunks(self, lengths: Lengths) -> Lengths:
        """Any."""
        return lengths

    def partial(self, q: Array, k: Array, v: Array, **options: Any) -> Any:
        """Half precision is widened first: nothing is rounded to it before the last merge."""
        return attnspec.attention_with_lse(widened(q), widened(k), widened(v), **options)

    def merged(self, parts: Sequence[Any], add: Add, every: int) -> Any:
        """By `merge_attention`, so many at a time."""
        while len(parts) > 1:
            groups = [parts[n : n + every] for n in range(0, len(parts), every)]
            parts = [add(_merged, *group) if len(group) > 1 else group[0] for group in groups]
        return parts[0]

    def finish(self, part: Any, dtype: Any) -> tuple[Array, Array]:
        """Rounded once."""
        out, lse = part
        return cast(out, dtype), lse


def _merged(*parts: Any) -> Any:
    return attnspec.merge_attention(parts)


class Reproducible:
    """`reproducible.Partial`s; their chunks of 256 keys are added in the order of the keys, so the tree is a line."""

    def key_chunks(self, lengths: Lengths) -> Lengths:
        """Whole chunks of 256."""
        return key_chunks_of_whole_sums(lengths)

    def partial(self, q: Array, k: Array, v: Array, **options: Any) -> Any:
        """Its chunks are kept apart until it is their turn to be added."""
        return reproducible.partial(q, k, v, **options)

    def merged(self, parts: Sequence[Any], add: Add, every: int) -> Any:
        """So many parts at a time to what is added up already."""
        first, *rest = parts
        for n in range(0, len(rest), every):
            first = add(_added, first, *rest[n : n + every])
        return first

    def finish(self, part: Any, dtype: Any) -> tuple[Array, Array]:
        """Rounded once, to the dtype that the part knows."""
        return reproducible.finish(part)


def _added(*parts: reproducible.Partial) -> reproducible.Partial:
    """Parts from the first key on as one with a single chunk: what `reproducible.finish` begins with."""
    return _in_one_chunk(reproducible.merge(parts))


@reproducible.identically
def _in_one_chunk(part: reproducible.Partial) -> reproducible.Partial:
    xp, numerics = namespace(part.out), NUMERICS[part.dtype]
    chunks = [Sums(*(getattr(part, name)[n, ...] for name in Sums._fields)) for n in range(part.out.shape[0])]
    sums: Sums = reduce(numerics.merge, chunks)
    flags = {name: xp.any(getattr(part, name), axis=0) for name in ("visible", "bad_score", "bad_value")}
    return replace(part, **{name: x[None, ...] for name, x in (sums._asdict() | flags).items()})
