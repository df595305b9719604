"""`attnspec.attention` of DTensors that are sharded on batch or heads: each rank on its own shard, nothing is sent."""

from __future__ import annotations

from typing import Any

import torch

import attnspec
from attnspec._compat import Array
from attnspec.errors import OptionError, ShapeError
from attnspec.host import Kernel
from attnspec.parts import Block
from attnspec.request import Request
from attnspec.shards import options_of
from attnspec.struct import arrays_in, with_arrays


def _supports(request: Request) -> str | None:
    # By the name: importing DTensor takes long, and most programs have none.
    kinds = [type(x).__name__ for x in (request.q, request.k, request.v)]
    return None if kinds == ["DTensor"] * 3 else f"it is for DTensors; q, k and v are {', '.join(kinds)}"


def _call(request: Request) -> tuple[Array, Array]:
    """The call of this rank's shard, as a part of the whole."""
    from torch.distributed.tensor import DTensor

    q, k, v = given = request.q, request.k, request.v
    _check(request)
    options = {name: x for name, x in arrays_in("", request).items() if name not in (".q", ".k", ".v")}
    local = {name: _whole_here(name[1:], x, q) for name, x in options.items()}
    # Options are cut as the core cuts them; q, k and v, which are cut already, only lend their shapes.
    shapes = {name: torch.empty(x.shape, device="meta") for name, x in ((".q", q), (".k", k), (".v", v))}
    part = with_arrays("", request, local | shapes).part(_block(q))
    out, lse = attnspec.attention_with_lse(*(x.to_local() for x in given), **options_of(part))
    return tuple(DTensor.from_local(x, q.device_mesh, q.placements, run_check=False) for x in (out, lse))


def _check(request: Request) -> None:
    """Raise unless every rank has whole sequences of the same heads and items of q, k and v."""
    q, k, v = request.q, request.k, request.v
    if not q.ndim == k.ndim == v.ndim:
        msg = f"q, k and v have {q.ndim}, {k.ndim} and {v.ndim} axes; DTensors need as many, and to be sharded alike."
        raise ShapeError(msg)
    for name, x in (("k", k), ("v", v)):
        if (x.device_mesh, x.placements) != (q.device_mesh, q.placements):
            msg = f"q is placed as {q.placements}, {name} as {x.placements}. Redistribute them alike."
            raise OptionError(msg)
    for axis, placement in enumerate(q.placements):
        if placement.is_replicate():
            continue
        dim = getattr(placement, "dim", None)
        if not placement.is_shard() or type(placement).__name__ != "Shard":
            msg = f"q is placed as {q.placements}; Shard on batch or heads, or Replicate, is needed. Redistribute it."
            raise OptionError(msg)
        if dim == q.ndim - 2:
            msg = (
                "q, k and v are DTensors that are sharded on the sequence, on which every row needs every shard: call "
                "attnspec_torch.distributed.attention with their .to_local(), or redistribute them on batch or heads."
            )
            raise OptionError(msg)
        if dim > q.ndim - 2:
            msg = f"q is placed as {q.placements}: D and E are not sharded. Redistribute q, k and v on batch or heads."
            raise OptionError(msg)
        n = q.device_mesh.size(axis)
        sizes = [x.shape[dim] for x in (q, k, v)]
        if any(size % n for size in sizes) or (dim < q.ndim - 3 and len(set(sizes)) > 1):
            msg = f"axis {dim} of q, k and v has the lengths {sizes}, which do not divide into {n} equal shards."
            raise OptionError(msg)


def _whole_here(name: str, x: Any, q: Any) -> torch.Tensor:
    """An array of an option, which every rank has whole; ranks with different shards of q add up its gradient."""
    if type(x).__name__ != "DTensor":
        if x.requires_grad and torch.is_grad_enabled():
            msg = f"{name} is no DTensor and its gradient would be that of one shard. Distribute it as Replicate()."
            raise OptionError(msg)
        return x
    from torch.distributed.tensor import Partial

    if x.device_mesh != q.device_mesh or not all(placement.is_replicate() for placement in x.placements):
        msg = f"{name} is placed as {x.placements} on {x.device_mesh}; Replicate() on q's mesh is needed."
        raise OptionError(msg)
    return x.to_local(grad_placements=[Partial() if place.is_shard() else place for place in q.placements])


def _block(q: Any) -> Block:
    """This rank's part of the axes (..., H)."""
    block = [slice(0, n) for n in q.shape[:-2]]
    for axis, placement in enumerate(q.placements):
        if placement.is_shard():
            before = block[placement.dim]
            size = (before.stop - before.start) // q.device_mesh.size(axis)
            start = before.start + size * q.device_mesh.get_local_rank(axis)
            block[placement.dim] = slice(start, start + size)
    return tuple(block)


SHARDS = Kernel("shards of DTensors", _supports, _call, takes_concrete=False)
