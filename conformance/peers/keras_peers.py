"""Keras's attention, as a function and as two layers on two paths each, on the backend that KERAS_BACKEND names."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import keras
import numpy as np
from attnspec_conformance import masks
from attnspec_conformance.adapters import Adapter, Flag, Pairs, Sides
from attnspec_conformance.trials import Call
from wrapping import of_one_head, widened, without_more_width, without_width

logging.getLogger("absl").setLevel(logging.CRITICAL)  # it logs what it catches, and answers or raises all the same


def attention(backend: str, *capabilities: str) -> Adapter:
    """keras.ops.dot_product_attention."""
    return Adapter(
        name=f"keras.ops on {backend}",
        kernel=widened(keras.ops.dot_product_attention),
        backend=backend,
        capabilities=capabilities,
        layout="BSHD",
        grouped=True,
        mask=Pairs("mask"),
        causal=Flag("is_causal"),
        arguments={"scale": "scale", "bias": "bias"},
        rounds_weights=True,
        limits=without_width,
        refusals=(ValueError, TypeError, RuntimeError, IndexError),
    )


def layer(backend: str, *capabilities: str) -> Adapter:
    """keras.layers.MultiHeadAttention, on its fused path unless a rate of dropout is given."""
    return Adapter(
        name=f"keras.MultiHeadAttention on {backend}",
        kernel=partial(_attend, _multihead),
        backend=backend,
        capabilities=capabilities,
        layout="BSHD",
        mask=Pairs("mask"),
        causal=Flag("causal"),
        window=Sides("window", align="start", counts_itself=True, unbounded=None),
        arguments={"rate": "rate"},
        rounds_weights=True,
        limits=_limits,
        refusals=(ValueError, TypeError, RuntimeError, IndexError),
    )


def grouped_layer(backend: str, *capabilities: str) -> Adapter:
    """keras.layers.GroupQueryAttention, on its fused path too."""
    return replace(
        layer(backend, *capabilities),
        name=f"keras.GroupQueryAttention on {backend}",
        kernel=widened(partial(_attend, _grouped)),
        grouped=True,
        limits=lambda call: without_more_width(call) or _limits(call),
    )


def with_scores(of_layer: Adapter) -> Adapter:
    """The layer when it is asked for its scores too, which takes the path that dropout takes."""
    return replace(
        of_layer,
        name=f"{of_layer.name}, with scores",
        kernel=lambda *arrays, **named: of_layer.kernel(*arrays, scores=True, **named)[0],
        weights=lambda *arrays, **named: of_layer.kernel(*arrays, scores=True, **named)[1],
    )


def _limits(call: Call) -> str | None:
    """A window of the layer is as wide on both sides, or has nothing on its right if the layer is causal too."""
    sides = (call.mask.left, call.mask.right) if isinstance(call.mask, masks.Window) else (0, 0)
    if sides[0] != sides[1] and sides[1] != 0:
        return "its window is as wide on both sides"
    return of_one_head(call)


def _multihead(H: int, G: int, D: int, E: int, **options: Any) -> Any:
    return keras.layers.MultiHeadAttention(H, D, E, output_shape=H * E, **options)


def _grouped(H: int, G: int, D: int, E: int, **options: Any) -> Any:
    return keras.layers.GroupQueryAttention(D, H, G, **options)


def _attend(
    make: Callable[..., Any],
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Any = None,
    causal: bool = False,
    window: tuple[int | None, int | None] = (None, None),
    rate: float = 0.0,
    scores: bool = False,
) -> Any:
    """(B, S, H, D), given to the layer as (B, S, H * D), with projections that change nothing."""
    H, G, D, E, dtype = q.shape[-2], *k.shape[-2:], v.shape[-1], keras.backend.standardize_dtype(q.dtype)
    left, right = window
    attend = make(H, G, D, E, dropout=rate, use_bias=False, sliding_window=left, dtype=dtype)
    q, k, v = (keras.ops.reshape(x, (*x.shape[:2], x.shape[2] * x.shape[3])) for x in (q, k, v))
    attend.build(q.shape, v.shape, k.shape)
    attend.set_weights([np.eye(round(math.prod(x.shape) ** 0.5)).reshape(x.shape) for x in attend.weights])
    found = attend(
        q, v, k, attention_mask=mask, use_causal_mask=causal or right == 1, return_attention_scores=scores,
        training=True,
    )  # fmt: skip
    out, weights = found if scores else (found, None)
    out = keras.ops.reshape(out, (*out.shape[:2], H, E))
    return (out, weights) if scores else out
