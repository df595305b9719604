"""Multi-head attention: project, split, attend, merge, project."""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

from . import _compat
from ._compat import Array
from .attention import attention, attention_weights
from .cache import Cache
from .errors import OptionError, ShapeError
from .host import beside, host_of
from .linear import into_heads, out_of_heads
from .masks import Mask, as_mask, causal
from .params import MultiHeadParams
from .request import Dropout, checked_options
from .rotary import Rotary
from .shapes import Axes, broadcast_shapes, expect, floating, of_type, together
from .struct import arrays_in
from .terms import Bias


class AttentionOptions(TypedDict, total=False):
    """The options that multi-head functions and layers hand to `attention`; they mean there what they mean here."""

    mask: Mask | Array | None
    bias: Bias | Array | None
    scale: float | Array | None
    softcap: float | Array | None
    sink: float | Array | None
    dropout: Dropout | None
    q_positions: Array | range | None
    k_positions: Array | range | None
    implementation: str


def multi_head_attention(
    params: MultiHeadParams,
    x: Array,
    context: Array | None = None,
    *,
    rotary: Rotary | None = None,
    **options: Unpack[AttentionOptions],
) -> Array:
    """MultiHead(x) = concat(head_1 .. head_H) W_O + b_O,  head_h = attention(x W_Q_h, c W_K_g, c W_V_g).

    Parameters
    ----------
    params : MultiHeadParams
        wq (M, H, D), wk (C, G, D), wv (C, G, E), wo (H, E, M); biases or None. g = h // (H // G).
    x : floating array (..., Q, M)
    context : floating array (..., K, C), optional
        Where keys and values come from: x itself unless given (cross-attention).
    rotary : Rotary, optional
        Turn queries and keys by their positions.
    **options
        mask, bias, scale (default D**-0.5, never M**-0.5), softcap, sink, dropout, q_positions, k_positions,
        implementation: as in `attention`.

    Returns
    -------
    array (..., Q, M)

    Notes
    -----
    Clauses MULTIHEAD-1 to 3. torch.nn.MultiheadAttention takes True = masked and (Q, B, M) by default; here it is
    True = may attend and (B, Q, M). Source: Vaswani et al., 2017; Ainslie et al. (grouped heads), 2023.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> params = attnspec.MultiHeadParams.init(attnspec.random.key(0), model_width=8, heads=2, like=np)
    >>> x = np.ones((3, 5, 8), np.float32)
    >>> attnspec.multi_head_attention(params, x, mask=attnspec.causal()).shape
    (3, 5, 8)
    """
    with host_of(x).scope():
        heads = multi_head_outputs(params, x, context, rotary=rotary, **options)
        return out_of_heads(heads, params.wo, params.bo)


def multi_head_outputs(
    params: MultiHeadParams,
    x: Array,
    context: Array | None = None,
    *,
    rotary: Rotary | None = None,
    **options: Unpack[AttentionOptions],
) -> Array:
    """What each head has to say, (..., H, Q, E), before W_O mixes them. Parameters as `multi_head_attention`.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> params = attnspec.MultiHeadParams.init(attnspec.random.key(0), model_width=8, heads=2, like=np)
    >>> attnspec.multi_head_outputs(params, np.ones((5, 8), np.float32)).shape
    (2, 5, 4)
    """
    with host_of(x).scope():
        q, k, v = _project(params, x, context, rotary, options)
        return attention(q, k, v, **options)


def multi_head_weights(
    params: MultiHeadParams,
    x: Array,
    context: Array | None = None,
    *,
    rotary: Rotary | None = None,
    **options: Unpack[AttentionOptions],
) -> Array:
    """The weights of each head, (..., H, Q, K), before dropout. Parameters as `multi_head_attention`.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> params = attnspec.MultiHeadParams.init(attnspec.random.key(0), model_width=8, heads=2, like=np)
    >>> attnspec.multi_head_weights(params, np.ones((5, 8), np.float32)).shape
    (2, 5, 5)
    """
    with host_of(x).scope():
        q, k, _ = _project(params, x, context, rotary, options)
        return attention_weights(q, k, **_of_weights(options))


