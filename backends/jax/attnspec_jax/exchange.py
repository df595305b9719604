"""Two more ways over devices, inside of `jax.shard_map`: heads in exchange for the sequence, and keys that stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

import attnspec
from attnspec import reproducible
from attnspec.backward import attend_backward
from attnspec.derivative import differentiable
from attnspec.fast import FAST
from attnspec.request import Request
from attnspec.rows import OF_NO_KEYS, Fast, Rows, no_gradient, of_no_keys
from attnspec.shards import Arrays, Lies, options_of
from attnspec.struct import arrays_in

from .ring import loop, sent_by
from .rows import InOrder
from .shards import Tile


def all_to_all(request: Request, axis: str, *, same_bits: bool) -> Rows:
    """(out, lse): all heads of a shard of the sequence become some heads of all of it, and back ("Ulysses")."""
    q, k, v = (_to_heads(x, axis) for x in (request.q, request.k, request.v))
    options = options_of(request)
    if request.dropout is not None:
        lead, H = request.axes.lead, q.shape[-3]
        starts = (*(0,) * len(lead), lax.axis_index(axis) * H, 0, 0)
        options["dropout"] = request.dropout.part((), starts, (*lead, H, q.shape[-2], k.shape[-2]))
    attend = reproducible.attention_with_lse if same_bits else attnspec.attention_with_lse
    out, lse = attend(q, k, v, **options)
    return _to_rows(out, axis), _to_rows(lse[..., None], axis)[..., 0]


def _to_heads(x: Any, axis: str) -> Any:
    return lax.all_to_all(x, axis, split_axis=x.ndim - 3, concat_axis=x.ndim - 2, tiled=True)


def _to_rows(x: Any, axis: str) -> Any:
    return lax.all_to_all(x, axis, split_axis=x.ndim - 2, concat_axis=x.ndim - 3, tiled=True)


@dataclass(frozen=True, eq=False)
class SplitKeys:
    """Few queries, which every device has, and keys that stay where they are: a decoding step and its cache."""

    axis: str
    n: int
    lies: dict[str, Lies]
    chunk: int | None  # as in Ring; keys are not cut here

    def attend(self, request: Request) -> Rows:
        """(out, lse, reference, total), the same on every device."""
        return differentiable(self._forward, self._backward, request, always=True)

    def attend_in_order(self, request: Request) -> Rows:
        """(out, lse) in reproducible mode: the rows travel past the keys, in their order."""
        return differentiable(self._in_order, no_gradient, request, always=True, reverse_only=True)

    def _forward(self, request: Request) -> Rows:
        part = self._part(request)
        reference, total, out, *seen = Fast.of_keys(part)
        top = lax.pmax(reference, self.axis)
        share = jnp.exp(reference - jnp.where(top == -jnp.inf, 0.0, top))
        total, out = lax.psum((total * share, out * share), self.axis)
        seen = [x > 0 for x in lax.psum([x.astype(jnp.int32) for x in seen], self.axis)]
        rows = Fast.merge(part, Fast.start(request), (top, total, out, *seen))
        return Fast.finish(request, rows)

    def _in_order(self, request: Request) -> Rows:
        part = self._part(request)
        chunks = InOrder.of_keys(part)
        to_next = [(i, i + 1) for i in range(self.n - 1)]

        def one_device(rows: Rows, t: Any) -> tuple[Rows, None]:
            # Only the rows that come from the first device, by way of all so far, are those that are wanted.
            return lax.ppermute(InOrder.merge(request, rows, chunks), self.axis, to_next), None

        rows = loop(one_device, InOrder.start(request), self.n - 1)
        rows = InOrder.merge(request, rows, chunks)
        return InOrder.finish(request, tuple(sent_by(self.n - 1, x, self.axis) for x in rows))

    def _backward(self, request: Request, results: Rows, cotangents: Rows) -> Arrays:
        # Each device has a copy of the results, and the cotangent of its copy; the keys here made all of them.
        summed = tuple(lax.psum(cotangents, self.axis))
        found = attend_backward((self._part(request), results, summed), FAST)
        return {n: x for n, x in found.items() if f".{n}" not in OF_NO_KEYS} | of_no_keys(request, results, cotangents)

    def _part(self, request: Request) -> Request:
        """The call of these keys alone."""
        Q, K = request.q.shape[-2], request.k.shape[-2]
        tile = Tile(0, Q, 0, K, 0, lax.axis_index(self.axis) * K)
        return tile.request(request, arrays_in("", request), self.lies)
