"""What attention means: a specification, one implementation on the Python Array API, and a conformance suite.

Arrays carry their framework: `attnspec.attention(q, k, v)` takes NumPy, PyTorch, JAX or any other Array API arrays
and computes in their own library, on their own device.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

# The module of each name, which is imported when the name is first used; a name that is not here is that of a module.
_HOMES = {
    name: home
    for home, names in {
        "attention": "attention attention_weights attention_with_lse",
        "bias": "Bias alibi as_bias relative_bias",
        "block": "normalise transformer_layer transformer_layer_with_cache "
        "transformer_stack transformer_stack_with_cache",
        "cache": "Cache",
        "dropout": "dropout",
        "embedding": "embed mean_pool",
        "feed_forward": "feed_forward",
        "loss": "cross_entropy",
        "masks": "Mask as_mask causal padding segments window",
        "multihead": "multi_head_attention multi_head_attention_with_cache multi_head_outputs "
        "multi_head_outputs_with_cache multi_head_weights multi_head_weights_with_cache",
        "norm": "layer_norm rms_norm",
        "params": "FeedForwardParams LayerParams MultiHeadParams NormParams StackParams",
        "request": "Dropout Request",
        "residual": "add_and_norm pre_norm",
        "rotary": "Rotary rotary",
        "shapes": "Span",
        "softmax": "merge_attention",
        "tape": "vjp",
    }.items()
    for name in names.split()
}


class _Package(ModuleType):
    """This package, whose names are found at their first use."""

    def __getattr__(self, name: str) -> Any:
        module = None if name.startswith("_") or not name.isidentifier() else _module(_HOMES.get(name, name))
        if module is None:
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg, name=name, obj=self)
        value = self.__dict__[name] = getattr(module, name) if name in _HOMES else module
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        """To import the module `attnspec.dropout` does not put it in the place of the function `attnspec.dropout`."""
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


def _module(name: str) -> ModuleType | None:
    """The module of that name in this package, None if there is none."""
    try:
        return import_module(f".{name}", __name__)
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        return None


sys.modules[__name__].__class__ = _Package
