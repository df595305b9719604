"""The grid of JAX's tests of `jax.nn.dot_product_attention`, with its gradients: dtypes, groups of heads, masks.

The axes, the masks and the tolerances for half types are those of JAX's tests/nn_test.py; the queries are fewer than
the keys here, so that it shows where causal starts. Wanted is what JAX computes from the same numbers in float32 or
wider; in float64 that is no better than float32, since JAX takes every softmax in it. The only rows that see nothing
are those beyond `query_seq_lengths`, which are 0 on both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
from case import Case
from jax import random

from attnspec.integrations import jax as adapter

B, Q, K, H, D = 2, 96, 128, 4, 32
GROUPS = (1, 2, 4)
MASKS = (
    "none", "bias", "causal", "padding", "custom", "causal+padding", "custom+padding", "bias+causal", "window",
    "causal+window",
)  # fmt: skip
# Of the output and of the gradients of query, key, value and bias.
TOLERANCES = {
    "float64": (1e-6,) * 5,
    "float32": (1e-5,) * 5,
    "float16": (0.01, 0.02, 0.02, 0.01, 0.02),
    "bfloat16": (0.01, 0.02, 0.02, 0.01, 0.02),
}


def cases() -> list[Case]:
    """Every combination."""
    axes = product(TOLERANCES, GROUPS, MASKS)
    return [Case(f"{dtype}-groups{groups}-{mask}", _check(dtype, groups, mask)) for dtype, groups, mask in axes]


def _check(dtype: str, groups: int, mask: str) -> Callable[[], None]:
    def check() -> None:
        with jax.enable_x64(dtype == "float64"):
            wide = jnp.promote_types(dtype, "float32")
            arrays, cotangent, options = _drawn(dtype, groups, mask.split("+"))
            ours = _with_gradients(adapter.dot_product_attention, arrays, cotangent, options)
            widened = [x.astype(wide) for x in arrays]
            theirs = _with_gradients(jax.nn.dot_product_attention, widened, cotangent.astype(wide), options)
            for got, like, wanted, tolerance in zip(
                ours, [arrays[0], *arrays], theirs, TOLERANCES[dtype][: len(ours)], strict=True
            ):
                assert (got.shape, got.dtype) == (like.shape, like.dtype)
                error = jnp.abs(got.astype(wide) - wanted)
                assert jnp.all(error <= tolerance * (1 + jnp.abs(wanted))), f"error {jnp.max(error):.3g}"

    return check


def _drawn(dtype: str, groups: int, parts: list[str]) -> tuple[list[Any], Any, dict[str, Any]]:
    """query, key, value and perhaps the bias; the cotangent of the output; the options."""
    rngs = random.split(random.key(0), 5)
    shapes = [(B, Q, H, D), (B, K, H // groups, D), (B, K, H // groups, D), (B, Q, H, D), (1, H, Q, K)]
    *arrays, cotangent, bias = (random.normal(rng, shape, dtype) for rng, shape in zip(rngs, shapes, strict=True))
    options: dict[str, Any] = {"is_causal": "causal" in parts}
    if "bias" in parts:
        arrays.append(bias)
    if "custom" in parts:
        options["mask"] = jnp.tril(jnp.ones((1, 1, Q, K), dtype=bool))
    if "padding" in parts:
        options["query_seq_lengths"] = jnp.asarray([Q // 2, Q // 4], dtype=jnp.int32)
        options["key_value_seq_lengths"] = jnp.asarray([K // 4, K // 2], dtype=jnp.int32)
    if "window" in parts:
        options["local_window_size"] = (3, 2) if "causal" in parts else (3, 0)
    return arrays, cotangent, options


def _with_gradients(
    function: Callable[..., Any], arrays: list[Any], cotangent: Any, options: dict[str, Any]
) -> tuple[Any, ...]:
    out, pullback = jax.vjp(lambda *arrays: function(*arrays, **options), *arrays)
    return out, *pullback(cotangent)
