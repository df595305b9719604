"""What a project on NumPy writes: every call is known to the type checkers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import attnspec
from attnspec import checkpoints, reproducible
from attnspec.backend import Backend
from attnspec.backend import numpy as backend

Floats = NDArray[np.float32]


def attend(q: Floats, k: Floats, v: Floats, lengths: list[int]) -> Floats:
    """Attention with a mask of rules, a bias, and the log-sum-exp beside it."""
    mask: attnspec.Mask = attnspec.causal(align="end") & attnspec.padding(lengths)
    bias: attnspec.Bias = attnspec.alibi(heads=2)
    out, lse = attnspec.attention_with_lse(q, k, v, mask=mask, bias=bias, scale=0.5)
    merged, _ = attnspec.merge_attention([(out, lse)])
    same: Floats = reproducible.attention(q, k, v, mask=reproducible.causal())
    result: Floats = merged + same
    return result


def train(x: Floats, rng: attnspec.random.Key) -> tuple[float, attnspec.LayerParams]:
    """The loss of a layer, and its gradients in the class of its parameters."""
    of_params, of_dropout = attnspec.random.split(rng)
    params = attnspec.LayerParams.init(
        of_params, model_width=8, heads=2, hidden_width=16, order="pre", activation="silu", gated=True, like=np
    )
    drop = attnspec.Dropout(0.1, of_dropout)

    def loss(params: attnspec.LayerParams) -> Any:
        return (attnspec.transformer_layer(params, x, mask=attnspec.causal(), dropout=drop) ** 2).mean()

    value, pullback = attnspec.vjp(loss, params)
    (gradients,) = pullback()
    return float(value), gradients


def decode(params: attnspec.MultiHeadParams, x: Floats) -> attnspec.Cache:
    """A step with a cache."""
    cache = attnspec.Cache.of(params, capacity=16)
    _, longer = attnspec.multi_head_attention_with_cache(params, x, cache, rotary=attnspec.Rotary(base=500.0))
    return longer


def read(folder: str) -> checkpoints.Model:
    """A checkpoint on a backend that is chosen at import time."""
    chosen: Backend = backend
    return checkpoints.load(folder, backend=chosen, dtype="float32")