def multi_head_attention_with_cache(
    params: MultiHeadParams,
    x: Array,
    cache: Cache,
    *,
    rotary: Rotary | None = None,
    **options: Unpack[AttentionOptions],
) -> tuple[Array, Cache]:
    """Causal multi-head attention of the next rows against all rows so far: (y (..., Q, M), the longer cache).

    The rows of x stand at positions `cache.length, cache.length + 1, ...`, so rules about positions (windows, ALiBi,
    rotary) mean the whole sequence; a mask of yours is combined with `causal()`. Array masks and biases have the keys
    of the result: `cache.length + Q` of them, or, where the length is an array, `cache.capacity`.

    Notes
    -----
    Clause MULTIHEAD-4: a prefill and any split into further steps equal one causal call.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> params = attnspec.MultiHeadParams.init(attnspec.random.key(0), model_width=8, heads=2, like=np)
    >>> x = np.linspace(0, 1, 24, dtype=np.float32).reshape(3, 8)
    >>> cache = attnspec.Cache.of(params, capacity=4)
    >>> first, cache = attnspec.multi_head_attention_with_cache(params, x[:2], cache)
    >>> last, cache = attnspec.multi_head_attention_with_cache(params, x[2:], cache)
    >>> whole = attnspec.multi_head_attention(params, x, mask=attnspec.causal())
    >>> bool(np.allclose(np.concatenate([first, last]), whole, atol=1e-6))
    True
    """
    q, k, v, placed, longer = _project_with_cache(params, x, cache, rotary, options)
    with host_of(x).scope():
        y = out_of_heads(attention(q, k, v, **placed), params.wo, params.bo)
        return _nan_past_the_end(y, longer.length, 2), longer


def multi_head_outputs_with_cache(
    params: MultiHeadParams,
    x: Array,
    cache: Cache,
    *,
    rotary: Rotary | None = None,
    **options: Unpack[AttentionOptions],
) -> tuple[Array, Cache]:
    """`multi_head_outputs` of the next rows, as `multi_head_attention_with_cache`: (..., H, Q, E), and the cache.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> params = attnspec.MultiHeadParams.init(attnspec.random.key(0), model_width=8, heads=2, like=np)
    >>> cache = attnspec.Cache.of(params, capacity=9)
    >>> attnspec.multi_head_outputs_with_cache(params, np.ones((5, 8), np.float32), cache)[0].shape
    (2, 5, 4)
    """
    q, k, v, placed, longer = _project_with_cache(params, x, cache, rotary, options)
    return _nan_past_the_end(attention(q, k, v, **placed), longer.length, 3), longer


def multi_head_weights_with_cache(
    params: MultiHeadParams,
    x: Array,
    cache: Cache,
    *,
    rotary: Rotary | None = None,
    **options: Unpack[AttentionOptions],
) -> tuple[Array, Cache]:
    """`multi_head_weights` of the next rows, as `multi_head_attention_with_cache`: (..., H, Q, K), and the cache.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> params = attnspec.MultiHeadParams.init(attnspec.random.key(0), model_width=8, heads=2, like=np)
    >>> cache = attnspec.Cache.of(params, capacity=9)
    >>> attnspec.multi_head_weights_with_cache(params, np.ones((5, 8), np.float32), cache)[0].shape
    (2, 5, 5)
    """
    q, k, _, placed, longer = _project_with_cache(params, x, cache, rotary, options)
    return _nan_past_the_end(attention_weights(q, k, **_of_weights(placed)), longer.length, 3), longer


def _project_with_cache(
    params: MultiHeadParams, x: Array, cache: Cache, rotary: Rotary | None, options: AttentionOptions
) -> tuple[Array, Array, Array, AttentionOptions, Cache]:
    """q of the next rows, k and v of all rows so far, the options with their positions, and the longer cache."""
    if "q_positions" in options or "k_positions" in options:
        msg = "positions come from the cache here; q_positions and k_positions are not taken."
        raise OptionError(msg)
    _refuse_unknown(options)
    of_type("cache", cache, Cache)
    if x.ndim < 2:
        msg = f"x has shape {tuple(x.shape)}; (..., rows, M) is needed."
        raise ShapeError(msg)
    positions = cache.positions(x.shape[-2])
    of_rows: AttentionOptions = {"q_positions": positions, "k_positions": positions}
    with host_of(x).scope():
        q, k, v = _project(params, x, None, rotary, of_rows)
        longer = cache.append(k, v)
        k, v = longer.rows_for(q)
        if isinstance(longer.length, int):
            k, v = k[..., : longer.length, :], v[..., : longer.length, :]
    mask = options.get("mask")
    seen = causal() if mask is None else causal() & as_mask(mask)
    return q, k, v, {**options, "q_positions": positions, "mask": seen}, longer


