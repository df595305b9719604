"""The tiles of scores of attention in place: which there are, and what is shared of the mask and the bias of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from ._compat import Array, cast, turned, widened
from .fast import is_in_queries
from .host import on
from .overwriting import InPlace
from .request import Request
from .rules import Status
from .shapes import Span, is_number
from .tiling import status_of

# So many queries make a pass over keys and values cost less than one over their scores.
FEW = 64

_DIVISIBLE = 256


def tiles_of(request: Request, q: Span, columns: int) -> Iterator[tuple[Span, Span, Status]]:
    """(queries, keys, what is known of them): the tiles that cover what these queries may see, keys in order.

    Where the edge of a rule runs through a tile, it goes in halves of its keys, each with the half of the queries that
    sees any of them: of the tile of a causal mask a quarter is left out.
    """
    for start in range(0, request.axes.K, columns):
        k = request.k_span(start, min(columns, request.axes.K - start))
        status = status_of(request, q, k)
        if status == "all" or (status == "some" and min(q.size, k.size) < _DIVISIBLE):
            yield q, k, status
        elif status == "some":
            yield from _halves(request, q, k)


def _halves(request: Request, q: Span, k: Span) -> Iterator[tuple[Span, Span, Status]]:
    above, below = (request.q_span(*half) for half in _cut(q))
    halves = [request.k_span(*half) for half in _cut(k)]
    seen = [[status_of(request, rows, half) != "none" for rows in (above, below)] for half in halves]
    if all(map(all, seen)):
        yield q, k, "some"
        return
    for half, by in zip(halves, seen, strict=True):
        if any(by):
            rows = q if all(by) else above if by[0] else below
            yield rows, half, status_of(request, rows, half)


def _cut(span: Span) -> tuple[tuple[int | Array, int], tuple[int | Array, int]]:
    """(start, size) of its halves."""
    half = span.size // 2
    return (span.start, half), (span.start + half, span.size - half)


def operations(request: Request) -> InPlace:
    """What the framework does in place."""
    assert request.host.in_place is not None
    return request.host.in_place


def like(request: Request) -> Array:
    """In the dtype of the computation."""
    return widened(request.q[..., :0, :0])


@lru_cache(maxsize=4)
def ones_of(xp: Any, keys: int, dtype: Any, device: Any) -> Array:
    """(keys, 1), to sum rows by: to make them takes as long as to multiply a small tile by them."""
    return xp.ones((keys, 1), dtype=dtype, **on(device))


class Unit(NamedTuple):
    """How the exponentials of a call are computed."""

    exp: Callable[..., tuple[Array, Array | None]]
    scaled: Request  # with a scale that makes of the scores what `exp` takes
    is_in_queries: bool  # all of that scale

    @classmethod
    def of(cls, request: Request) -> Unit:
        """By the faster of exp and exp2, where scores are products and nothing else."""
        ops = operations(request)
        if ops.exp2 is None or request.bias is not None or request.softcap is not None:
            return cls(ops.exp, request, is_in_queries(request.scale))
        scale = request.scale if is_number(request.scale) else cast(request.scale, like(request).dtype)
        scale = scale / math.log(2.0)
        return cls(ops.exp2, replace(request, scale=scale), is_in_queries(scale))


def is_shared(part: Request, whole: Request) -> bool:
    """Whether the mask of a part, and the positions that rules read, are those of the whole call."""
    return all(getattr(part, name) is getattr(whole, name) for name in ("mask", "q_positions", "k_positions"))


class Tile:
    """The mask and the bias of a call at a tile of scores: made once for all the parts that share it."""

    def __init__(self, request: Request, q: Span, k: Span, status: Status) -> None:
        xp, device = request.xp, request.device
        self.request, self.q, self.k, self.status = request, q, k, status
        self.visible = None
        if request.mask is not None and status != "all":
            visible = request.mask.tile(q, k, xp=xp, device=device)
            self.visible = None if bool(xp.all(visible)) else visible
        self.empty = self.visible is not None and not bool(xp.any(self.visible))
        self.of_keys = None if self.visible is None or self.empty else _of_keys(request, self.visible, k.size)
        self.veil = None
        if not (self.visible is None or self.empty or self.of_keys is not None):
            self.veil = operations(request).veil(self.visible, like(request))
        # 1 for each key, 0 where a mask hides it from all queries.
        self.ones = ones_of(xp, k.size, like(request).dtype, device) if self.of_keys is None else self.of_keys
        self.biases: Callable[[Any], Array] | None = None
        self.bias: tuple[Array | None, Array | None, Any] = (None, None, None)

    def of(self, part: Request) -> Tile:
        """The tile of a part that has another mask or other positions."""
        q, k = part.q_span(self.q.start, self.q.size), part.k_span(self.k.start, self.k.size)
        return Tile(part, q, k, self.status)

    def bias_of(self, part: Request) -> tuple[Array | None, Array | None, Any]:
        """(its tile for a part, where that is not -inf, the veil of that), None for none."""
        if part.bias is None or self.request.bias is None:
            return None, None, None
        if part.bias is self.request.bias and self.bias[0] is not None:
            return self.bias
        if self.biases is None:
            self.biases = self.request.bias.tiles(self.q, self.k, xp=part.xp, device=part.device)
        bias, finite = self.biases(part.bias), None
        if part.bias.status(self.q, self.k) != "all":
            finite = bias != -math.inf
            finite = None if bool(part.xp.all(finite)) else finite
        found = bias, finite, None if finite is None else operations(part).veil(finite, like(part))
        if part.bias is self.request.bias:
            self.bias = found
        return found


def _of_keys(request: Request, visible: Array, keys: int) -> Array | None:
    """1 and 0 (..., k, 1), if a mask says the same to all heads and queries, and there are enough of these.

    Not beside a bias, which would still be added to the scores of hidden keys, whatever it holds.
    """
    by_key = visible.ndim > 0 and visible.shape[-1] == keys and math.prod(visible.shape[-3:-1]) == 1
    if not by_key or request.axes.Q < FEW or request.bias is not None:
        return None
    xp = request.xp
    rows = visible[..., None, :] if visible.ndim == 1 else visible
    return turned(xp.astype(rows, like(request).dtype))
