"""Equinox's layer, with projections that change nothing, mapped over a batch."""

from __future__ import annotations

from typing import Any

import equinox
import jax
import jax.numpy as jnp
from attnspec_conformance.adapters import Adapter, Pairs
from wrapping import of_one_head


def _attend(q: Any, k: Any, v: Any, *, mask: Any = None, rate: float = 0.0) -> Any:
    """(B, S, H, D) as (S, H * D) for each of the batch."""
    H, D, E = *q.shape[-2:], v.shape[-1]
    rng = jax.random.key(0)  # asked for rates 0 and 1 only, at which nothing is random
    layer = equinox.nn.MultiheadAttention(
        H, H * D, value_size=H * E, output_size=H * E, qk_size=D, vo_size=E,
        dropout_p=float(rate), dtype=q.dtype, key=rng,
    )  # fmt: skip
    layer = equinox.tree_at(_projections, layer, replace_fn=lambda weight: jnp.eye(*weight.shape, dtype=weight.dtype))

    def of_one(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return layer(q, k, v, mask, key=rng)

    out = jax.vmap(of_one)(*(x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1]) for x in (q, k, v)), mask)
    return out.reshape(*out.shape[:-1], H, E)


def _projections(layer: Any) -> list[Any]:
    return [part.weight for part in (layer.query_proj, layer.key_proj, layer.value_proj, layer.output_proj)]


layer = Adapter(
    name="equinox.MultiheadAttention",
    kernel=_attend,
    backend="jax",
    capabilities=("float64", "float16", "bfloat16", "vjp"),
    layout="BSHD",
    mask=Pairs("mask"),
    arguments={"rate": "rate"},
    limits=of_one_head,
)
