"""The functions of `torch.nn.functional` that attnspec has a clause for, with PyTorch's signatures and conventions.

They take the arrays of any Array API library. What PyTorch means: True in the mask of
`scaled_dot_product_attention` = may attend, True in those of `multi_head_attention_forward` = hidden; a floating mask
is added; causal starts at the top left. What is attnspec's: a row that sees nothing is 0 and never NaN, weights are
those before dropout, and dropout takes a key, because a mask that cannot be drawn again cannot be checked.
"""

from __future__ import annotations

from typing import Any

from .. import _compat
from .._compat import Array, cast, widened
from ..attention import attention, attention_weights
from ..errors import OptionError, ShapeError
from ..host import beside, host_of
from ..linear import out_of_heads
from ..masks import causal, padding
from ..random import Key
from ..request import Dropout
from ..shapes import broadcast_shapes, floating, is_number
from .torch_inputs import (
    appended,
    batch_first,
    check_after_projection,
    check_widths,
    hiding,
    into,
    projections,
    replaced,
    selecting_or_added,
)
from .torch_norms import layer_norm, rms_norm

__all__ = ["layer_norm", "multi_head_attention_forward", "rms_norm", "scaled_dot_product_attention", "softmax"]


def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    rng: Key | None = None,
) -> Array:
    """`torch.nn.functional.scaled_dot_product_attention`.

    softmax(scale * query @ key^T + attn_mask) @ value

    Parameters
    ----------
    query, key, value : floating arrays (..., H, Q, D), (..., G, K, D), (..., G, K, E)
        Axes before the last two broadcast, heads too: equal, or 1. Rank 2 and more.
    attn_mask : boolean or floating array, broadcast from the right to (..., H, Q, K)
        True = may attend; a floating one is added to the scores.
    dropout_p : float
        Probability of dropping a weight. Needs `rng` unless it is 0; there is no training flag.
    is_causal : bool
        Key j is visible to query i iff j <= i (top left). Together with `attn_mask`: both hold, which PyTorch refuses.
    scale : float
        Default D**-0.5.
    enable_gqa : bool
        Query head h uses key/value head h // (H // G).
    rng : attnspec.random.Key

    Returns
    -------
    array (..., H, Q, E)

    Raises
    ------
    errors.ShapeError, errors.DTypeError, errors.MaskError, errors.DeviceError, errors.OptionError

    Notes
    -----
    PyTorch's CPU kernel gives 0 where all scores of a row are NaN; here it stays NaN (MASK-7).
    Source: the documentation of PyTorch 2.13.

    Examples
    --------
    >>> import numpy as np
    >>> q = k = np.zeros((2, 3, 4)); v = np.arange(6.0).reshape(2, 3, 1)
    >>> scaled_dot_product_attention(q, k, v, is_causal=True)[..., 0].tolist()
    [[0.0, 0.5, 1.0], [3.0, 3.5, 4.0]]
    """
    floating(query=query, key=key, value=value)
    mask, bias = selecting_or_added(attn_mask)
    if is_causal:
        mask = causal() if mask is None else causal() & mask
    if not enable_gqa:
        query, key, value = _with_equal_heads(query, key, value)
    return attention(query, key, value, mask=mask, bias=bias, scale=scale, dropout=_dropout(dropout_p, rng))


def _with_equal_heads(query: Array, key: Array, value: Array) -> tuple[Array, Array, Array]:
    """Heads broadcast like every other axis; a shared head of keys and values is left for `attention` to share."""
    H, G, Gv = (x.shape[-3] if x.ndim > 2 else 1 for x in (query, key, value))
    try:
        (heads,) = broadcast_shapes((H,), (G,), (Gv,))
    except ShapeError:
        msg = (
            f"heads must be equal or 1: query {tuple(query.shape)} has H={H}, key {tuple(key.shape)} has G={G}, value "
            f"{tuple(value.shape)} has {Gv}. enable_gqa=True shares key/value heads among the query heads."
        )
        raise ShapeError(msg) from None
    query = _spread(query, heads)
    return (query, key, value) if Gv == G else (query, _spread(key, heads), _spread(value, heads))


