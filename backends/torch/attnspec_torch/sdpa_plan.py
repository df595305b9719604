"""How a mask becomes calls of torch's fused attention, which knows `causal(0)` and one row of keys for all queries.

Padding is cut off, so what stands there is never read. `causal(offset)` with offset > 0 is two calls, of the first
keys for all queries and of the rest, whose results merge; with offset < 0 the first queries see nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import groupby
from typing import Any, NamedTuple

import torch

from attnspec.request import Request
from attnspec.rules import And, ArrayMask, Padding, Rule, Window
from attnspec.shapes import Axes


class Piece(NamedTuple):
    """One call: some of the items (the leading axes, flattened), of the queries and of the keys."""

    items: slice
    q: slice
    k: slice
    causal: bool  # its n-th query sees its first n keys and one more; else each sees all
    heads: slice = slice(None)

    @property
    def rows(self) -> tuple[slice, ...]:
        """Where in (B, H, Q, ...) its queries lie."""
        return self.items, self.heads, self.q


class Plan(NamedTuple):
    """What a mask lets a query see: keys up to its own position + offset, below the lengths, and where `seen` says."""

    offset: int | None = None
    lengths: Any = None  # of the keys: an int, a tuple or a tensor, over the leading axes
    seen: torch.Tensor | None = None  # boolean, (..., 1, 1, K)

    def pieces(self, axes: Axes) -> list[Piece]:
        """The calls; in those of the same items and queries the keys follow each other."""
        if self.lengths is None and (self.offset is None or self.offset == 0):
            keys = axes.K if self.offset is None else min(axes.K, axes.Q)
            return [Piece(slice(0, math.prod(axes.lead)), slice(0, axes.Q), slice(0, keys), self.offset is not None)]
        found, start = [], 0
        for n, run in groupby(self._counts(axes)):
            items = slice(start, start + len(list(run)))
            # Without queries or keys the operation ends the process.
            cuts = (cut for cut in self._cuts(axes.Q, max(0, min(n, axes.K))) if all(p.stop > p.start for p in cut[:2]))
            found += [Piece(items, *cut) for cut in cuts]
            start = items.stop
        return found

    def _counts(self, axes: Axes) -> Iterable[int]:
        """How many keys each item has."""
        lead, B = axes.lead, math.prod(axes.lead)
        if isinstance(self.lengths, torch.Tensor):
            return self.lengths.expand(lead).reshape(B).tolist()  # type: ignore[no-any-return]
        lengths = (axes.K if self.lengths is None else self.lengths,)
        if isinstance(self.lengths, tuple):
            lengths = self.lengths
        return lengths * (B // len(lengths))

    def _cuts(self, Q: int, n: int) -> Iterable[tuple[slice, slice, bool]]:
        offset, every = self.offset, slice(0, Q)
        if offset is None or offset >= n:
            return [(every, slice(0, n), False)]
        first = max(0, offset)
        triangle = (slice(max(0, -offset), Q), slice(first, min(n, offset + Q)), True)
        return [(every, slice(0, first), False), triangle]


def plan_of(request: Request) -> Plan | None:
    """The plan of a call, None of one that has a mask that none can have."""
    positions = request.q_positions, request.k_positions
    if request.mask is None:
        return Plan()
    if any(isinstance(x, torch.Tensor) for x in positions):
        return None
    q_first, k_first = (0 if x is None else x.start for x in positions)
    return with_rule(Plan(), request.mask, request.axes, q_first, k_first)


def with_rule(plan: Plan, rule: Rule, axes: Axes, q_first: int = 0, k_first: int = 0) -> Plan | None:
    """A plan in which a query sees only what the rule says, too; None if there is none."""
    if isinstance(rule, And):
        first = with_rule(plan, rule.a, axes, q_first, k_first)
        return None if first is None else with_rule(first, rule.b, axes, q_first, k_first)
    if isinstance(rule, Window) and rule.left is None and isinstance(rule.offset, int):
        if rule.right is None:
            return plan
        offset = rule.offset + rule.right + q_first - k_first + (axes.K - axes.Q if rule.align == "end" else 0)
        return plan._replace(offset=offset if plan.offset is None else min(offset, plan.offset))
    if isinstance(rule, Padding) and plan.lengths is None and not k_first:
        return plan._replace(lengths=rule.lengths)
    if isinstance(rule, ArrayMask) and plan.seen is None:
        shape = tuple(rule.array.shape)
        if shape[-1:] == (axes.K,) and all(n == 1 for n in shape[-3:-1]):
            return plan._replace(seen=rule.array)
    return None
