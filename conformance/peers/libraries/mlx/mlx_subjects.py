"""MLX's fused attention, on its CPU."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np
from attnspec_conformance.adapters import Adapter, Flag, Pairs
from wrapping import Bridged, of_one_argument

mx.set_default_device(mx.cpu)


def _attend(q: Any, k: Any, v: Any, **named: Any) -> Any:
    return _to_numpy(_function(q.shape[-1], **named)(*map(_to_mlx, (q, k, v))))


def _gradients(dout: Any, q: Any, k: Any, v: Any, **named: Any) -> Any:
    inputs = [_to_mlx(x) for x in (q, k, v)]
    return tuple(map(_to_numpy, mx.vjp(_function(q.shape[-1], **named), inputs, [_to_mlx(dout)])[1]))


def _function(
    D: int, *, mask: Any = None, bias: Any = None, causal: bool = False, scale: float | None = None, sinks: Any = None
) -> Any:
    """A mask and a bias share an argument, in which minus infinity is added where the mask is False."""
    if mask is not None and bias is not None:
        mask = np.where(mask, bias, bias.dtype.type(-np.inf))
    given = bias if mask is None else mask
    options = {
        "scale": (D**-0.5 if D else 1.0) if scale is None else scale,
        "mask": "causal" if causal else None if given is None else _to_mlx(given),
        "sinks": None if sinks is None else _to_mlx(sinks),
    }

    def function(q: Any, k: Any, v: Any) -> Any:
        return mx.fast.scaled_dot_product_attention(q, k, v, **options)

    return function


def _to_mlx(x: Any) -> Any:
    return mx.array(x, getattr(mx, "bool_" if x.dtype == bool else x.dtype.name))


def _to_numpy(x: Any) -> Any:
    """bfloat16 by way of float32, which has each of its numbers: MLX gives NumPy no bfloat16."""
    return np.array(x.astype(mx.float32)).astype(ml_dtypes.bfloat16) if x.dtype == mx.bfloat16 else np.array(x)


fast = Bridged(
    Adapter(
        name="mlx.fast",
        kernel=_attend,
        capabilities=("float64", "float16", "bfloat16", "vjp"),
        grouped=True,
        mask=Pairs("mask"),
        causal=Flag("causal", align="end"),
        arguments={"scale": "scale", "bias": "bias", "sink": "sinks"},
        limits=of_one_argument,
        refusals=(ValueError, TypeError, RuntimeError),
    ),
    _gradients,
)
