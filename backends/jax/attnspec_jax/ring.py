"""Attention of a sequence that is split over devices, inside of `jax.shard_map`: keys travel, queries stay.

Each device holds a shard of the queries and a shard of the keys. In n rounds every shard of keys visits every device,
and what was seen of it is merged into the rows there. Nothing of size Q x K exists on any device, in the backward pass
neither: it makes the weights again from the final sums of the rows, and the gradients of the keys travel with them.

Where a mask is given, shards are cut in two, and a pair of pieces of which no query can see a key is not computed. So a
zigzag order, in which each device holds a piece from the beginning and one from the end, gives all the same to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from attnspec._compat import widened
from attnspec.backward import attend_backward
from attnspec.derivative import differentiable
from attnspec.fast import FAST
from attnspec.request import Request
from attnspec.rows import OF_NO_KEYS, RESULTS, Fast, Rows, no_gradient, of_no_keys
from attnspec.shards import Arrays, Lies, may_see
from attnspec.struct import arrays_in

from .rows import InOrder
from .shards import Tile


@dataclass(frozen=True, eq=False)
class Ring:
    """n devices along an axis of the mesh, and how the arrays of a call lie. Methods run on each device, on its arrays.

    The ring is that of JAX's numbering of the devices: device i hands on to device i + 1.
    """

    axis: str
    n: int
    lies: dict[str, Lies]
    chunk: int | None  # the keys of a piece in reproducible mode, whose sums are kept for each chunk

    def attend(self, request: Request) -> Rows:
        """(out, lse, reference, total) of this device's queries."""
        return differentiable(self._forward, self._backward, request, always=True)

    def attend_in_order(self, request: Request) -> Rows:
        """(out, lse) in reproducible mode: each device takes in the shards of keys in their order.

        All need the same shard at the same time then, so it is sent to all by the one that has it.
        """
        return differentiable(self._in_order, no_gradient, request, always=True, reverse_only=True)

    def _forward(self, request: Request) -> Rows:
        arrays = arrays_in("", request)

        def taken(rows: Rows, moved: Arrays, t: Any) -> Rows:
            return self._taken(Fast, request, arrays | moved, self._source(t), rows)

        def one_round(carry: tuple[Rows, Arrays], t: Any) -> tuple[tuple[Rows, Arrays], None]:
            rows, moved = carry
            later = self._handed_on(moved)  # on its way while this one is computed with
            return (taken(rows, moved, t), later), None

        rows, moved = loop(one_round, (Fast.start(request), self._moving(arrays)), self.n - 1)
        return Fast.finish(request, taken(rows, moved, self.n - 1))

    def _in_order(self, request: Request) -> Rows:
        arrays = arrays_in("", request)

        def one_round(rows: Rows, t: Any) -> tuple[Rows, None]:
            sent = {name: sent_by(t, x, self.axis) for name, x in self._moving(arrays).items()}
            return self._taken(InOrder, request, arrays | sent, t, rows), None

        return InOrder.finish(request, loop(one_round, InOrder.start(request), self.n))

    def _backward(self, request: Request, results: Rows, cotangents: Rows) -> Arrays:
        arrays = arrays_in("", request)
        moving = self._moving(arrays)
        wide = widened(request.q).dtype
        floats = {n: x for n, x in arrays.items() if jnp.issubdtype(x.dtype, jnp.floating)}
        blank = {n: jnp.zeros_like(x, dtype=wide) for n, x in floats.items()}

        def pulled(found: Arrays, moved: Arrays, t: Any) -> Arrays:
            def step(found: Arrays, tile: Tile, part: Request) -> Arrays:
                of_rows = [tile.of(x, lies) for x, lies in zip((*results, *cotangents), RESULTS * 2, strict=True)]
                gradients = attend_backward((part, tuple(of_rows[:4]), tuple(of_rows[4:])), FAST)
                news = {name: gradients[name[1:]] for name in found if name not in OF_NO_KEYS}
                lies = self.lies
                return found | {
                    name: tile.put(found[name], tile.of(found[name], lies[name]) + x, lies[name])
                    for name, x in news.items()
                }

            summed: Arrays = self._walk(request, arrays | moved, self._source(t), step, found)
            return summed

        def one_round(carry: tuple[Arrays, Arrays], t: Any) -> tuple[tuple[Arrays, Arrays], None]:
            found, moved = carry
            later = self._handed_on(moved)
            found = pulled(found, moved, t)
            return (found | self._handed_on(self._moving(found)), later), None

        found, moved = loop(one_round, (blank, moving), self.n - 1)
        found = pulled(found, moved, self.n - 1)
        found |= self._handed_on(self._moving(found))  # home
        return {name[1:]: x for name, x in found.items()} | of_no_keys(request, results, cotangents)

    def _moving(self, arrays: Arrays) -> Arrays:
        """What travels: all that has entries for keys alone."""
        return {n: x for n, x in arrays.items() if self.lies[n].keys is not None and self.lies[n].queries is None}

    def _handed_on(self, arrays: Arrays) -> Arrays:
        found: Arrays = lax.ppermute(arrays, self.axis, [(i, (i + 1) % self.n) for i in range(self.n)])
        return found

    def _source(self, t: Any) -> Any:
        """Whose keys are here in round t."""
        return (lax.axis_index(self.axis) - t) % self.n

    def _taken(self, mode: Any, request: Request, arrays: Arrays, source: Any, rows: Rows) -> Rows:
        """The rows after a shard of keys."""

        def step(rows: Rows, tile: Tile, part: Request) -> Rows:
            old = tuple(tile.of(x, RESULTS[0]) for x in rows)
            new = mode.merge(part, old, mode.of_keys(part))
            return tuple(tile.put(x, y, RESULTS[0]) for x, y in zip(rows, new, strict=True))

        return self._walk(request, arrays, source, step, rows)  # type: ignore[no-any-return]

    def _walk(self, request: Request, arrays: Arrays, source: Any, step: Callable[..., Any], carry: Any) -> Any:
        """`step` for each pair of a piece of this device's queries and one of the shard's keys that it may see."""
        Q, K = request.q.shape[-2], request.k.shape[-2]
        cut = request.mask is not None
        of_q, of_k = (2 if cut and size % 2 == 0 else 1 for size in (Q, K))
        of_k = of_k if self.chunk is None else K // self.chunk
        me = lax.axis_index(self.axis)

        def pair(carry: Any, n: Any) -> tuple[Any, None]:
            q, k = n // of_k * (Q // of_q), n % of_k * (K // of_k)
            tile = Tile(q, Q // of_q, k, K // of_k, me * Q, source * K)
            part = tile.request(request, arrays, self.lies)
            seen = may_see(part)
            if seen is None:
                return step(carry, tile, part), None
            return lax.cond(seen, lambda carry: step(carry, tile, part), lambda carry: carry, carry), None

        return loop(pair, carry, of_q * of_k)


def loop(step: Callable[..., Any], carry: Any, times: int) -> Any:
    """`carry, _ = step(carry, n)` for n = 0, 1, ..., recorded once."""
    if times == 1:
        return step(carry, jnp.asarray(0))[0]
    return lax.scan(step, carry, jnp.arange(times))[0] if times else carry


def sent_by(source: Any, x: Any, axis: str) -> Any:
    """The array of the device of that number, on every device."""
    flag = x.dtype == jnp.bool
    x = jnp.where(lax.axis_index(axis) == source, x, jnp.zeros_like(x))
    return lax.psum(x.astype(jnp.int32), axis) != 0 if flag else lax.psum(x, axis)
