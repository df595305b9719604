"""What the inputs and attributes of ONNX's operators mean: layouts of heads, caches, masks, precisions."""

from __future__ import annotations

import math

from .._compat import FLOATING, Array, dtype_name, is_array, namespace
from ..errors import MaskError, OptionError, ShapeError
from ..host import beside, host_of
from ..shapes import floating
from .jax import each_length

FLOAT, FLOAT16, DOUBLE, BFLOAT16 = 1, 10, 11, 16  # TensorProto.DataType


def split(name: str, x: Array, attribute: str, heads: int | None) -> Array:
    """(B, H, S, D), from that or from (B, S, H * D)."""
    shape = tuple(x.shape)
    if x.ndim == 4:
        if heads and heads != shape[1]:
            msg = f"{name} {shape} has {shape[1]} heads, {attribute}={heads}: leave it out, an input of rank 4 says it."
            raise OptionError(msg)
        return x
    if x.ndim != 3:
        msg = f"{name} has shape {shape}: (batch, heads, length, width) or (batch, length, heads * width) is needed."
        raise ShapeError(msg)
    if type(heads) is not int or heads < 1:
        msg = f"{name} {shape} of rank 3 needs {attribute}, got {heads!r}: into how many heads is {shape[2]} cut?"
        raise OptionError(msg)
    if shape[2] % heads:
        msg = f"{name} {shape} cannot be cut into {attribute}={heads} heads: {shape[2]} is no multiple of {heads}."
        raise ShapeError(msg)
    xp = namespace(x)
    return xp.permute_dims(xp.reshape(x, (*shape[:2], heads, shape[2] // heads)), (0, 2, 1, 3))


def merged(x: Array) -> Array:
    """(B, S, H * D) from (B, H, S, D)."""
    xp = namespace(x)
    B, H, S, D = x.shape
    return xp.reshape(xp.permute_dims(x, (0, 2, 1, 3)), (B, S, H * D))


def cached(
    q: Array, k: Array, v: Array, past_key: Array | None, past_value: Array | None, lengths: Array | None
) -> tuple[Array, Array, int | Array]:
    """The keys and values after those of the cache, and where the first query stands among them."""
    if (past_key is None) != (past_value is None):
        given, missing = ("past_key", "past_value") if past_value is None else ("past_value", "past_key")
        msg = f"{given} without {missing}: a cache holds both. Pass both, or neither."
        raise OptionError(msg)
    if past_key is not None and lengths is not None:
        msg = "nonpad_kv_seqlen with past_key: it counts the keys of a cache that K already holds. Pass one of the two."
        raise OptionError(msg)
    if past_key is None or past_value is None:
        return k, v, 0 if lengths is None else _real_keys(lengths, q, k.shape[2]) - q.shape[2]
    floating(K=k, past_key=past_key)
    floating(V=v, past_value=past_value)
    for name, past, x in (("past_key", past_key, k), ("past_value", past_value, v)):
        if past.ndim != 4 or (*past.shape[:2], past.shape[3]) != (*x.shape[:2], x.shape[3]):
            needed = (*x.shape[:2], "P", x.shape[3])
            msg = f"{name} has shape {tuple(past.shape)}; {needed} is needed, to go before {tuple(x.shape)}."
            raise ShapeError(msg)
    xp = namespace(k)
    return xp.concat([past_key, k], axis=2), xp.concat([past_value, v], axis=2), past_key.shape[2]


def _real_keys(lengths: Array, q: Array, K: int) -> Array:
    """nonpad_kv_seqlen (B,), each from 0 to K where that may be looked at."""
    lengths = each_length("nonpad_kv_seqlen", lengths, q)
    xp = namespace(lengths)
    beyond = xp.logical_or(lengths < 0, lengths > K)
    if host_of(beyond).concrete(beyond) and xp.any(beyond):
        msg = f"nonpad_kv_seqlen={lengths}: lengths from 0 to K={K} are needed, the keys that there are."
        raise OptionError(msg)
    return lengths


def mask_or_bias(attn_mask: Array, K: int) -> tuple[Array | None, Array | None]:
    """`attn_mask` as the one or the other, filled up to K keys."""
    dtype = dtype_name(attn_mask) if is_array(attn_mask) else None
    boolean = dtype == "bool"
    if not boolean and dtype not in FLOATING:
        got = f"is a {type(attn_mask).__name__}" if dtype is None else f"has dtype {dtype}"
        msg = f"attn_mask {got}; an array of booleans (True = may attend) or of floats to add is needed."
        raise MaskError(msg)
    xp = namespace(attn_mask)
    short = K - attn_mask.shape[-1] if attn_mask.ndim else 0
    if short > 0:
        hidden = False if boolean else -math.inf
        tail = xp.full((*attn_mask.shape[:-1], short), hidden, dtype=attn_mask.dtype, **beside(attn_mask))
        attn_mask = xp.concat([attn_mask, tail], axis=-1)
    return (attn_mask, None) if boolean else (None, attn_mask)


def flag(name: str, x: int) -> bool:
    if x not in (0, 1):
        msg = f"{name}={x!r}: 0 or 1 is needed."
        raise OptionError(msg)
    return bool(x)


def bound(name: str, size: int) -> int | None:
    if type(size) is not int or size < -1:
        msg = f"{name}={size!r}: a whole number of keys >= 0 is needed, or -1 for unbounded."
        raise OptionError(msg)
    return None if size == -1 else size


def each_floating(**arrays: Array) -> None:
    """Refuse what is no floating array; the dtypes may differ."""
    for name, x in arrays.items():
        floating(**{name: x})


def least_dtype(softmax_precision: int | None) -> str | None:
    """What the softmax is to be computed in at least, where that is more than the inputs may be."""
    if softmax_precision not in (None, FLOAT, FLOAT16, DOUBLE, BFLOAT16):
        msg = (
            f"softmax_precision={softmax_precision!r}: 1 (FLOAT), 10 (FLOAT16), 11 (DOUBLE) or 16 (BFLOAT16) is needed."
        )
        raise OptionError(msg)
    return "float64" if softmax_precision == DOUBLE else None
