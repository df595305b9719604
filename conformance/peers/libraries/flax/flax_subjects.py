"""Flax's attention, of its two interfaces, on both paths of the newer one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
from attnspec_conformance.adapters import Adapter, Flag, Pairs
from flax import linen, nnx
from wrapping import of_widths_alone, widened, without_more_width

_RNG = {"dropout_rng": jax.random.key(0)}  # asked for rates 0 and 1 only, at which nothing is random


def _seen(*arrays: Any, module: nnx.Module | None = None, **named: Any) -> Any:
    """With a module to sow the weights in, which takes the path that dropout takes."""
    return nnx.dot_product_attention(*arrays, module=module or nnx.Module(), **named)


def _sown(*arrays: Any, **named: Any) -> Any:
    _seen(*arrays, module=(module := nnx.Module()), **named)
    return module.attention_weights[0]


nnx_fast = Adapter(
    name="flax.nnx",
    kernel=widened(partial(nnx.dot_product_attention, **_RNG)),
    backend="jax",
    capabilities=("float64", "float16", "bfloat16", "vjp"),
    layout="BSHD",
    leading=None,
    grouped=True,
    mask=Pairs("mask"),
    causal=Flag("is_causal"),
    arguments={"bias": "bias", "rate": "dropout_rate"},
    rounds_weights=True,
    limits=without_more_width,
    refusals=(ValueError, TypeError, AssertionError),
)
nnx_widths = replace(
    nnx_fast, name="flax.nnx_widths", kernel=nnx.dot_product_attention, capabilities=(), limits=of_widths_alone
)
nnx_weights = replace(
    nnx_fast,
    name="flax.nnx_w",
    kernel=partial(_seen, **_RNG),
    weights=_sown,
    limits=lambda call: None,
)
of_linen = replace(
    nnx_weights,
    name="flax.linen",
    kernel=partial(linen.dot_product_attention, **_RNG),
    weights=lambda q, k, v, **named: linen.dot_product_attention_weights(q, k, **named),
    grouped=False,
    causal=None,
)
