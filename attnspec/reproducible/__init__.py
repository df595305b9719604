"""attnspec with the same bits on every framework: the same names, the same signatures, the same bodies.

    from attnspec import reproducible

    reproducible.attention(q, k, v, mask=reproducible.causal())

NumPy, PyTorch and JAX, eager or compiled, any BLAS, number of threads, width of SIMD, batch and tile: one answer to the
bit. What is guaranteed, how it works and what it costs: docs/reproducible.md.
"""

import attnspec as _attnspec

from .. import (
    Bias,
    Dropout,
    Mask,
    NormParams,
    Request,
    Rotary,
    Span,
    alibi,
    as_bias,
    as_mask,
    causal,
    errors,
    padding,
    relative_bias,
    segments,
    window,
)
from . import random
from .cache import Cache
from .doors import before_rounding, identically, identically_initialised, vjp
from .partials import Partial, finish, merge, partial

FeedForwardParams = identically_initialised(_attnspec.FeedForwardParams)
LayerParams = identically_initialised(_attnspec.LayerParams)
MultiHeadParams = identically_initialised(_attnspec.MultiHeadParams)
StackParams = identically_initialised(_attnspec.StackParams)

add_and_norm = identically(_attnspec.add_and_norm)
attention = identically(_attnspec.attention)
attention_weights = identically(_attnspec.attention_weights)
attention_with_lse = identically(_attnspec.attention_with_lse)
cross_entropy = identically(_attnspec.cross_entropy)
dropout = identically(_attnspec.dropout)
embed = identically(_attnspec.embed)
feed_forward = identically(_attnspec.feed_forward)
layer_norm = identically(_attnspec.layer_norm)
mean_pool = identically(_attnspec.mean_pool)
merge_attention = identically(_attnspec.merge_attention)
multi_head_attention = identically(_attnspec.multi_head_attention)
multi_head_attention_with_cache = identically(_attnspec.multi_head_attention_with_cache)
multi_head_outputs = identically(_attnspec.multi_head_outputs)
multi_head_outputs_with_cache = identically(_attnspec.multi_head_outputs_with_cache)
multi_head_weights = identically(_attnspec.multi_head_weights)
multi_head_weights_with_cache = identically(_attnspec.multi_head_weights_with_cache)
normalise = identically(_attnspec.normalise)
pre_norm = identically(_attnspec.pre_norm)
rms_norm = identically(_attnspec.rms_norm)
rotary = identically(_attnspec.rotary)
transformer_layer = identically(_attnspec.transformer_layer)
transformer_layer_with_cache = identically(_attnspec.transformer_layer_with_cache)
transformer_stack = identically(_attnspec.transformer_stack)
transformer_stack_with_cache = identically(_attnspec.transformer_stack_with_cache)

__all__ = [
    "Bias", "Cache", "Dropout", "FeedForwardParams", "LayerParams", "Mask", "MultiHeadParams", "NormParams",
    "Partial", "Request", "Rotary", "Span", "StackParams", "add_and_norm", "alibi", "as_bias", "as_mask",
    "attention", "attention_weights", "attention_with_lse", "before_rounding", "causal", "cross_entropy", "dropout",
    "embed", "errors", "feed_forward", "finish", "identically", "layer_norm", "mean_pool", "merge",
    "merge_attention", "multi_head_attention", "multi_head_attention_with_cache", "multi_head_outputs",
    "multi_head_outputs_with_cache", "multi_head_weights", "multi_head_weights_with_cache", "normalise", "padding",
    "partial", "pre_norm", "random", "relative_bias", "rms_norm", "rotary", "segments", "transformer_layer",
    "transformer_layer_with_cache", "transformer_stack", "transformer_stack_with_cache", "vjp", "window",
]  # fmt: skip
