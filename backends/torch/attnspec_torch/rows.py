"""The rows of `attnspec.rows` in reproducible mode: partial results, folded into one chunk after each shard."""

from __future__ import annotations

from attnspec import reproducible
from attnspec.reproducible.partials import folded
from attnspec.request import Request
from attnspec.shards import options_of


class InOrder:
    """Reproducible mode: a `reproducible.Partial`, folded into one chunk. Keys have to come in their order."""

    @staticmethod
    def start(request: Request) -> reproducible.Partial:
        """Of no key; the sink is seen."""
        k, v = (x[..., :0, :] for x in (request.k, request.v))
        return reproducible.partial(request.q, k, v, sink=request.sink, dropout=request.dropout)

    @staticmethod
    def of_keys(request: Request) -> reproducible.Partial:
        """Of the keys of this call alone, each chunk of 256 apart."""
        return reproducible.partial(request.q, request.k, request.v, **options_of(request))

    @staticmethod
    def merge(one: reproducible.Partial, other: reproducible.Partial) -> reproducible.Partial:
        """Of the keys of both; those of the other are the next ones."""
        return _folded(reproducible.merge([one, other]))


_folded = reproducible.identically(folded)
