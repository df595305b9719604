"""The tiles of scores of attention in place: which there are, and what is shared of the mask and the bias of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from ._compat import Array, cast, turned, widened
from .fast import grouped_matmul, is_in_queries, stacked
from .host import beside, host_of, on
from .overwriting import InPlace
from .request import Request
from .rules import Status
from .shapes import Span, is_number
from .terms import Line
from .tiling import status_of

SIDE = 512  # of a tile of one head: 512 x 512 of float32 are 1 MB

# So many queries make a pass over keys and values cost less than one over their scores.
FEW = 64

_DIVISIBLE = 256

# A bias that falls by so much along the keys of a tile leaves exponentials that are no normal numbers.
_DEEP = 72.0

# What is added to all scores of a row may be as little as that: of half of it the exponential is a normal number.
_LOWEST = -160.0


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


def ones_of(xp: Any, keys: int, dtype: Any, device: Any) -> Array:
    """(keys, 1), to sum rows by: to make them takes as long as to multiply a small tile by them."""
    kind = xp, keys, dtype, device
    found = _ones.get(kind)
    if found is None:
        found = xp.ones((keys, 1), dtype=dtype, **on(device))
        if host_of(found).concrete(found):  # what a transform around the call makes is of no use after it
            if len(_ones) >= _KEPT:
                _ones.clear()
            _ones[kind] = found
    return found


_ones: dict[tuple[Any, ...], Array] = {}
_KEPT = 4


class Unit(NamedTuple):
    """How the exponentials of a call are computed."""

    exp: Callable[..., tuple[Array, Array | None]]
    scaled: Request  # with a scale and a bias that make of the scores what `exp` takes
    is_in_queries: bool  # all of that scale
    size: float  # of a score of 1: `exp(1 / size)` is e

    @classmethod
    def of(cls, request: Request) -> Unit:
        """By the faster of exp and exp2, where scores are products and what is as easily made in another unit."""
        ops, size, bias = operations(request), math.log(2.0), request.bias
        bias = None if bias is None else bias.times(1.0 / size)
        if ops.exp2 is None or request.softcap is not None or (bias is None and request.bias is not None):
            return cls(ops.exp, request, is_in_queries(request.scale), 1.0)
        scale = request.scale if is_number(request.scale) else cast(request.scale, like(request).dtype)
        scale = scale / size
        return cls(ops.exp2, replace(request, scale=scale, bias=bias), is_in_queries(scale), size)


def is_shared(part: Request, whole: Request) -> bool:
    """Whether the mask of a part, and the positions that rules read, are those of the whole call."""
    return all(getattr(part, name) is getattr(whole, name) for name in ("mask", "q_positions", "k_positions"))


class Tile:
    """The mask and the bias of a call at a tile of scores: made once for all the parts that share it."""

    def __init__(self, request: Request, q: Span, k: Span, status: Status) -> None:
        self.request, self.q, self.k, self.status = request, q, k, status
        self.biases: Callable[[Any], Array] | None = None
        self.bias: tuple[Array | None, Array | None, Any] = (None, None, None)

    @cached_property
    def visible(self) -> Array | None:
        """The tile of the mask, None where all of it is visible."""
        request = self.request
        if request.mask is None or self.status == "all":
            return None
        visible = request.mask.tile(self.q, self.k, xp=request.xp, device=request.device)
        return None if bool(request.xp.all(visible)) else visible

    @cached_property
    def empty(self) -> bool:
        """Whether nothing is visible."""
        return self.visible is not None and not bool(self.request.xp.any(self.visible))

    @cached_property
    def of_keys(self) -> Array | None:
        """1 and 0 (..., k, 1), if the mask says the same to all heads and queries, and there are enough of these.

        Not beside a bias, which would still be added to the scores of hidden keys, whatever it holds.
        """
        request, visible = self.request, self.visible
        if visible is None or self.empty or request.axes.Q < FEW or request.bias is not None:
            return None
        if not (visible.ndim and visible.shape[-1] == self.k.size and math.prod(visible.shape[-3:-1]) == 1):
            return None
        rows = visible[..., None, :] if visible.ndim == 1 else visible
        return turned(request.xp.astype(rows, like(request).dtype))

    @cached_property
    def veil(self) -> Any:
        """That of what is visible, None where products with zeros do for it or nothing is hidden."""
        if self.visible is None or self.empty or self.of_keys is not None:
            return None
        return operations(self.request).veil(self.visible, like(self.request))

    @cached_property
    def ones(self) -> Array:
        """1 for each key, 0 where a mask hides it from all queries."""
        request = self.request
        if self.of_keys is not None:
            return self.of_keys
        return ones_of(request.xp, self.k.size, like(request).dtype, request.device)

    def of(self, part: Request) -> Tile:
        """The tile of a part that has another mask or other positions."""
        q, k = part.q_span(self.q.start, self.q.size), part.k_span(self.k.start, self.k.size)
        return Tile(part, q, k, self.status)

    def quarters(self) -> Iterator[Tile]:
        """The halves of its queries with those of its keys, as far as anything may be visible in them."""
        for q in (self.request.q_span(*half) for half in _cut(self.q)):
            for k in (self.request.k_span(*half) for half in _cut(self.k)):
                status = self.status if self.status == "all" else status_of(self.request, q, k)
                if status != "none":
                    yield Tile(self.request, q, k, status)

    # Both of these are known from numbers alone: whatever arrays hold, a tile is computed in the same way.

    def is_deep(self, part: Request, unit: Unit) -> bool:
        """Whether the bias of a part falls so far along the keys that of some of them nothing may be left."""
        if part.bias is None or part.axes.Q < FEW or min(self.q.size, self.k.size) < SIDE:
            return False
        return _DEEP / unit.size < part.bias.steepest * (self.k.size - 1) < math.inf

    def is_in_lines(self, part: Request, unit: Unit) -> bool:
        """Whether the bias of a part may be one more term of the products that make the scores."""
        if part.bias is None or part.softcap is not None or part.axes.Q < FEW or not unit.is_in_queries:
            return False
        of_queries = part.bias.bounds(self.q, self.k)[0] + part.bias.steepest * (self.k.size - 1)
        return of_queries > _LOWEST / unit.size and self.lines is not None

    @cached_property
    def lines(self) -> Callable[[Any], Line] | None:
        """From the bias of a part to its lines, None where it has none."""
        request = self.request
        return (
            None if request.bias is None else request.bias.lines(self.q, self.k, xp=request.xp, device=request.device)
        )

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


def longest_of(xp: Any, rows: Array) -> float:
    """The length of the longest row: no product of one with another is more than that of their lengths."""
    squares = xp.matmul(rows * rows, ones_of(xp, rows.shape[-1], rows.dtype, host_of(rows).device_of(rows)))
    return math.sqrt(float(xp.max(squares)))


def with_column(xp: Any, x: Array, column: Array | float) -> Array:
    """[x, column]."""
    both = xp.empty((*x.shape[:-1], x.shape[-1] + 1), dtype=x.dtype, **beside(x))
    both[..., :-1] = x
    both[..., -1:] = column
    return both


def products(xp: Any, queries: Array, keys: Array) -> Array:
    """Of queries with keys; of a few with many by keys times queries, as then a BLAS need not rearrange the keys."""
    (*lead, H, q, _), (G, k, width) = queries.shape, keys.shape[-3:]
    if 1 < H // G * q <= _THIN and k * width >= _MANY:
        of_keys = xp.matmul(keys, turned(stacked(xp, queries, G)))
        # Flat and back: a copy in the usual order, which what follows is fast in.
        return xp.reshape(xp.reshape(turned(of_keys), (-1,)), (*lead, H, q, k))
    return queries @ keys.mT if H == G else grouped_matmul(xp, queries, keys.mT)


_THIN, _MANY = 32, 2**15
