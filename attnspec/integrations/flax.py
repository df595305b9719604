"""attnspec as the attention of Flax's layers, linen's and nnx's: `attention_fn=flax.dot_product_attention`.

from attnspec.integrations import flax as attnspec_flax

nnx.MultiHeadAttention(..., attention_fn=attnspec_flax.dot_product_attention)
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from .. import _compat
from .._compat import Array, cast
from ..attention import attention, attention_weights
from ..errors import DTypeError, MissingFrameworkError, OptionError, ShapeError
from ..masks import Mask, as_mask, causal
from ..random import Key, wrap
from ..request import Dropout, checked_options
from ..shapes import attention_axes, floating, of_one_dtype
from ..terms import Bias

__all__ = ["dot_product_attention"]


def dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Bias | Array | None = None,
    mask: Mask | Array | None = None,
    broadcast_dropout: bool = True,
    dropout_rng: Array | Key | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Any = None,
    precision: Any = None,
    module: Any = None,
    *,
    is_causal: bool = False,
    promote_dtype: Callable[..., tuple[Array, Array, Array]] | None = None,
    force_fp32_for_softmax: bool = False,
    einsum_dot_general: Callable[..., Array] | None = None,
    qk_attn_weights_einsum: Callable[..., Array] | None = None,
    attn_weights_value_einsum: Callable[..., Array] | None = None,
) -> Array:
    """`flax.linen.dot_product_attention` and `flax.nnx.dot_product_attention`.

    dropout(softmax(D**-0.5 * query @ key^T + bias)) @ value, over the keys that the mask leaves

    Parameters
    ----------
    query, key, value : floating arrays (..., Q, H, D), (..., K, G, D), (..., K, G, E)
        Query head h uses key/value head h // (H // G). Of several dtypes: in the widest, two half types in float32.
    bias : floating array, broadcast from the right to (..., H, Q, K), or an attnspec Bias
    mask : array of any dtype, broadcast from the right to (..., H, Q, K), or an attnspec Mask
        Nonzero = may attend: linen makes its masks in float32. Layers hand a Mask on as it is (not with `decode`), so
        that `mask=attnspec.causal()` makes nothing of size Q x K.
    broadcast_dropout : bool
        One draw of (Q, K) for all of (..., H): of JAX's arrays alone, masks and biases included.
    dropout_rng : key of `jax.random` (threefry), or an attnspec Key
        Needed where anything is dropped. The entries that go are those that Flax would drop (with `jax_enable_x64`
        Flax draws others, from float64).
    dropout_rate : float in [0, 1]
    deterministic : bool
        True drops nothing.
    dtype : dtype
        What query, key and value are cast to.
    precision, force_fp32_for_softmax
        Met whatever they say: products have full precision and the softmax is in float32 or wider.
    module : linen or nnx module
        Where the weights before dropout are sown as "attention_weights". The output keeps its bits.
    is_causal : bool
        Key j is visible to query i iff j <= i (top left), beside the mask.
    promote_dtype : callable
        `promote_dtype((query, key, value), dtype=dtype)`, in place of the rule above.
    einsum_dot_general, qk_attn_weights_einsum, attn_weights_value_einsum : None
        Products of somebody else's, for quantised layers: refused.

    Returns
    -------
    array (..., Q, H, E)

    Raises
    ------
    errors.ShapeError, errors.DTypeError, errors.MaskError, errors.DeviceError, errors.OptionError
    errors.MissingFrameworkError
        Something is dropped or sown and JAX or Flax is not installed.

    Notes
    -----
    linen passes those arguments alone that the function's signature names, without a word about the others; every
    argument of both functions is named here. A row that sees nothing is 0 here and the mean of the values in Flax;
    rate 1 gives 0 and not NaN. Source: the documentation of Flax 0.12.

    Examples
    --------
    >>> import numpy as np
    >>> q = k = np.zeros((3, 2, 4)); v = np.arange(6.0).reshape(3, 2, 1)
    >>> seen = np.asarray([1.0, 0.0, 1.0], dtype=np.float32)
    >>> dot_product_attention(q, k, v, mask=seen)[0, :, 0].tolist()
    [2.0, 3.0]
    """
    _refuse_products(
        einsum_dot_general=einsum_dot_general,
        qk_attn_weights_einsum=qk_attn_weights_einsum,
        attn_weights_value_einsum=attn_weights_value_einsum,
    )
    q, k, v = _heads_first(query, key, value, dtype, promote_dtype)
    drops = not deterministic and dropout_rate != 0
    if drops and broadcast_dropout:
        _refuse_rules(mask=mask, bias=bias)
    seen, bias = _selecting(mask, q), _beside(bias, q)
    if module is not None:
        _sow(module, attention_weights(q, k, mask=_visible(seen, is_causal), bias=bias))
    dropout = _dropout(dropout_rate, dropout_rng) if drops else None
    if dropout is not None and broadcast_dropout:
        return _exchanged(_of_one_draw(q, k, v, seen, is_causal, bias, dropout))
    return _exchanged(attention(q, k, v, mask=_visible(seen, is_causal), bias=bias, dropout=dropout))


def _refuse_products(**products: Callable[..., Array] | None) -> None:
    for name, product in products.items():
        if product is not None:
            msg = f"{name}={product!r}: attnspec computes its own products; None is needed."
            raise OptionError(msg)


def _heads_first(
    query: Array, key: Array, value: Array, dtype: Any, promote: Callable[..., tuple[Array, Array, Array]] | None
) -> tuple[Array, Array, Array]:
    """(..., H, Q, D), (..., G, K, D), (..., G, K, E), of one dtype."""
    given = {"query": query, "key": key, "value": value}
    for name, x in given.items():
        floating(**{name: x})
        if x.ndim < 3:
            msg = f"{name} has shape {tuple(x.shape)}; (..., rows, heads, width) is needed."
            raise ShapeError(msg)
    arrays: tuple[Array, ...] = tuple(given.values())
    if promote is not None:
        arrays = promote(arrays, dtype=dtype)
    elif dtype is not None:
        arrays = tuple(cast(x, dtype) for x in arrays)
    q, k, v = (_exchanged(x) for x in of_one_dtype(*arrays))
    return q, k, v


def _exchanged(x: Array) -> Array:
    """Rows and heads exchanged."""
    return _compat.namespace(x).moveaxis(x, -3, -2)


def _refuse_rules(**options: Any) -> None:
    for name, option in options.items():
        if option is not None and not _compat.is_array(option):
            msg = (
                f"{name} is a {type(option).__name__} and broadcast_dropout=True, which is mapped over heads that a "
                "rule wants to see together. Pass broadcast_dropout=False, or an array."
            )
            raise OptionError(msg)


def _selecting(mask: Mask | Array | None, q: Array) -> Mask | Array | None:
    mask = _beside(mask, q)
    return cast(mask, _compat.namespace(q).bool) if _compat.is_array(mask) else mask


def _beside(option: Any, q: Array) -> Any:
    """Arrays in the namespace of q: Flax takes NumPy's masks and biases too."""
    return _compat.namespace(q).asarray(option) if _compat.is_array(option) else option


