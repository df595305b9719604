"""The grid of MLX's tests of `mlx.core.fast.scaled_dot_product_attention`: lengths, heads, masks, sinks.

The axes, the distributions and the tolerance are those of MLX's python/tests/test_fast_sdpa.py, with a quarter of its
heads; the sinks are an axis of their own here. Wanted is what MLX computes in float32 from the same numbers. Rows that
see nothing are left out: MLX gives them the mean of the values, attnspec gives 0 (MASK-5).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from case import Case

from attnspec.integrations import mlx as adapter

LENGTHS = ((128, 128), (64, 128), (65, 128), (64, 127), (65, 127), (127, 65))
HEADS = ((8, 8), (8, 2), (8, 1))
MASKS = ("none", "causal", "bool", "additive")
TOLERANCE = {"float32": 2e-5, "float16": 3e-4}
WIDTH = 64


def cases() -> list[Case]:
    """Every combination."""
    axes = product(TOLERANCE, LENGTHS, HEADS, MASKS, ("plain", "sinks"))
    return [
        Case(f"{dtype}-{Q}x{K}-heads{H}:{G}-{mask}-{sinks}", _check(dtype, Q, K, H, G, mask, sinks == "sinks"))
        for dtype, (Q, K), (H, G), mask, sinks in axes
    ]


def _check(dtype: str, Q: int, K: int, H: int, G: int, mask: str, sinks: bool) -> Callable[[], None]:
    def check() -> None:
        draw = np.random.default_rng(0)
        q = draw.normal(0.0, 0.5, (1, H, Q, WIDTH)).astype(dtype)
        k = draw.normal(0.0, 0.5, (1, G, K, WIDTH)).astype(dtype)
        v = draw.normal(0.0, WIDTH**-0.5, (1, G, K, WIDTH)).astype(dtype)
        given: Any = {
            "none": None,
            "causal": "causal",
            "bool": draw.uniform(size=(1, H, Q, K)) < 0.5,
            "additive": draw.normal(0.0, 0.5, (1, H, Q, K)).astype(dtype),
        }[mask]
        extra = draw.normal(size=H).astype(dtype) if sinks else None
        got = adapter.scaled_dot_product_attention(q, k, v, scale=WIDTH**-0.5, mask=given, sinks=extra)
        assert (got.shape, got.dtype) == (q.shape, q.dtype)
        sees = slice(max(0, Q - K) if mask == "causal" else 0, None)
        wanted = _wanted(q, k, v, given, extra)[..., sees, :]
        beyond = np.abs(got[..., sees, :] - wanted) - TOLERANCE[dtype] * np.abs(wanted)
        assert beyond.max() <= TOLERANCE[dtype], f"{beyond.max():.3g} beyond the tolerance"

    return check


def _wanted(q: Any, k: Any, v: Any, mask: Any, sinks: Any) -> Any:
    """MLX's answer in float32."""
    import mlx.core as mx

    def array(x: Any) -> Any:
        return x if x is None or isinstance(x, str) else mx.array(x if x.dtype == bool else x.astype(np.float32))

    q, k, v, mask, sinks = map(array, (q, k, v, mask, sinks))
    return np.asarray(mx.fast.scaled_dot_product_attention(q, k, v, scale=WIDTH**-0.5, mask=mask, sinks=sinks))
