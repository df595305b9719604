"""One head after another: the walk over tiles in a loop over batch and heads, for one processor.

A recorded walk takes all heads in one tile, because a loop over heads that are split over devices would make each of
them do all the work. On one processor the loop is the faster way: a tile of one head has as many scores as stay in a
core's cache, in few, large products.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnspec import _compat
from attnspec.backward import attend_backward
from attnspec.blocks import attend
from attnspec.derivative import differentiable
from attnspec.host import Kernel
from attnspec.numerics import Operands
from attnspec.parts import Block
from attnspec.positional import Alibi
from attnspec.request import Request
from attnspec.rule_arrays import clamped
from attnspec.rules import Foreign, Status
from attnspec.shapes import Span
from attnspec.struct import Struct, arrays_in, with_arrays
from attnspec.terms import Spread

from .numerics import Compiled
from .placement import device_of_all

Arrays = tuple[Any, ...]
_ZERO = np.int32(0)  # the starts of a slice are of one dtype, whatever the default one is

# With fewer rows, or fewer scores of a head, the products of all heads at once cost less than a loop.
ROWS, SCORES = 32, 2**14


def supports(request: Request) -> str | None:
    """None, or why the loop is not for this call: facts that are known while a program is recorded."""
    axes = request.axes
    if axes.Q < ROWS or axes.Q * axes.K < SCORES or not math.prod(axes.scores[:-2]):
        return f"scores {axes.scores} are too few for a loop over heads"
    if not (request.bias is None or request.bias.differentiable):
        return "the bias is somebody's own, which has no part of one head"
    if any(isinstance(x, Foreign) for x in _structs(request.mask)):
        return "the mask is somebody's own, which has no part of one head"
    device = device_of_all(*arrays_in("", request).values())
    if isinstance(device, str):
        return device
    return None if device.platform == "cpu" else f"the device is a {device.platform}, which takes all heads at once"


def _structs(value: Any) -> list[Struct]:
    """A struct and those in it."""
    if not isinstance(value, Struct):
        return []
    return [value, *(x for part in vars(value).values() for x in _structs(part))]


def call(request: Request) -> tuple[Any, Any]:
    """(out, lse)."""
    out, lse, *_ = differentiable(
        lambda r: r.host.run(attend_by_heads, r),
        lambda *saved: saved[0].host.run(attend_backward_by_heads, saved),
        request,
        always=True,
    )
    return _compat.cast(out, request.q.dtype), lse


HEADS = Kernel("heads in a loop", supports, call, recorded=True, from_scores=2**18)


def attend_by_heads(request: Request) -> Arrays:
    """`blocks.attend` for one head after another."""
    heads, numerics = _Heads(request), _OneHead(request, most=1024)

    def of_one(nothing: None, n: Any) -> tuple[None, Arrays]:
        return nothing, attend(heads.part(heads.place(n)), numerics)

    _, stacked = jax.lax.scan(of_one, None, jnp.arange(heads.count, dtype=jnp.int32))
    return tuple(jnp.reshape(x, (*heads.lengths, *x.shape[1 + len(heads.lengths) :])) for x in stacked)


def attend_backward_by_heads(saved: tuple[Request, Arrays, Arrays]) -> Mapping[str, Any]:
    """`backward.attend_backward` for one head after another, added up where heads share an array."""
    request, results, cotangents = saved
    heads, numerics = _Heads(request), _OneHead(request, most=512)

    def of_one(totals: dict[str, Any], n: Any) -> tuple[dict[str, Any], None]:
        place = heads.place(n)
        own, pulled = (tuple(heads.rows(x, place) for x in given) for given in (results, cotangents))
        found = attend_backward((heads.part(place), own, pulled), numerics)
        return {name: heads.added(name, x, found[name], place) for name, x in totals.items()}, None

    arrays = {name[1:]: x for name, x in arrays_in("", request).items() if jnp.issubdtype(x.dtype, jnp.floating)}
    totals = {name: jnp.zeros_like(_compat.widened(x)) for name, x in arrays.items()}
    return jax.lax.scan(of_one, totals, jnp.arange(heads.count, dtype=jnp.int32))[0]  # type: ignore[no-any-return]


class _Heads:
    """The heads of a call, and how its arrays lie along the axes (..., H)."""

    def __init__(self, request: Request) -> None:
        axes = request.axes
        request = replace(request, mask=_of_arrays(request.mask), bias=_of_arrays(request.bias))
        self.request, self.lengths = request, (*axes.lead, axes.H)
        self.count = math.prod(self.lengths)
        whole: Block = tuple(slice(0, n) for n in self.lengths)
        self.first = request.part(tuple(slice(0, 1) for _ in self.lengths))
        shapes = {name: x.shape for name, x in arrays_in("", request).items()}
        # Which axis of an array a block cuts is seen by the lengths of what it leaves.
        self.cut: dict[str, list[tuple[int, int]]] = {name: [] for name in shapes}  # (axis of the array, of (..., H))
        for axis, n in enumerate(self.lengths):
            if n == 1:
                continue
            part = request.part((*whole[:axis], slice(0, 1), *whole[axis + 1 :]))
            for name, x in arrays_in("", part).items():
                pairs = zip(shapes[name], x.shape, strict=True)
                self.cut[name] += [(own, axis) for own, (was, now) in enumerate(pairs) if was != now]

    def place(self, n: Any) -> Arrays:
        """Where along the axes (..., H) the head with that number is."""
        return tuple(_compat.cast(x, jnp.int32) for x in jnp.unravel_index(n, self.lengths))

    def part(self, place: Arrays) -> Request:
        """The call for that head."""
        request = self.request
        held = {name: self._slice(name, x, place) for name, x in arrays_in("", request).items()}
        part: Request = with_arrays("", self.first, held)
        if request.dropout is None:
            return part
        axes = request.axes
        sizes = (*(1 for _ in place), axes.Q, axes.K)
        return replace(part, dropout=request.dropout.part(axes.scores, (*place, 0, 0), sizes))

    def _slice(self, name: str, x: Any, place: Arrays) -> Any:
        starts, sizes = self._region(name, x, place)
        return x if tuple(sizes) == x.shape else jax.lax.dynamic_slice(x, starts, sizes)

    def _region(self, name: str, x: Any, place: Arrays) -> tuple[list[Any], list[int]]:
        axes = self.request.axes
        starts, sizes = [_ZERO] * x.ndim, list(x.shape)
        for own, axis in self.cut[name]:
            grouped = name in (".k", ".v") and axis == len(place) - 1
            starts[own], sizes[own] = place[axis] // (axes.H // axes.G) if grouped else place[axis], 1
        return starts, sizes

    def rows(self, x: Any, place: Arrays) -> Any:
        """Those of that head, of an array (..., H, Q, *)."""
        trailing = x.ndim - len(place)
        return jax.lax.dynamic_slice(x, (*place, *(_ZERO,) * trailing), (*(1 for _ in place), *x.shape[len(place) :]))

    def added(self, name: str, total: Any, x: Any, place: Arrays) -> Any:
        """The total with x added to what belongs to that head."""
        starts, sizes = self._region(f".{name}", total, place)
        if tuple(sizes) == total.shape:
            return total + _compat.cast(x, total.dtype)
        old = jax.lax.dynamic_slice(total, starts, sizes)
        return jax.lax.dynamic_update_slice(total, old + _compat.cast(x, total.dtype), starts)


class _OneHead(Compiled):
    """Those of a recorded walk, with keys and values cleaned once and not for each tile of queries."""

    def __init__(self, request: Request, most: int) -> None:
        # XLA splits one operation at a time over its threads, so a tile is as high as cache and mask have use for.
        stripes = 1 if request.mask is None else 4
        self.rows = min(request.axes.Q, max(256, min(most, -(-request.axes.Q // stripes))))

    def tile(self, rows: int, columns: int) -> tuple[int, int]:
        return self.rows, max(256, 2**17 // self.rows)

    def prepare(self, request: Request) -> Operands:
        given = super().prepare(request)
        q, k, v = (jnp.where(jnp.isfinite(x), x, 0) for x in given[:3])
        return given._replace(q=q, k=k, v=v)

    def queries(self, request: Request, operands: Operands, q: Span) -> Any:
        return super().queries(request, operands._replace(bad_q=None), q)

    def keys(self, request: Request, operands: Operands, k: Span) -> tuple[Any, Any]:
        return super().keys(request, operands._replace(bad_k=None, bad_v=None), k)


def _of_arrays(value: Any) -> Any:
    """The same rules, with arrays for tuples of numbers, of which a loop can take that of one batch item or head."""
    if not isinstance(value, Struct):
        return value
    changed: dict[str, Any] = {name: _of_arrays(part) for name, part in vars(value).items() if isinstance(part, Struct)}
    for name in ("offset", "lengths"):
        numbers = getattr(value, name, None)
        if isinstance(numbers, tuple):
            changed[name] = jnp.asarray([clamped(n) for n in numbers], jnp.int32)
    if isinstance(value, Alibi) and isinstance(value.slopes, tuple):
        given = {name: getattr(value, name) for name in ("offset", "align", "dtype")}
        return _Published(jnp.asarray(value.slopes, value.dtype), **given | changed)
    return replace(value, **changed) if changed else value  # type: ignore[type-var]


@dataclass(frozen=True)
class _Published(Alibi):
    """ALiBi with slopes that were numbers: none of them is infinite, and they have no gradient."""

    def status(self, q: Span, k: Span, /) -> Status:
        return "all"

    def spread(self) -> dict[str, Spread]:
        return {}

    def pull(self, g: Any, q: Span, k: Span, /, *, xp: Any, device: Any) -> dict[str, Any]:
        return {}
