"""The operations that the walk over tiles is given: how scores, weights and sums are computed and rounded.

The walk (`blocks.py`) and the walk back (`backward.py`) are written once; a numerics is an object with these methods.
`fast.py` has the default one.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

from ._compat import Array
from .request import Request
from .shapes import Span
from .terms import Term


class Operands(NamedTuple):
    """q, k and v as the numerics keeps them for its tiles, and which of their rows are not finite.

    The flags are (..., H, Q, 1), (..., H, 1, K), (..., H, 1, K), or None if everything was finite and the framework
    lets that be looked at.
    """

    q: Any
    k: Any
    v: Any
    bad_q: Array | None
    bad_k: Array | None
    bad_v: Array | None


class Partial(NamedTuple):
    """A result over some of the keys, unnormalised: out and total are sums of exp(score - reference)."""

    reference: Array  # (..., H, q, 1)
    total: Array  # (..., H, q, 1)
    out: Array  # (..., H, q, E)


class Numerics(Protocol):
    """What a body is given."""

    @property
    def whole(self) -> bool:
        """Whether the axes (..., H) are never taken in parts, because sums over them are to be rounded once."""

    @property
    def plain(self) -> Numerics:
        """The numerics of weights and gradients: itself, if its scores and references are natural logarithms."""

    def tile(self, rows: int, columns: int) -> tuple[int, int]:
        """The tile to take, near one of (queries, keys) that fits the memory."""

    def suited(self, request: Request) -> Numerics:
        """Itself, or what does the same for this call in fewer operations. Nothing that a mask hides may decide it."""

    def prepare(self, request: Request) -> Operands:
        """What is done once for all tiles."""

    def queries(self, request: Request, operands: Operands, q: Span) -> Any:
        """A tile of queries: finite, scaled, in the dtype of the computation."""

    def keys(self, request: Request, operands: Operands, k: Span) -> tuple[Any, Any]:
        """A tile of keys and their values: finite, in the dtype of the computation."""

    def start(self, request: Request, q: Any) -> Partial:
        """The result over no key but the sink."""

    def product(self, request: Request, q: Any, k: Any) -> Array:
        """scale * (q . k) for one tile."""

    def score(self, request: Request, product: Array, bias: Array | None) -> Array:
        """softcap(product) + bias for one tile, before the mask."""

    def partial(self, part: Partial, scores: Array, v: Any, keep: Array | None) -> Partial:
        """`part` and one more tile of keys; scores are -inf where masked, `keep` is dropout's choice."""

    def finish(self, part: Partial) -> tuple[Array, Array]:
        """(out, lse), normalised."""

    def weigh(self, part: Partial, scores: Array) -> Array:
        """The weights of one tile, given the finished sums of its rows."""

    def exponentials(self, part: Partial, scores: Array) -> Array:
        """exp(score - reference): the weights times the totals of their rows."""

    def pull_weights(self, p: Array, of_p: Array, delta: Array) -> Array:
        """p (of_p - delta)."""

    def matmul(self, a: Array, b: Any) -> Array:
        """(..., H, q, x) @ (..., G, x, y): head h with group h // (H // G)."""

    def matmul_of_rows(self, a: Array, b: Any) -> Array:
        """(..., H, q, x) with (..., G, y, x) -> (..., H, q, y): the products of their rows."""

    def matmul_of_keys(self, a: Array, b: Any, G: int) -> Array:
        """a (..., H, q, k), b (..., H, q, x) -> (..., G, k, x): a transposed times b, summed over a group's heads."""

    def pull_score(self, request: Request, product: Array, gradient: Array) -> Array:
        """From the gradient of a tile's scores to that of the plain product of its queries and keys."""

    def pull_scale(self, request: Request, of_queries: Array, of_keys: Array) -> tuple[Array, Array]:
        """From the gradients of what `queries` and `keys` gave to those of q and k."""


def bias_tile(term: Term, q: Span, k: Span, request: Request) -> tuple[Array, Array | None]:
    """The bias of a tile, and where it is not -inf (None: everywhere)."""
    tile = term.tile(q, k, xp=request.xp, device=request.device)
    return tile, None if term.status(q, k) == "all" else tile != -math.inf