def _nan_past_the_end(y: Array, length: int | Array, trailing: int) -> Array:
    """NaN where the cache ran over (MULTIHEAD-4)."""
    if isinstance(length, int):
        return y
    xp = _compat.namespace(y)
    nothing = xp.asarray(float("nan"), dtype=y.dtype, **beside(y))
    return xp.where(length[(..., *(None,) * trailing)] < 0, nothing, y)


def _of_weights(options: AttentionOptions) -> dict[str, Any]:
    return {name: option for name, option in options.items() if name not in ("dropout", "implementation")}


def _project(
    params: MultiHeadParams, x: Array, context: Array | None, rotary: Rotary | None, options: AttentionOptions
) -> tuple[Array, Array, Array]:
    """q (..., H, Q, D), k (..., G, K, D), v (..., G, K, E), after everything is known to fit."""
    _refuse_unknown(options)
    if rotary is not None:
        of_type("rotary", rotary, Rotary)
    c = x if context is None else context
    axes = _axes(params, x, c)
    checked: dict[str, Any] = {name: option for name, option in options.items() if name != "implementation"}
    checked_options(axes, x, **checked)
    q = into_heads(x, params.wq, params.bq)
    k = into_heads(c, params.wk, params.bk)
    v = into_heads(c, params.wv, params.bv)
    if rotary is not None:
        q = rotary(q, _positions(options.get("q_positions"), q))
        k = rotary(k, _positions(options.get("k_positions"), k))
    return q, k, v


def _refuse_unknown(options: AttentionOptions) -> None:
    unknown = sorted(set(options) - set(AttentionOptions.__annotations__))
    if unknown:
        known = ", ".join(AttentionOptions.__annotations__)
        msg = f"unknown options {', '.join(unknown)}; there are {known}."
        raise OptionError(msg)


def _axes(params: MultiHeadParams, x: Array, c: Array) -> Axes:
    """The axes of the attention call, and a ShapeError for whatever does not fit it."""
    of_type("params", params, MultiHeadParams)
    floating(x=x, context=c, wq=params.wq, wk=params.wk, wv=params.wv, wo=params.wo)
    for name, a in (("x", x), ("context", c)):
        if a.ndim < 2:
            msg = f"{name} has shape {tuple(a.shape)}; (..., rows, width) is needed."
            raise ShapeError(msg)
    for name, w in (("wq", params.wq), ("wk", params.wk), ("wv", params.wv), ("wo", params.wo)):
        if w.ndim != 3:
            msg = f"{name} has shape {tuple(w.shape)}; three axes are needed, one of them the heads'."
            raise ShapeError(msg)
    (M, H, D), (C, G, _), E = params.wq.shape, params.wk.shape, params.wv.shape[2]
    for name, a, shape, letters in (
        ("x", x, (*x.shape[:-1], M), "(..., Q, M)"), ("context", c, (*c.shape[:-1], C), "(..., K, C)"),
        ("wk", params.wk, (C, G, D), "(C, G, D)"), ("wv", params.wv, (C, G, E), "(C, G, E)"),
        ("wo", params.wo, (H, E, *params.wo.shape[2:3]), "(H, E, M)"), ("bq", params.bq, (H, D), "(H, D)"),
        ("bk", params.bk, (G, D), "(G, D)"), ("bv", params.bv, (G, E), "(G, E)"),
        ("bo", params.bo, params.wo.shape[2:], "(M,)"),
    ):  # fmt: skip
        expect(name, a, shape, letters)
    together(x=x, **arrays_in("params", params))
    if (H % G if G else H) != 0:
        msg = f"query heads must be a multiple of key/value heads: wq has H={H}, wk has G={G}."
        raise ShapeError(msg)
    return Axes(broadcast_shapes(x.shape[:-2], c.shape[:-2]), H, G, x.shape[-2], c.shape[-2], D, E)


def _positions(positions: Array | range | None, x: Array) -> Array:
    if positions is not None and not isinstance(positions, range):
        return positions
    start = 0 if positions is None else positions.start
    return _compat.namespace(x).arange(start, start + x.shape[-2], **beside(x))
