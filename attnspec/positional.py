"""Bias terms by position: the rules behind `alibi` and `relative_bias`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ._compat import Array, Namespace, dtype_name, widened
from .derivative import summed_to
from .errors import ShapeError
from .host import on
from .parts import Block, part_of
from .rule_arrays import Align, Ints, clamped, fits, indices, per_batch
from .rules import Status
from .shapes import Axes, Span, broadcasts_to
from .terms import Line, Spread, Term


@dataclass(frozen=True)
class Alibi(Term):
    """`alibi`: slopes (H,) times distances."""

    slopes: tuple[float, ...] | Array
    offset: Ints
    align: Align
    dtype: str = "float32"

    def computed_in(self, dtype: str) -> Term:
        return replace(self, dtype="float64" if dtype == "float64" else "float32")

    def check(self, axes: Axes) -> None:
        shape = (len(self.slopes),) if isinstance(self.slopes, tuple) else tuple(self.slopes.shape)
        if shape != (axes.H,):
            msg = f"alibi has slopes of shape {shape}; one for each of H={axes.H} query heads is needed."
            raise ShapeError(msg)
        if type(self.offset) is not int:
            fits("offset", self.offset, axes, ())

    def tile(self, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> Array:
        return self.tiles(q, k, xp=xp, device=device)(self)

    def tiles(self, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> Callable[[Any], Array]:
        # Wide enough for the distances: 2049 is no float16, and a bias must not overflow into a mask.
        dtype = self.dtype if isinstance(self.slopes, tuple) else dtype_name(widened(self.slopes))
        distance = xp.abs(_ahead(self, q, k, xp, device, getattr(xp, dtype)))

        def tile(part: Alibi) -> Array:
            if part.offset is not self.offset:
                return part.tile(q, k, xp=xp, device=device)
            slopes = part.slopes
            if isinstance(slopes, tuple):
                slopes = xp.asarray(slopes, dtype=distance.dtype, **on(device))
            return -widened(slopes)[:, None, None] * distance

        return tile

    def status(self, q: Span, k: Span, /) -> Status:
        return "all" if isinstance(self.slopes, tuple) else "some"

    def bounds(self, q: Span, k: Span, /) -> tuple[float, float]:
        ahead = _bounds(self, q, k)
        if ahead is None or not isinstance(self.slopes, tuple):
            return -math.inf, math.inf
        return -max(self.slopes) * max(ahead[1], -ahead[0]), -min(self.slopes) * max(0, ahead[0], -ahead[1])

    @property
    def steepest(self) -> float:
        return max(self.slopes) if isinstance(self.slopes, tuple) else math.inf

    def times(self, factor: float) -> Term | None:
        if not isinstance(self.slopes, tuple):
            return None
        return replace(self, slopes=tuple(factor * slope for slope in self.slopes))

    def lines(self, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> Callable[[Any], Line] | None:
        """Where all keys are on one side of all queries, by their distances to the nearest of them."""
        ahead = _bounds(self, q, k)
        if ahead is None or k.bounds is None or ahead[0] < 0 < ahead[1] or not isinstance(self.slopes, tuple):
            return None
        nearest = k.bounds[0] if ahead[0] >= 0 else k.bounds[1] - 1
        places = (q.index + (clamped(self.offset) + _shift(self, q, k)), k.index)
        of_queries, of_keys = (xp.astype(xp.abs(x - nearest), getattr(xp, self.dtype))[:, None] for x in places)

        def line(part: Alibi) -> Line:
            slopes = xp.asarray(part.slopes, dtype=of_keys.dtype, **on(device))[:, None, None]
            return Line(-slopes * of_queries, slopes, -of_keys, part.steepest * (k.size - 1))

        return line

    def part(self, block: Block) -> Term:
        slopes, offset = part_of(self.slopes, block[-1:], 0), _offset_of(self.offset, block)
        return replace(self, slopes=slopes, offset=offset)

    def spread(self) -> dict[str, Spread]:
        return {} if isinstance(self.slopes, tuple) else {"slopes": Spread(False, False, 0)}

    def pull(self, g: Array, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> dict[str, Array]:
        if isinstance(self.slopes, tuple):
            return {}
        distance = xp.abs(_ahead(self, q, k, xp, device, g.dtype))
        return {"slopes": -xp.reshape(summed_to(g * distance, (g.shape[-3], 1, 1)), (g.shape[-3],))}


@dataclass(frozen=True)
class Relative(Term):
    """`relative_bias`: a table (..., H, N) read by distance."""

    table: Array
    offset: Ints
    align: Align
    max_distance: int | None
    bidirectional: bool

    def check(self, axes: Axes) -> None:
        if not broadcasts_to(self.table.shape[:-1], (*axes.lead, axes.H)):
            target = (*axes.lead, axes.H)
            msg = f"table has shape {tuple(self.table.shape)}; (..., H, N) with (..., H) = {target} is needed."
            raise ShapeError(msg)
        if type(self.offset) is not int:
            fits("offset", self.offset, axes, ())

    def tile(self, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> Array:
        bucket = self._bucket(_ahead(self, q, k, xp, device), xp, device)
        if math.prod(bucket.shape[:-2]) == 1:
            flat = xp.take(self.table, xp.reshape(bucket, (-1,)), axis=-1)
            return xp.reshape(flat, (*self.table.shape[:-1], *bucket.shape[-2:]))
        # Offsets that differ over the batch: a row of distances for each item.
        same = self.table[..., None, :] + xp.zeros((*bucket.shape[:-1], 1), dtype=self.table.dtype, **on(device))
        places = xp.broadcast_to(indices(bucket), (*same.shape[:-1], bucket.shape[-1]))
        return xp.take_along_axis(same, places, axis=-1)

    def status(self, q: Span, k: Span, /) -> Status:
        return "some"

    def part(self, block: Block) -> Term:
        return replace(self, table=part_of(self.table, block, 1), offset=_offset_of(self.offset, block))

    def spread(self) -> dict[str, Spread]:
        return {"table": Spread(False, False, 1)}

    def pull(self, g: Array, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> dict[str, Array]:
        bucket = self._bucket(_ahead(self, q, k, xp, device), xp, device)
        shape = (*self.table.shape[:-1], 1, 1)
        # The standard cannot add to chosen entries, so each entry gathers its own.
        entries = [summed_to(xp.where(bucket == n, g, 0.0), shape) for n in range(self.table.shape[-1])]
        return {"table": xp.concat(entries, axis=-1)[..., 0, :]}

    def _bucket(self, ahead: Array, xp: Namespace, device: Any) -> Array:
        n = self.table.shape[-1]
        if self.max_distance is None:
            return xp.clip(ahead, -(n // 2), n // 2) + n // 2
        buckets = n // 2 if self.bidirectional else n
        distance = xp.abs(ahead) if self.bidirectional else xp.where(ahead < 0, -ahead, 0)
        exact = buckets // 2
        bucket = xp.clip(distance, 0, exact)
        for step in range(1, buckets - exact):
            threshold = _log_threshold(exact, self.max_distance, step, buckets - exact)
            bucket = bucket + xp.astype(distance >= threshold, bucket.dtype)
        return xp.where(ahead > 0, bucket + buckets, bucket) if self.bidirectional else bucket


def _offset_of(offset: Ints, block: Block) -> Ints:
    return offset if isinstance(offset, int) else part_of(offset, block[:-1], 0)


def _ahead(rule: Alibi | Relative, q: Span, k: Span, xp: Namespace, device: Any, dtype: Any = None) -> Array:
    """j - i - offset (..., 1, q, k), as integers or in that dtype."""
    offset = per_batch(clamped(rule.offset), 3, xp, device)
    of_k, of_q = k.index[..., None, None, :] - (offset + _shift(rule, q, k)), q.index[..., None, :, None]
    places = (*(_bounds(rule, q, k) or ()), *(q.bounds or ()), *(k.bounds or ()))
    if dtype is not None and len(places) == 6 and max(map(abs, places)) < _EXACT:
        return xp.astype(of_k, dtype) - xp.astype(of_q, dtype)
    return of_k - of_q if dtype is None else xp.astype(of_k - of_q, dtype)


_EXACT = 2**23  # whole numbers up to here, and their differences, are float32


def _bounds(rule: Alibi | Relative, q: Span, k: Span) -> tuple[int, int] | None:
    """(least, most) of j - i - offset, None where that is known only as an array."""
    if q.bounds is None or k.bounds is None or type(rule.offset) is not int:
        return None
    shift = clamped(rule.offset) + _shift(rule, q, k)
    return k.bounds[0] - (q.bounds[1] - 1) - shift, k.bounds[1] - 1 - q.bounds[0] - shift


def _shift(rule: Alibi | Relative, q: Span, k: Span) -> int:
    return k.total - q.total if rule.align == "end" else 0


def _log_threshold(exact: int, most: int, step: int, steps: int) -> int:
    """The least integer >= exact (most / exact)**(step / steps), in integers: logarithms round as libraries like."""
    target = exact ** (steps - step) * most**step
    least = max(1, int(exact * (most / exact) ** (step / steps)) - 1)
    while least**steps < target:
        least += 1
    return least