def _visible(seen: Mask | Array | None, is_causal: bool) -> Mask | Array | None:
    if not is_causal:
        return seen
    return causal() if seen is None else causal() & as_mask(seen)


def _sow(module: Any, weights: Array) -> None:
    nnx = _imported("flax.nnx")
    collection = nnx.Intermediate if isinstance(module, nnx.Module) else "intermediates"
    module.sow(collection, "attention_weights", weights)


def _dropout(rate: float, rng: Array | Key | None) -> Dropout:
    if rng is None:
        msg = (
            f"dropout_rate={rate!r} without dropout_rng: a key is needed. Give the layer one (linen: "
            "rngs={'dropout': key}, nnx: rngs=nnx.Rngs(dropout=seed)), or deterministic=True."
        )
        raise OptionError(msg)
    if isinstance(rng, Key):
        return Dropout(rate, rng)
    words = _imported("jax").random.key_data(rng)
    if words.shape != (2,):
        msg = f"dropout_rng has {words.shape} words; a single key of threefry, (2,), is needed: jax.random.key(seed)."
        raise DTypeError(msg)
    return Dropout(rate, wrap(words))


def _of_one_draw(
    q: Array, k: Array, v: Array, seen: Array | None, is_causal: bool, bias: Array | None, dropout: Dropout
) -> Array:
    """Attention whose dropout is one draw of (Q, K) for all of (..., H).

    A call drops by the place of an entry within itself, so calls mapped over (..., H) all drop alike.
    """
    jax = _imported("jax")
    if not isinstance(q, jax.Array):
        msg = f"broadcast_dropout=True maps over heads by JAX and got {type(q).__name__}. Pass broadcast_dropout=False."
        raise OptionError(msg)
    axes = attention_axes(q, k, v)
    checked_options(axes, q, mask=_visible(seen, is_causal), bias=bias, dropout=dropout)
    apart = (*axes.lead, axes.G, axes.H // axes.G if axes.G else 0)

    def of_query_heads(x: Array | None) -> Array | None:
        if x is None:
            return None
        whole = jax.numpy.broadcast_to(x, (*axes.lead, axes.H, *x.shape[-2:]) if x.ndim > 1 else axes.scores)
        return whole.reshape(*apart, *whole.shape[-2:])

    def of_one(q: Array, k: Array, v: Array, seen: Array | None, bias: Array | None) -> Array:
        return attention(q, k, v, mask=_visible(seen, is_causal), bias=bias, dropout=dropout)

    options = (None if seen is None else 0, None if bias is None else 0)
    mapped = jax.vmap(of_one, in_axes=(0, None, None, *options))
    for _ in apart[:-1]:
        mapped = jax.vmap(mapped, in_axes=(0, 0, 0, *options))
    k, v = (jax.numpy.broadcast_to(x, (*axes.lead, *x.shape[-3:])) for x in (k, v))
    out = mapped(of_query_heads(q), k, v, of_query_heads(seen), of_query_heads(bias))
    return out.reshape(*axes.lead, axes.H, axes.Q, axes.E)


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        msg = f"{name} is needed for this and not installed: pip install {name.partition('.')[0]}."
        raise MissingFrameworkError(msg) from error
