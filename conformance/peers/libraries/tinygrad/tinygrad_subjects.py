"""tinygrad's attention, on its CPU device, which compiles C: by the system's clang, or by the one of ziglang."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("DEV", "CPU")
if shutil.which("clang") is None and (zig := find_spec("ziglang")) is not None and zig.origin is not None:
    os.environ["ZIG"] = str(Path(zig.origin).with_name("zig"))
    os.environ["CC"] = str(Path(__file__).with_name("clang").resolve())

import numpy as np
from attnspec_conformance.adapters import Adapter, Flag, Pairs
from tinygrad import Context, Tensor, dtypes
from wrapping import Bridged, of_one_argument


def _attend(q: Any, k: Any, v: Any, **named: Any) -> Any:
    return _to_numpy(_asked(*map(_tensor, (q, k, v)), **named), q)


def _gradients(dout: Any, q: Any, k: Any, v: Any, **named: Any) -> Any:
    inputs = [_tensor(x) for x in (q, k, v)]
    gradients = _asked(*inputs, **named).gradient(*inputs, gradient=_tensor(dout))
    return tuple(_to_numpy(x, q) for x in gradients)


def _asked(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Any = None, bias: Any = None, causal: bool = False, rate: float = 0.0
) -> Tensor:
    """A mask and a bias share an argument, in which minus infinity is added where the mask is False."""
    if mask is not None and bias is not None:
        mask = np.where(mask, bias, bias.dtype.type(-np.inf))
    given = bias if mask is None else mask
    with Context(TRAINING=1):  # without which there is no dropout
        return q.scaled_dot_product_attention(
            k, v, None if given is None else _tensor(given), rate, causal, enable_gqa=q.shape[-3] != k.shape[-3]
        )


def _tensor(x: Any) -> Tensor:
    """bfloat16 by way of float32, which has each of its numbers, both ways: tinygrad and NumPy exchange none."""
    if x.dtype.name == "bfloat16":
        return Tensor(x.astype(np.float32)).cast(dtypes.bfloat16)
    return Tensor(np.ascontiguousarray(x))


def _to_numpy(x: Tensor, like: Any) -> Any:
    if x.dtype == dtypes.bfloat16:
        return x.cast(dtypes.float32).numpy().astype(like.dtype)
    return x.numpy()


sdpa = Bridged(
    Adapter(
        name="tinygrad",
        kernel=_attend,
        capabilities=("float64", "float16", "bfloat16", "vjp"),
        leading=None,
        grouped=True,
        mask=Pairs("mask"),
        causal=Flag("causal"),
        arguments={"bias": "bias", "rate": "rate"},
        limits=of_one_argument,
        refusals=(ValueError, TypeError, RuntimeError, AssertionError, IndexError),
    ),
    _gradients,
)
