"""The default numerics with tiles that never depend on the size of a call: of float64, of weights and of gradients."""

from __future__ import annotations

import math

from .._compat import Array, namespace, turned
from ..fast import Fast, grouped_matmul
from ..numerics import Numerics, Partial
from ..request import Request

CHUNK = 256  # sums over keys, and over queries, are rounded once for so many of them


class Steady(Fast):
    """`Fast` on `Identical` arrays: online softmax whose operations are identical everywhere.

    What is left to fix is in which order sums are rounded: one tile of 256 queries and 256 keys after the other, all
    heads and items together, whatever their number and whether or not their values may be looked at.
    """

    whole = True

    def suited(self, request: Request) -> Numerics:
        return self

    def partial(self, part: Partial, scores: Array, v: Array, keep: Array | None) -> Partial:
        # The sums over a tile do not depend on what came before it, so that parts of a call can be merged to its bits.
        xp = namespace(part.total)
        nothing = Partial(xp.full_like(part.total, -math.inf), xp.zeros_like(part.total), xp.zeros_like(part.out))
        return self.merge(part, super().partial(nothing, scores, v, keep))

    def merge(self, one: Partial, other: Partial) -> Partial:
        """The sums over the keys of both."""
        xp = namespace(one.total)
        reference = xp.maximum(one.reference, other.reference)
        shift = xp.where(reference == -math.inf, 0.0, reference)
        a, b = (xp.exp(part.reference - shift) for part in (one, other))
        return Partial(reference, one.total * a + other.total * b, one.out * a + other.out * b)

    def matmul_of_rows(self, a: Array, b: Array) -> Array:
        xp = namespace(a)
        return grouped_matmul(xp, a, turned(b), xp.matmul_of_vectors)

    def tile(self, rows: int, columns: int) -> tuple[int, int]:
        return CHUNK, CHUNK


STEADY = Steady()
