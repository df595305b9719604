"""What the queries of a shard have seen so far: sums over some of the keys, merged and at last finished.

Two modes, one contract: arrays with the queries along their second last axis, which start with no key, take in the keys
of one call after another, and end as (out, lse, ...).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from . import reproducible
from ._compat import widened
from .blocks import Seen, broken, nothing_seen, of_sink, row_sums
from .dropout import kept_scale
from .fast import FAST
from .numerics import Partial
from .reproducible.doors import identically
from .reproducible.partials import ARRAYS, folded
from .reproducible.steady import STEADY
from .request import Request
from .tiling import over_queries

Rows = tuple[Any, ...]

# What a Request and the functions of attnspec call alike.
OPTIONS = ("mask", "bias", "scale", "softcap", "sink", "dropout", "q_positions", "k_positions")


def options_of(request: Request) -> dict[str, Any]:
    """The options of a call, to be handed on."""
    return {name: getattr(request, name) for name in OPTIONS}


class Fast:
    """Default mode: (reference, total, out) as the walk keeps them, and what was seen."""

    @staticmethod
    def start(request: Request) -> Rows:
        """The rows before the first key; the sink is seen."""
        part = FAST.start(request, widened(request.q))
        return (*part, *nothing_seen(request.xp, part))

    @staticmethod
    def of_keys(request: Request) -> Rows:
        """The rows that have seen the keys of this call alone."""
        operands = FAST.prepare(request)

        def rows(q: Any, stripe: Any, carry: None) -> tuple[Rows, None]:
            part, seen = row_sums(request, FAST, operands, q, stripe)
            return (*part, *seen), carry

        (reference, total, out, some, bad_score, bad_value), _ = over_queries(request, FAST, rows, None)
        return reference, total, out, some, bad_score | (operands.bad_q & some), bad_value

    @staticmethod
    def merge(request: Request, one: Rows, other: Rows) -> Rows:
        """The rows that have seen the keys of both."""
        part = STEADY.merge(Partial(*one[:3]), Partial(*other[:3]))
        return (*part, *(a | b for a, b in zip(one[3:], other[3:], strict=True)))

    @staticmethod
    def finish(request: Request, rows: Rows) -> Rows:
        """(out, lse, reference, total), as `attnspec.blocks.attend`."""
        part, seen = Partial(*rows[:3]), Seen(*rows[3:])
        out, lse = FAST.finish(part)
        if request.dropout is not None:
            out = out * kept_scale(request.dropout, out)
        nan_lse, nan_out = broken(None, part, seen)
        xp = request.xp
        lse = lse[..., None] if request.sink is None else xp.where(seen.any, lse[..., None], of_sink(request, lse))
        out, lse = xp.where(nan_out, math.nan, out), xp.where(nan_lse, math.nan, lse)
        return out, lse[..., 0], part.reference, part.total


class InOrder:
    """Reproducible mode: the arrays of a `reproducible.Partial` of one chunk. Keys have to come in their order."""

    @staticmethod
    def start(request: Request) -> Rows:
        """See `Fast.start`."""
        return _rows(_nothing(request))

    @staticmethod
    def of_keys(request: Request) -> Rows:
        """See `Fast.of_keys`; each chunk apart."""
        return _rows(reproducible.partial(request.q, request.k, request.v, **options_of(request)))

    @staticmethod
    def merge(request: Request, one: Rows, other: Rows) -> Rows:
        """See `Fast.merge`; the keys of the other are the next ones."""
        chunks = tuple(request.xp.concat([a, b], axis=0) for a, b in zip(one, other, strict=True))
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


_folded = identically(folded)