def _spread(x: Array, heads: int) -> Array:
    """(..., 1, rows, width) -> (..., heads, rows, width); what is no such array is left for `attention` to refuse."""
    if x.ndim < 2 or (x.shape[-3] if x.ndim > 2 else 1) == heads:
        return x
    return _compat.namespace(x).broadcast_to(x, (*x.shape[:-3], heads, *x.shape[-2:]))


def _dropout(rate: float, rng: Key | None) -> Dropout | None:
    if is_number(rate) and rate == 0:
        return None
    if rng is None:
        msg = f"dropout_p={rate!r} without rng: pass rng=attnspec.random.key(seed), so that the draw can be repeated."
        raise OptionError(msg)
    return Dropout(rate, rng)


def multi_head_attention_forward(
    query: Array,
    key: Array,
    value: Array,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Array | None,
    in_proj_bias: Array | None,
    bias_k: Array | None,
    bias_v: Array | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Array,
    out_proj_bias: Array | None,
    training: bool = True,
    key_padding_mask: Array | None = None,
    need_weights: bool = True,
    attn_mask: Array | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Array | None = None,
    k_proj_weight: Array | None = None,
    v_proj_weight: Array | None = None,
    static_k: Array | None = None,
    static_v: Array | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    *,
    rng: Key | None = None,
) -> tuple[Array, Array | None]:
    """`torch.nn.functional.multi_head_attention_forward`, what `nn.MultiheadAttention` computes.

    concat(head_1 .. head_H) W_O^T + b_O,   head_h = attention(query W_Q_h^T + b, key W_K_h^T + b, value W_V_h^T + b)

    Parameters
    ----------
    query, key, value : floating arrays (Q, B, M), (K, B, C), (K, B, C'), or without the batch axis
        C and C' other than M with `use_separate_proj_weight`.
    embed_dim_to_check, num_heads : int
        M, and H, which divides it.
    in_proj_weight, in_proj_bias : arrays (3 M, M), (3 M,)
        Those of query, key and value, one above the other.
    bias_k, bias_v : arrays of M numbers
        One more key and its value, after the projection, which every query may see.
    add_zero_attn : bool
        One more key and value of zeros, which every query may see.
    dropout_p, training
        Weights are dropped where `training` and `dropout_p` is not 0; that needs `rng`.
    out_proj_weight, out_proj_bias : arrays (M, M), (M,)
    key_padding_mask : boolean or floating array (B, K) or (K,)
        True = hidden from every query; a floating one is added to the scores.
    need_weights, average_attn_weights : bool
        Return the weights too, averaged over the heads or for each of them. The output is the same bits either way.
    attn_mask : boolean or floating array (Q, K) or (B * H, Q, K)
        True = hidden. With other masks: all of them hold.
    use_separate_proj_weight, q_proj_weight, k_proj_weight, v_proj_weight : bool, arrays (M, M), (M, C), (M, C')
        Instead of `in_proj_weight`.
    static_k, static_v : arrays (B * H, K, M / H)
        Projected keys and values in the place of what `key` and `value` give.
    is_causal : bool
        Key j of those given is visible to query i iff j <= i. PyTorch takes it for a hint that `attn_mask` says so.
    rng : attnspec.random.Key

    Returns
    -------
    out : array (Q, B, M), or (Q, M)
    weights : array (B, Q, K'), (B, H, Q, K'), the same without B, or None
        Before dropout (SOFTMAX-4), where PyTorch gives those after it. K' counts the added keys.

    Raises
    ------
    errors.ShapeError, errors.DTypeError, errors.MaskError, errors.DeviceError, errors.OptionError

    Notes
    -----
    A row that sees nothing is b_O here; PyTorch gives that or NaN, as `need_weights` or `training` has it.
    Source: the documentation of PyTorch 2.13.

    Examples
    --------
    >>> import numpy as np
    >>> x, w, b = np.ones((3, 2, 4)), np.ones((12, 4)), np.zeros(12)
    >>> y, weights = multi_head_attention_forward(
    ...     x, x, x, 4, 2, w, b, None, None, False, 0.0, np.eye(4), None, attn_mask=np.triu(np.ones((3, 3), bool), 1)
    ... )
    >>> y.shape, weights[0].round(2).tolist()
    ((3, 2, 4), [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.33, 0.33, 0.33]])
    """
    H, M = num_heads, embed_dim_to_check
    w, b = projections(
        use_separate_proj_weight, in_proj_weight, (q_proj_weight, k_proj_weight, v_proj_weight), in_proj_bias, M
    )
    check_widths(query, key, value, w, M, H)
    check_after_projection(query, out_proj_weight, out_proj_bias, bias_k, bias_v, M)
    dropped = _dropout(dropout_p, rng) if training else None
    batched, more = query.ndim == 3, int(bias_k is not None) + int(add_zero_attn)
    with host_of(query).scope():
        x = [batch_first(a) if batched else a for a in (query, key, value)]
        q, k, v = (into(a, of, to, H) for a, of, to in zip(x, w, b, strict=True))
        k, v = replaced(k, static_k, "static_k"), replaced(v, static_v, "static_v")
        K = k.shape[-2]
        mask, bias = hiding(attn_mask, key_padding_mask, (*query.shape[1:-1], H, query.shape[0], K), more)
        if is_causal:
            seen = causal() | ~padding(K) if more else causal()
            mask = seen if mask is None else seen & mask
        if bias_k is not None:
            k, v = appended(k, bias_k), appended(v, bias_v)
        if add_zero_attn:
            k, v = appended(k, None), appended(v, None)
        out = attention(q, k, v, mask=mask, bias=bias, dropout=dropped)
        xp = _compat.namespace(out)
        wo = xp.permute_dims(xp.reshape(out_proj_weight, (M, H, M // H)), (1, 2, 0))
        y = out_of_heads(out, wo, out_proj_bias)
        weights = None
        if need_weights:
            weights = attention_weights(q, k, mask=mask, bias=bias)
            if average_attn_weights:
                weights = cast(xp.mean(widened(weights), axis=-3), weights.dtype)
        return batch_first(y) if batched else y, weights


def softmax(input: Array, dim: int, dtype: Any = None) -> Array:
    """`torch.nn.functional.softmax` along an axis: exp(x) / sum exp(x).

    The weights of attention for scores that are all bias, so that a row of -inf is 0 (SOFTMAX-4), as in PyTorch's
    `_safe_softmax`; `torch.softmax` gives NaN.

    Parameters
    ----------
    input : floating array
    dim : int
    dtype : a floating dtype of the array's library
        Cast the input to it first.

    Examples
    --------
    >>> import numpy as np
    >>> softmax(np.asarray([[0.0, -np.inf], [0.0, -np.inf]]), 0).tolist()
    [[0.5, 0.0], [0.5, 0.0]]
    """
    xp = _compat.namespace(input)
    x = input if dtype is None else cast(input, dtype)
    floating(input=x)
    x = x[None] if x.ndim == 0 else x
    if type(dim) is not int or not -x.ndim <= dim < x.ndim:
        msg = f"dim={dim!r}: an axis of the input {tuple(input.shape)} is needed."
        raise OptionError(msg)
    last = [axis for axis in range(x.ndim) if axis != dim % x.ndim] + [dim % x.ndim]
    scores = xp.permute_dims(x, last)
    *rows, n = scores.shape
    q, k = (xp.zeros(shape, dtype=x.dtype, **beside(x)) for shape in ((*(rows or (1,)), 1), (n, 1)))
    p = attention_weights(q, k, bias=scores)
    p = p if rows else p[0, ...]
    return xp.reshape(xp.permute_dims(p, [last.index(axis) for axis in range(x.ndim)]), input.shape)
