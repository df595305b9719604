"""What PyTorch's attention functions are given, as attnspec takes it: masks, projections, added keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .._compat import FLOATING, Array, dtype_name, is_array, namespace
from ..errors import DTypeError, OptionError, ShapeError
from ..host import beside
from ..linear import into_heads
from ..masks import Mask, as_mask
from ..shapes import Shape, expect, floating
from ..terms import Bias, as_bias


def selecting_or_added(mask: Array | None) -> tuple[Any, Array | None]:
    """(mask, bias) of an argument that is either: booleans select, floats are added."""
    if is_array(mask) and dtype_name(mask) in FLOATING:
        return None, mask
    return None if mask is None else as_mask(mask), None


def projections(
    separate: bool, packed: Array | None, single: Sequence[Array | None], bias: Array | None, M: int
) -> tuple[list[Array], list[Array | None]]:
    """The weights (M, C) and biases (M,) of query, key and value."""
    of_each = dict(zip(("q_proj_weight", "k_proj_weight", "v_proj_weight"), single, strict=True))
    needed: dict[str, Any] = of_each if separate else {"in_proj_weight": packed}
    if any(w is None for w in needed.values()):
        msg = f"use_separate_proj_weight={separate} needs {', '.join(needed)}; got None."
        raise OptionError(msg)
    floating(**given(**needed, in_proj_bias=bias))
    expect("in_proj_bias", bias, (3 * M,), "(3 M,)")
    third = [slice(n * M, (n + 1) * M) for n in range(3)]
    biases = [None if bias is None else bias[rows] for rows in third]
    if separate:
        return list(single), biases
    expect("in_proj_weight", packed, (3 * M, M), "(3 M, M)")
    return [needed["in_proj_weight"][rows, :] for rows in third], biases


def given(**arrays: Array | None) -> dict[str, Array]:
    """Those that are not None."""
    return {name: x for name, x in arrays.items() if x is not None}


def check_widths(query: Array, key: Array, value: Array, weights: Sequence[Array], M: int, H: int) -> None:
    """Refuse heads that do not divide M, and arrays that do not fit their weights."""
    floating(query=query, key=key, value=value, weights=weights[0])
    if type(H) is not int or H < 1 or M % H != 0:
        msg = f"num_heads={H!r}: a whole number >= 1 that divides embed_dim_to_check={M} is needed."
        raise OptionError(msg)
    ranks = [x.ndim for x in (query, key, value)]
    if ranks not in ([2, 2, 2], [3, 3, 3]):
        shapes = ", ".join(str(tuple(x.shape)) for x in (query, key, value))
        msg = f"query, key and value have shapes {shapes}; (rows, B, width) of all, or (rows, width), is needed."
        raise ShapeError(msg)
    expect("query", query, (*query.shape[:-1], M), "(..., M)")
    for name, x, w in zip(("query", "key", "value"), (query, key, value), weights, strict=True):
        expect(f"the weights of {name}", w, (M, x.shape[-1]), f"(M, width of {name})")


def check_after_projection(
    query: Array, weight: Array, bias: Array | None, bias_k: Array | None, bias_v: Array | None, M: int
) -> None:
    """Refuse an output projection, or a key and value to be added, that do not fit."""
    floating(query=query, **given(out_proj_weight=weight, out_proj_bias=bias, bias_k=bias_k, bias_v=bias_v))
    expect("out_proj_weight", weight, (M, M), "(M, M)")
    expect("out_proj_bias", bias, (M,), "(M,)")
    if (bias_k is None) != (bias_v is None):
        msg = "one of bias_k and bias_v without the other: a key needs its value."
        raise OptionError(msg)
    for name, row in given(bias_k=bias_k, bias_v=bias_v).items():
        expect(name, row, (*(1 for _ in row.shape[:-1]), M), "(1, 1, M)")


def batch_first(x: Array) -> Array:
    """(rows, B, width) -> (B, rows, width), and back."""
    return namespace(x).permute_dims(x, (1, 0, 2))


def into(x: Array, w: Array, b: Array | None, H: int) -> Array:
    """(..., rows, C) by (M, C) -> (..., H, rows, M / H)."""
    xp, (M, C) = namespace(x), w.shape
    of_heads = xp.permute_dims(xp.reshape(w, (H, M // H, C)), (2, 0, 1))
    return into_heads(x, of_heads, None if b is None else xp.reshape(b, (H, M // H)))


def replaced(projected: Array, static: Array | None, name: str) -> Array:
    """`static` (B * H, K, D) as (..., H, K, D) in the place of what was projected, if it is given."""
    if static is None:
        return projected
    *lead, H, _, D = projected.shape
    floating(**{name: static})
    expect(name, static, (math.prod(lead) * H, *static.shape[1:2], D), "(B * H, K, D)")
    return namespace(static).reshape(static, (*lead, H, *static.shape[1:]))


def appended(x: Array, row: Array | None) -> Array:
    """One more row behind (..., H, K, D): M numbers, or zeros."""
    xp, (*lead, H, _, D) = namespace(x), x.shape
    last = xp.zeros((H, 1, D), dtype=x.dtype, **beside(x)) if row is None else xp.reshape(row, (H, 1, D))
    return xp.concat([x, xp.broadcast_to(last, (*lead, H, 1, D))], axis=-2)


def hiding(
    attn_mask: Array | None, key_padding_mask: Array | None, scores: Shape, more: int
) -> tuple[Mask | None, Bias | None]:
    """(mask, bias) of masks in which True = hidden from `scores` (..., H, Q, K), with `more` keys behind for all."""
    for name, x in given(attn_mask=attn_mask, key_padding_mask=key_padding_mask).items():
        if not is_array(x):
            msg = f"{name} is a {type(x).__name__}; a boolean or floating array is needed. Make one with `asarray`."
            raise DTypeError(msg)
    *lead, H, Q, K = scores
    pairs = (Q, K) if attn_mask is None or attn_mask.ndim == 2 else (math.prod(lead) * H, Q, K)
    expect("attn_mask", attn_mask, pairs, "(Q, K) or (B * H, Q, K)")
    expect("key_padding_mask", key_padding_mask, (*lead, K), "(B, K), or (K,) without batch")
    mask: Any = None
    bias: Any = None
    for x, shape in ((attn_mask, pairs if len(pairs) == 2 else scores), (key_padding_mask, (*lead, 1, 1, K))):
        if x is None:
            continue
        xp = namespace(x)
        hidden, added = selecting_or_added(x)
        x = xp.reshape(x, shape)
        if more:
            x = xp.concat([x, xp.zeros((*shape[:-1], more), dtype=x.dtype, **beside(x))], axis=-1)
        if added is not None:
            bias = x if bias is None else as_bias(bias) + x
        elif hidden is not None:
            seen = as_mask(xp.logical_not(x))
            mask = seen if mask is None else mask & seen
    return mask, bias
