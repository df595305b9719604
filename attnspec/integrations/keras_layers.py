"""Keras's `MultiHeadAttention` layer with attnspec's attention, on Keras's NumPy, JAX and PyTorch backends.

    from attnspec.integrations.keras_layers import MultiHeadAttention

`keras.install()` reaches the layers of models that exist; this layer takes dropout and the scores from attnspec too.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from .._compat import cast, namespace
from ..attention import attention, attention_weights
from ..errors import MissingFrameworkError, OptionError, ShapeError
from ..random import wrap
from ..request import Dropout
from .jax import heads_first
from .keras import BACKENDS


def __getattr__(name: str) -> Any:
    if name == "MultiHeadAttention":
        return _multi_head_attention()
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


@cache
def _multi_head_attention() -> Any:
    """The class, made when it is asked for, so that Keras is imported by those who want it."""
    try:
        keras: Any = import_module("keras")
    except ModuleNotFoundError as error:
        msg = "Keras is not installed: pip install keras."
        raise MissingFrameworkError(msg) from error

    @keras.saving.register_keras_serializable(package="attnspec")
    class MultiHeadAttention(keras.layers.MultiHeadAttention):  # type: ignore[misc]
        """`keras.layers.MultiHeadAttention`, in its words, computed by attnspec.

        softmax(key_dim**-0.5 * query @ key^T) @ value between Keras's own projections

        Parameters
        ----------
        *arguments, **options
            Of `keras.layers.MultiHeadAttention`; its weights, masks, saving and `get_config` are Keras's. Attention is
            along the one axis of rows of (B, rows, width), and `flash_attention=True` is refused.

        Raises
        ------
        errors.ShapeError
            When built on inputs of another rank.
        errors.OptionError
            For `flash_attention=True`; where Keras runs on a library without Array API arrays.

        Notes
        -----
        The output has the same bits with `return_attention_scores` and without. Scores are those before dropout.
        Dropout draws from the layer's seed: on JAX the entries that Keras would drop, and the same ones on NumPy and
        PyTorch, where Keras draws others. A row that sees nothing is 0 here and the mean of the values in Keras.
        Source: the documentation of Keras 3.15.

        Examples
        --------
        >>> import numpy as np
        >>> from attnspec.integrations.keras_layers import MultiHeadAttention  # doctest: +SKIP
        >>> MultiHeadAttention(num_heads=2, key_dim=4)(x, x, use_causal_mask=True)  # doctest: +SKIP
        """

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            if self._flash_attention:
                msg = "flash_attention=True asks for a kernel of the framework; None or False is needed."
                raise OptionError(msg)
            if keras.backend.backend() not in BACKENDS:
                msg = f"Keras runs on {keras.backend.backend()!r}; one of {', '.join(BACKENDS)} is needed."
                raise OptionError(msg)

        def build(self, query_shape: Any, value_shape: Any, key_shape: Any = None) -> None:
            for name, shape in (("query", query_shape), ("value", value_shape), ("key", key_shape)):
                if shape is not None and len(shape) != 3:
                    msg = f"{name} has shape {tuple(shape)}; (B, rows, width) is needed."
                    raise ShapeError(msg)
            super().build(query_shape, value_shape, key_shape)

        def _compute_attention(
            self,
            query: Any,
            key: Any,
            value: Any,
            attention_mask: Any = None,
            training: bool | None = None,
            return_attention_scores: bool = False,
        ) -> tuple[Any, Any]:
            """What Keras asks subclasses for: (B, Q, H, D), (B, K, H, D), (B, K, H, E) and a mask (B, Q, K)."""
            q, k, v = (heads_first(n, x) for n, x in (("query", query), ("key", key), ("value", value)))
            seen = attention_mask
            if seen is not None:
                seen = cast(seen, namespace(q).bool)
                seen = seen[:, None, :, :] if seen.ndim == 3 else seen
            dropout = None
            if training and self._dropout > 0:
                dropout = Dropout(self._dropout, wrap(self._dropout_layer.seed_generator.next()))
            out = heads_first("output", attention(q, k, v, mask=seen, dropout=dropout))
            return out, attention_weights(q, k, mask=seen) if return_attention_scores else None

    MultiHeadAttention.__module__, MultiHeadAttention.__qualname__ = __name__, "MultiHeadAttention"
    return MultiHeadAttention
