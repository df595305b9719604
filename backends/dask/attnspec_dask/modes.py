"""How partial results are made, merged and finished: the two modes of attnspec."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import Any, Protocol

from dask.sizeof import sizeof

from attnspec import Request, reproducible
from attnspec._compat import Array, namespace, unwrapped
from attnspec.blocks import Seen, broken
from attnspec.dropout import kept_scale
from attnspec.fast import FAST
from attnspec.numerics import Numerics, Partial
from attnspec.reproducible.arrays import Identical, wide
from attnspec.reproducible.partials import folded
from attnspec.reproducible.steady import STEADY
from attnspec.rows import Fast
from attnspec.shards import options_of
from attnspec.struct import arrays_in

from .chunks import Lengths, key_chunks_of_whole_sums

Add = Callable[..., Any]  # add(function, *results of tasks) -> the result of a task
Sums = tuple[Array, ...]  # those of a `numerics.Partial`, and of a `blocks.Seen`
Rows = tuple[Array, Array, Array, Array]  # out, lse, reference, total: the results of `attnspec.blocks.attend`


class Mode(Protocol):
    """What a graph of attention is given."""

    def key_chunks(self, lengths: Lengths) -> Lengths:
        """The chunks of keys to take, near those that there are."""

    def partial(self, request: Request) -> Any:
        """Attention of some queries over some keys."""

    def merged(self, parts: Sequence[Any], add: Add, every: int) -> Any:
        """The result of the task that has merged them all; they come in the order of their keys."""

    def finish(self, part: Any) -> Rows:
        """The results over all keys."""

    def results(self, rows: Rows, dtype: str) -> Rows:
        """The whole arrays of them, of a call in that dtype."""


def mode_of(numerics: Numerics) -> Mode:
    """The mode whose operations these are."""
    return Default() if numerics is FAST else Reproducible()


class Default:
    """The sums of the walk, and what its rows have seen; a tree."""

    def key_chunks(self, lengths: Lengths) -> Lengths:
        """Any."""
        return lengths

    def partial(self, request: Request) -> Sums:
        """Half precision is widened: nothing is rounded to it before the last merge."""
        reference, total, out, *seen = Fast.of_keys(request)
        kept = 1.0 if request.dropout is None else kept_scale(request.dropout, out)
        return (reference, total, out * kept, *seen)

    def merged(self, parts: Sequence[Any], add: Add, every: int) -> Any:
        """So many at a time."""
        while len(parts) > 1:
            groups = [parts[n : n + every] for n in range(0, len(parts), every)]
            parts = [add(_merged, *group) if len(group) > 1 else group[0] for group in groups]
        return parts[0]

    def finish(self, part: Sums) -> Rows:
        """Normalised, and NaN where it has to be."""
        sums, seen = Partial(*part[:3]), Seen(*part[3:])
        xp = namespace(sums.total)
        out, lse = FAST.finish(sums)
        nan_lse, nan_out = broken(None, sums, seen)
        out, lse = xp.where(nan_out, math.nan, out), xp.where(nan_lse[..., 0], math.nan, lse)
        return out, lse, sums.reference, sums.total

    def results(self, rows: Rows, dtype: str) -> Rows:
        """They are what they are."""
        return rows


def _merged(*parts: Sums) -> Sums:
    sums = reduce(STEADY.merge, (Partial(*part[:3]) for part in parts))
    return (*sums, *(reduce(or_, flags) for flags in zip(*(part[3:] for part in parts), strict=True)))


class Reproducible:
    """`reproducible.Partial`s; their chunks of 256 keys are added in the order of the keys, so the tree is a line."""

    def key_chunks(self, lengths: Lengths) -> Lengths:
        """Whole chunks of 256."""
        return key_chunks_of_whole_sums(lengths)

    def partial(self, request: Request) -> reproducible.Partial:
        """Its chunks are kept apart until it is their turn to be added."""
        return reproducible.partial(request.q, request.k, request.v, **options_of(request))

    def merged(self, parts: Sequence[Any], add: Add, every: int) -> Any:
        """So many parts at a time to what is added up already."""
        first, *rest = parts
        for n in range(0, len(rest), every):
            first = add(_added, first, *rest[n : n + every])
        return first

    def finish(self, part: reproducible.Partial) -> Rows:
        """In float64: what they are rounded to is not known here."""
        whole = folded(part)
        out, lse = reproducible.finish(whole)
        return out.value, lse.value, whole.reference[0, ...].value, whole.total[0, ...].value

    def results(self, rows: Rows, dtype: str) -> Rows:
        """As arrays of reproducible mode."""
        kinds = ("float64", wide(dtype), "float64", "float64")
        out, lse, reference, total = map(Identical, rows, kinds)
        return out, lse, reference, total


def _added(*parts: reproducible.Partial) -> reproducible.Partial:
    """Parts from the first key on as one with a single chunk."""
    return folded(reproducible.merge(parts))


@sizeof.register(reproducible.Partial)  # type: ignore[untyped-decorator]
def _size(part: reproducible.Partial) -> int:
    """Its bytes, by which Dask decides what to keep in memory."""
    return sum(unwrapped(x).nbytes for x in arrays_in("", part).values())
