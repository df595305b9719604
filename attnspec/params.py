"""Parameters as frozen dataclasses of arrays: made, taken apart, put together, saved and loaded.

They are pytrees (`struct.py`): gradients with respect to them come in the same classes. Ints, strings and floats in
them are static. Weights keep their head axis and contract their first axes, so `x @ w` reads as in the paper.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from os import PathLike
from typing import Any, Literal

from . import _compat, random
from ._compat import Array
from .errors import OptionError, ShapeError
from .shapes import named_dtype, of_type, zeros
from .struct import Struct, arrays_in, with_arrays

Order = Literal["post", "pre"]
NormKind = Literal["layer", "rms"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]


@dataclass(frozen=True)
class MultiHeadParams(Struct):
    """The weights of `multi_head_attention`: W_Q, W_K, W_V, W_O and their biases, each with its head axis."""

    wq: Array  # (M, H, D)
    wk: Array  # (C, G, D), C = M unless the context has a width of its own
    wv: Array  # (C, G, E)
    wo: Array  # (H, E, M)
    bq: Array | None = None  # (H, D)
    bk: Array | None = None  # (G, D)
    bv: Array | None = None  # (G, E)
    bo: Array | None = None  # (M,)

    @classmethod
    def init(
        cls,
        rng: random.Key,
        *,
        model_width: int,
        heads: int,
        kv_heads: int | None = None,
        head_width: int | None = None,
        value_width: int | None = None,
        context_width: int | None = None,
        use_bias: bool = True,
        dtype: str = "float32",
        like: Any,
    ) -> MultiHeadParams:
        """Normal weights of variance 1 / fan-in, zero biases: the same on every backend.

        `like` is an array or a namespace, where the arrays belong. Defaults: kv_heads = heads,
        head_width = model_width // heads, value_width = head_width, context_width = model_width.
        """
        G = heads if kv_heads is None else kv_heads
        D = _share(model_width, heads) if head_width is None else head_width
        E = D if value_width is None else value_width
        C = model_width if context_width is None else context_width
        if G < 1 or heads % G:
            msg = f"query heads must be a multiple of key/value heads: heads={heads}, kv_heads={G}."
            raise ShapeError(msg)
        q, k, v, o = random.split(rng, 4)
        offset = (lambda *shape: zeros(shape, dtype, like)) if use_bias else _none
        return cls(
            _normal(q, (model_width, heads, D), model_width, dtype, like),
            _normal(k, (C, G, D), C, dtype, like),
            _normal(v, (C, G, E), C, dtype, like),
            _normal(o, (heads, E, model_width), heads * E, dtype, like),
            offset(heads, D), offset(G, D), offset(G, E), offset(model_width),
        )  # fmt: skip


@dataclass(frozen=True)
class NormParams(Struct):
    """Gain, offset and kind of a normalisation."""

    gamma: Array | None  # (M,)
    beta: Array | None = None  # (M,), layer norm only
    kind: NormKind = "layer"
    eps: float = 1e-5

    @classmethod
    def init(
        cls, *, width: int, kind: NormKind = "layer", eps: float = 1e-5, dtype: str = "float32", like: Any
    ) -> NormParams:
        """Gain 1, offset 0."""
        blank = zeros((width,), dtype, like)
        return cls(blank + 1, blank if kind == "layer" else None, kind, eps)


@dataclass(frozen=True)
class FeedForwardParams(Struct):
    """The weights of `feed_forward`; with `w_gate` the activation gates a second map (GLU)."""

    w_in: Array  # (M, F)
    w_out: Array  # (F, M)
    b_in: Array | None = None  # (F,)
    b_out: Array | None = None  # (M,)
    w_gate: Array | None = None  # (M, F)
    activation: Activation = "gelu"

    @classmethod
    def init(
        cls,
        rng: random.Key,
        *,
        model_width: int,
        hidden_width: int,
        activation: Activation = "gelu",
        gated: bool = False,
        use_bias: bool = True,
        dtype: str = "float32",
        like: Any,
    ) -> FeedForwardParams:
        """Normal weights of variance 1 / fan-in, zero biases."""
        M, F = model_width, hidden_width
        into, out, gate = random.split(rng, 3)
        offset = (lambda *shape: zeros(shape, dtype, like)) if use_bias else _none
        return cls(
            _normal(into, (M, F), M, dtype, like),
            _normal(out, (F, M), F, dtype, like),
            offset(F),
            offset(M),
            _normal(gate, (M, F), M, dtype, like) if gated else None,
            activation,
        )


@dataclass(frozen=True)
class LayerParams(Struct):
    """One Transformer layer: attention and feed-forward, each in a skip connection of the given order."""

    attention: MultiHeadParams
    feed_forward: FeedForwardParams
    norm_attention: NormParams
    norm_feed_forward: NormParams
    order: Order

    @classmethod
    def init(
        cls,
        rng: random.Key,
        *,
        model_width: int,
        heads: int,
        hidden_width: int,
        order: Order,
        kv_heads: int | None = None,
        head_width: int | None = None,
        value_width: int | None = None,
        norm: NormKind = "layer",
        eps: float = 1e-5,
        activation: Activation = "gelu",
        gated: bool = False,
        use_bias: bool = True,
        dtype: str = "float32",
        like: Any,
    ) -> LayerParams:
        """A fresh layer; `order` has no default, because the two orders are different functions."""
        if order not in ("post", "pre"):
            msg = f'order={order!r}: "post" (norm after the sum) or "pre" (norm before the sublayer) is needed.'
            raise OptionError(msg)
        for_attention, for_feed_forward = random.split(rng)
        normed = NormParams.init(width=model_width, kind=norm, eps=eps, dtype=dtype, like=like)
        return cls(
            MultiHeadParams.init(
                for_attention, model_width=model_width, heads=heads, kv_heads=kv_heads, head_width=head_width,
                value_width=value_width, use_bias=use_bias, dtype=dtype, like=like,
            ),
            FeedForwardParams.init(
                for_feed_forward, model_width=model_width, hidden_width=hidden_width, activation=activation,
                gated=gated, use_bias=use_bias, dtype=dtype, like=like,
            ),
            normed, normed, order,
        )  # fmt: skip


@dataclass(frozen=True)
class StackParams(Struct):
    """Layers one after another, and a last normalisation where the layers are pre-norm."""

    layers: tuple[LayerParams, ...]
    norm: NormParams | None = None

    @classmethod
    def init(cls, rng: random.Key, *, depth: int, order: Order, **layer: Any) -> StackParams:
        """`depth` fresh layers (options as in `LayerParams.init`); pre-norm stacks end with a norm."""
        layers = tuple(LayerParams.init(r, order=order, **layer) for r in random.split(rng, depth))
        if order == "post":
            return cls(layers)
        options = {name: layer[name] for name in ("eps", "dtype", "like") if name in layer}
        return cls(layers, NormParams.init(width=layer["model_width"], kind=layer.get("norm", "layer"), **options))


CLASSES: dict[str, type[Struct]] = {
    cls.__name__: cls for cls in (MultiHeadParams, NormParams, FeedForwardParams, LayerParams, StackParams)
}


def flatten(params: Struct) -> dict[str, Array]:
    """Arrays by dotted name, such as "layers.0.attention.wq".

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> norm = attnspec.NormParams.init(width=3, like=np)
    >>> sorted(attnspec.params.flatten(norm))
    ['beta', 'gamma']
    """
    of_type("params", params, Struct)
    return {name[1:]: x for name, x in arrays_in("", params).items()}


def unflatten(like: Struct, arrays: Mapping[str, Array]) -> Any:
    """The structure of `like`, a Struct of yours too, with other arrays: one for every name of `flatten`, and no other.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> norm = attnspec.NormParams.init(width=3, like=np)
    >>> doubled = {name: 2 * x for name, x in attnspec.params.flatten(norm).items()}
    >>> attnspec.params.unflatten(norm, doubled).gamma.tolist()
    [2.0, 2.0, 2.0]
    """
    missing = sorted(set(flatten(like)) - set(arrays))
    if missing:
        msg = f"the array {missing[0]!r} is missing; there are {', '.join(sorted(arrays))}."
        raise OptionError(msg)
    _refuse_strangers(set(arrays) - set(flatten(like)))
    return with_arrays("", like, {f".{name}": x for name, x in arrays.items()})


def _refuse_strangers(names: set[str]) -> None:
    if names:
        msg = f"arrays that the structure has no place for: {', '.join(sorted(names))}."
        raise OptionError(msg)


def save(path: str | PathLike[str], params: Struct, *, backend: Any) -> None:
    """Write parameters to a safetensors file, their structure in its metadata. Never pickle.

    `backend` (see `attnspec.backend`) brings the arrays to NumPy; bfloat16 is stored as `backend.to_numpy` gives it.

    Examples
    --------
    >>> import tempfile, attnspec
    >>> from attnspec.backend import numpy as backend
    >>> norm = attnspec.NormParams.init(width=3, like=backend.xp)
    >>> with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
    ...     attnspec.params.save(file.name, norm, backend=backend)
    ...     attnspec.params.load(file.name, backend=backend).gamma.tolist()
    [1.0, 1.0, 1.0]
    """
    from safetensors.numpy import save_file

    # Copied, because safetensors writes the buffer as it lies, whatever the strides.
    arrays = {name: backend.to_numpy(x).copy(order="C") for name, x in flatten(params).items()}
    save_file(arrays, path, metadata={"attnspec": json.dumps(_described(params))})


def load(path: str | PathLike[str], *, backend: Any, dtype: str | None = None, device: Any = None) -> Any:
    """Read parameters that `save` wrote, as arrays of `backend`."""
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        described = (file.metadata() or {}).get("attnspec")
        if described is None:
            msg = f"{path} holds no structure of attnspec's; it has {len(file.keys())} arrays. Use safetensors itself."
            raise OptionError(msg)
        arrays = {n: backend.asarray(file.get_tensor(n), dtype=dtype, device=device) for n in sorted(file.keys())}
    return _rebuild(json.loads(described), arrays)


def _described(value: Any) -> Any:
    """The structure as JSON: {"type": class, field: ...}, lists for tuples, "array", {"value": plain}."""
    if isinstance(value, Struct):
        parts = {f.name: _described(getattr(value, f.name)) for f in fields(value)}  # type: ignore[arg-type]
        return {"type": type(value).__name__, **parts}
    if isinstance(value, tuple):
        return [_described(v) for v in value]
    return "array" if _compat.is_array(value) else {"value": value}


def _rebuild(described: Any, arrays: Mapping[str, Array]) -> Any:
    used: set[str] = set()

    def build(part: Any, name: str) -> Any:
        if part == "array":
            used.add(name)
            return arrays[name]
        if isinstance(part, list):
            return tuple(build(p, f"{name}.{n}" if name else str(n)) for n, p in enumerate(part))
        if "type" not in part:
            return part["value"]
        inner = {n: build(p, f"{name}.{n}" if name else n) for n, p in part.items() if n != "type"}
        return CLASSES[part["type"]](**inner)

    try:
        built = build(described, "")
    except KeyError as error:
        msg = f"the array or class {error} is missing; there are {', '.join(sorted(arrays))}."
        raise OptionError(msg) from None
    _refuse_strangers(set(arrays) - used)
    return built


def _share(width: int, heads: int) -> int:
    if heads < 1 or width % heads:
        msg = f"model_width={width} is no multiple of heads={heads}; pass head_width."
        raise ShapeError(msg)
    return width // heads


def _normal(rng: random.Key, shape: tuple[int, ...], fan_in: int, dtype: str, like: Any) -> Array:
    drawn = random.normal(rng, shape, dtype="float64" if dtype == "float64" else "float32", like=like)
    return _compat.namespace(drawn).astype(drawn / math.sqrt(fan_in), named_dtype(dtype, drawn))


def _none(*shape: int) -> None:
    return None
