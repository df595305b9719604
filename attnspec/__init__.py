"""What attention means: a specification, one implementation on the Python Array API, and a conformance suite.

Arrays carry their framework: `attnspec.attention(q, k, v)` takes NumPy, PyTorch, JAX or any other Array API arrays
and computes in their own library, on their own device.
"""

from . import errors, gradients, params, random
from .attention import attention, attention_weights, attention_with_lse
from .bias import Bias, alibi, as_bias, relative_bias
from .block import (
    normalise,
    transformer_layer,
    transformer_layer_with_cache,
    transformer_stack,
    transformer_stack_with_cache,
)
from .cache import Cache
from .dropout import dropout
from .embedding import embed, mean_pool
from .feed_forward import feed_forward
from .loss import cross_entropy
from .masks import Mask, as_mask, causal, padding, segments, window
from .multihead import (
    multi_head_attention,
    multi_head_attention_with_cache,
    multi_head_outputs,
    multi_head_outputs_with_cache,
    multi_head_weights,
    multi_head_weights_with_cache,
)
from .norm import layer_norm, rms_norm
from .params import FeedForwardParams, LayerParams, MultiHeadParams, NormParams, StackParams
from .request import Dropout, Request
from .residual import add_and_norm, pre_norm
from .rotary import Rotary, rotary
from .shapes import Span
from .softmax import merge_attention
from .tape import vjp

__version__ = "0.1.0"

__all__ = [
    "Bias", "Cache", "Dropout", "FeedForwardParams", "LayerParams", "Mask", "MultiHeadParams", "NormParams",
    "Request", "Rotary", "Span", "StackParams", "add_and_norm", "alibi", "as_bias", "as_mask", "attention",
    "attention_weights", "attention_with_lse", "causal", "cross_entropy", "dropout", "embed", "errors",
    "feed_forward", "gradients", "layer_norm", "mean_pool", "merge_attention", "multi_head_attention",
    "multi_head_attention_with_cache", "multi_head_outputs", "multi_head_outputs_with_cache", "multi_head_weights",
    "multi_head_weights_with_cache", "normalise", "padding", "params", "pre_norm", "random", "relative_bias",
    "rms_norm", "rotary", "segments", "transformer_layer", "transformer_layer_with_cache", "transformer_stack",
    "transformer_stack_with_cache", "vjp", "window",
]  # fmt: skip
