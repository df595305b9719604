"""Multi-head attention: project, split, attend, merge, project."""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

from . import _compat
from ._compat import Array
from .attention import attention, attention_weights
from .bias import Bias
from .cache import Cache
from .errors import ShapeError
from .host import beside, host_of
from .linear import into_heads, out_of_heads
from .masks import Mask, as_mask, causal
from .params import MultiHeadParams
from .request import Dropout
from .rotary import Rotary
from .shapes import floating


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
        of_weights: dict[str, Any] = {n: o for n, o in options.items() if n not in ("dropout", "implementation")}
        return attention_weights(q, k, **of_weights)


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
    if "q_positions" in options or "k_positions" in options:
        msg = "positions come from the cache here; q_positions and k_positions are not taken."
        raise ShapeError(msg)
    with host_of(x).scope():
        positions = cache.positions(x.shape[-2])
        placed: AttentionOptions = {**options, "q_positions": positions, "k_positions": positions}
        q, k, v = _project(params, x, None, rotary, placed)
        longer = cache.append(k, v)
        k, v = longer.k, longer.v
        if isinstance(longer.length, int):
            k, v = k[..., : longer.length, :], v[..., : longer.length, :]
        mask = options.get("mask")
        placed = {**options, "q_positions": positions, "mask": causal() if mask is None else causal() & as_mask(mask)}
        y = out_of_heads(attention(q, k, v, **placed), params.wo, params.bo)
        if not isinstance(longer.length, int):
            xp = _compat.namespace(y)
            y = xp.where(longer.length[..., None, None] < 0, xp.asarray(float("nan"), dtype=y.dtype, **beside(y)), y)
        return y, longer


def _project(
    params: MultiHeadParams, x: Array, context: Array | None, rotary: Rotary | None, options: AttentionOptions
) -> tuple[Array, Array, Array]:
    """q (..., H, Q, D), k (..., G, K, D), v (..., G, K, E)."""
    c = x if context is None else context
    floating(x=x, context=c, **{n: w for n in ("wq", "wk", "wv", "wo") if (w := getattr(params, n)) is not None})
    for name, a, width in (("x", x, params.wq.shape[0]), ("context", c, params.wk.shape[0])):
        if a.ndim < 2 or a.shape[-1] != width:
            msg = f"{name} has shape {tuple(a.shape)}; the parameters need (..., rows, {width})."
            raise ShapeError(msg)
    q = into_heads(x, params.wq, params.bq)
    k = into_heads(c, params.wk, params.bk)
    v = into_heads(c, params.wv, params.bv)
    if rotary is not None:
        q = rotary(q, _positions(options.get("q_positions"), q))
        k = rotary(k, _positions(options.get("k_positions"), k))
    return q, k, v


def _positions(positions: Array | range | None, x: Array) -> Array:
    if positions is not None and not isinstance(positions, range):
        return positions
    start = 0 if positions is None else positions.start
    return _compat.namespace(x).arange(start, start + x.shape[-2], **beside(x))
