"""The rows of `attnspec.rows` in reproducible mode, as arrays that the loops of a recorded program can carry."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp

from attnspec import reproducible
from attnspec.reproducible.partials import ARRAYS, folded
from attnspec.request import Request
from attnspec.rows import Rows
from attnspec.shards import options_of


class InOrder:
    """Reproducible mode: the arrays of a `reproducible.Partial` of one chunk. Keys have to come in their order."""

    @staticmethod
    def start(request: Request) -> Rows:
        """See `attnspec.rows.Fast.start`."""
        return _rows(_nothing(request))

    @staticmethod
    def of_keys(request: Request) -> Rows:
        """See `attnspec.rows.Fast.of_keys`; each chunk apart."""
        return _rows(reproducible.partial(request.q, request.k, request.v, **options_of(request)))

    @staticmethod
    def merge(request: Request, one: Rows, other: Rows) -> Rows:
        """See `attnspec.rows.Fast.merge`; the keys of the other are the next ones."""
        chunks = tuple(jnp.concat([a, b], axis=0) for a, b in zip(one, other, strict=True))
        return _rows(_folded(_partial(request, chunks)))

    @staticmethod
    def finish(request: Request, rows: Rows) -> Rows:
        """(out, lse)."""
        return reproducible.finish(_partial(request, rows))


def _rows(part: reproducible.Partial) -> Rows:
    return tuple(getattr(part, name) for name in ARRAYS)


def _partial(request: Request, rows: Rows) -> reproducible.Partial:
    return replace(_nothing(request), **dict(zip(ARRAYS, rows, strict=True)))


def _nothing(request: Request) -> reproducible.Partial:
    k, v = (x[..., :0, :] for x in (request.k, request.v))
    return reproducible.partial(request.q, k, v, sink=request.sink, dropout=request.dropout)


_folded = reproducible.identically(folded)
