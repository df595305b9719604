"""What the queries of a shard have seen so far: sums over some of the keys, merged and at last finished.

Arrays with the queries along their second last axis, which start with no key, take in the keys of one call after
another, and end as (out, lse, ...). The ways that divide a call among workers share it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ._compat import Array, widened
from .backward import attend_backward
from .blocks import Seen, broken, nothing_seen, of_sink, row_sums
from .dropout import kept_scale
from .errors import OptionError
from .fast import FAST
from .numerics import Numerics, Partial
from .reproducible.steady import STEADY
from .request import Request
from .shapes import Span
from .shards import Lies
from .tiling import in_parts, over_queries

Rows = tuple[Any, ...]

# How the results of `attnspec.blocks.attend` lie: out, lse, reference, total.
RESULTS = (Lies(queries=-2), Lies(queries=-1), Lies(queries=-2), Lies(queries=-2))


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
        return in_parts(request, FAST, lambda part: _sums(part, FAST.suited(part)))

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


def _sums(request: Request, numerics: Numerics) -> Rows:
    operands = numerics.prepare(request)

    def rows(q: Span, stripe: Span, carry: None) -> tuple[Rows, None]:
        part, seen = row_sums(request, numerics, operands, q, stripe)
        return (*part, *seen), carry

    (*part, some, bad_score, bad_value), _ = over_queries(request, numerics, rows, None)
    bad_score = bad_score if operands.bad_q is None else bad_score | (operands.bad_q & some)
    return (*part, some, bad_score, bad_value)


# Gradients that do not come from any key.
OF_NO_KEYS = (".sink", ".dropout.rate")


def of_no_keys(request: Request, results: Rows, cotangents: Rows) -> dict[str, Array]:
    """Those gradients: of a call without keys."""
    k, v = (x[..., :0, :] for x in (request.k, request.v))
    blank = replace(
        request, k=k, v=v, axes=replace(request.axes, K=0), mask=None, bias=None, q_positions=None, k_positions=None
    )
    gradients = attend_backward((blank, results, cotangents), FAST)
    return {name: x for name, x in gradients.items() if f".{name}" in OF_NO_KEYS}


def no_gradient(*saved: Any) -> dict[str, Array]:
    """What reproducible partial results have."""
    msg = 'reproducible attention that merges parts has no gradient; how="all_to_all" has one.'
    raise OptionError(msg)
