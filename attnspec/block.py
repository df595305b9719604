"""One Transformer layer, stacks of them, and both with a cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Unpack

from . import random
from ._compat import Array
from .cache import Cache
from .errors import OptionError, ShapeError
from .feed_forward import check_feed_forward, feed_forward
from .fresh import by_rows
from .multihead import AttentionOptions, multi_head_attention, multi_head_attention_with_cache
from .norm import layer_norm, rms_norm
from .params import LayerParams, NormParams, StackParams
from .request import Dropout
from .residual import add, add_and_norm, check_sum
from .rotary import Rotary
from .shapes import of_type
from .struct import arrays_in


def transformer_layer(
    params: LayerParams,
    x: Array,
    *,
    rotary: Rotary | None = None,
    residual_dropout: Dropout | None = None,
    **options: Unpack[AttentionOptions],
) -> Array:
    """Attention and a feed-forward network, each in a skip connection: (..., Q, M) -> (..., Q, M).

    post:  h = norm(x + attention(x));    y = norm(h + feed_forward(h))
    pre:   h = x + attention(norm(x));    y = h + feed_forward(norm(h))

    Parameters
    ----------
    params : LayerParams
        With the order, the kind of norm, its eps and the activation.
    x : floating array (..., Q, M)
    rotary : Rotary, optional
    residual_dropout : Dropout, optional
        On the output of each sublayer, before it is added; each draws from a key of its own.
    **options
        As in `attention`; `dropout` is the one on the weights.

    Notes
    -----
    Clauses MULTIHEAD-2, NORM-2. The output has the rows of the input in every mode.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> params = attnspec.LayerParams.init(
    ...     attnspec.random.key(0), model_width=8, heads=2, hidden_width=16, order="pre", like=np)
    >>> attnspec.transformer_layer(params, np.ones((3, 5, 8), np.float32)).shape
    (3, 5, 8)
    """
    of_type("params", params, LayerParams)
    y, _ = _layer(
        params,
        x,
        residual_dropout,
        lambda h: (multi_head_attention(params.attention, h, rotary=rotary, **options), None),
    )
    return y


def transformer_layer_with_cache(
    params: LayerParams,
    x: Array,
    cache: Cache,
    *,
    rotary: Rotary | None = None,
    residual_dropout: Dropout | None = None,
    **options: Unpack[AttentionOptions],
) -> tuple[Array, Cache]:
    """`transformer_layer` of the next rows, causal against all rows so far: (y, the longer cache).

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> params = attnspec.LayerParams.init(
    ...     attnspec.random.key(0), model_width=8, heads=2, hidden_width=16, order="pre", like=np)
    >>> cache = attnspec.Cache.of(params.attention, capacity=9)
    >>> y, cache = attnspec.transformer_layer_with_cache(params, np.ones((5, 8), np.float32), cache)
    >>> y.shape, cache.length
    ((5, 8), 5)
    """
    of_type("params", params, LayerParams)
    return _layer(
        params,
        x,
        residual_dropout,
        lambda h: multi_head_attention_with_cache(params.attention, h, cache, rotary=rotary, **options),
    )


def transformer_stack(
    params: StackParams,
    x: Array,
    *,
    rotary: Rotary | None = None,
    residual_dropout: Dropout | None = None,
    **options: Unpack[AttentionOptions],
) -> Array:
    """The layers one after another, then the last norm if there is one: (..., Q, M) -> (..., Q, M).

    Parameters as `transformer_layer`; each layer draws its dropout from a key of its own.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> params = attnspec.StackParams.init(
    ...     attnspec.random.key(0), depth=2, order="post", model_width=8, heads=2, hidden_width=16, like=np)
    >>> attnspec.transformer_stack(params, np.ones((5, 8), np.float32)).shape
    (5, 8)
    """
    of_type("params", params, StackParams)
    for n, layer in enumerate(params.layers):
        x = transformer_layer(layer, x, rotary=rotary, **_for_layer(n, residual_dropout, options))
    return x if params.norm is None else normalise(params.norm, x)


def transformer_stack_with_cache(
    params: StackParams,
    x: Array,
    caches: tuple[Cache, ...],
    *,
    rotary: Rotary | None = None,
    residual_dropout: Dropout | None = None,
    **options: Unpack[AttentionOptions],
) -> tuple[Array, tuple[Cache, ...]]:
    """`transformer_stack` of the next rows, causal against all rows so far; one cache for each layer.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> params = attnspec.StackParams.init(
    ...     attnspec.random.key(0), depth=2, order="pre", model_width=8, heads=2, hidden_width=16, like=np)
    >>> caches = tuple(attnspec.Cache.of(layer.attention, capacity=9) for layer in params.layers)
    >>> y, caches = attnspec.transformer_stack_with_cache(params, np.ones((5, 8), np.float32), caches)
    >>> y.shape, caches[1].length
    ((5, 8), 5)
    """
    of_type("params", params, StackParams)
    of_type("caches", caches, tuple)
    if len(caches) != len(params.layers):
        msg = f"{len(params.layers)} layers need as many caches, got {len(caches)}."
        raise ShapeError(msg)
    longer = []
    for n, (layer, cache) in enumerate(zip(params.layers, caches, strict=True)):
        x, cache = transformer_layer_with_cache(
            layer, x, cache, rotary=rotary, **_for_layer(n, residual_dropout, options)
        )
        longer.append(cache)
    return x if params.norm is None else normalise(params.norm, x), tuple(longer)


def normalise(params: NormParams, x: Array) -> Array:
    """`layer_norm` or `rms_norm`, as the parameters say.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> attnspec.normalise(attnspec.NormParams(None, kind="rms", eps=0.0), np.asarray([3.0, -3.0])).tolist()
    [1.0, -1.0]
    """
    if params.kind == "layer":
        return layer_norm(x, params.gamma, params.beta, eps=params.eps)
    if params.kind == "rms" and params.beta is None:
        return rms_norm(x, params.gamma, eps=params.eps)
    beta = "None" if params.beta is None else "given"
    msg = f'kind={params.kind!r} with beta {beta}: "layer", or "rms" without beta, is needed.'
    raise OptionError(msg)


def _layer(
    params: LayerParams, x: Array, dropout: Dropout | None, attend: Callable[[Array], tuple[Array, Any]]
) -> tuple[Array, Any]:
    if params.order not in ("post", "pre"):
        msg = f'order={params.order!r}: "post" or "pre" is needed.'
        raise OptionError(msg)
    pre = params.order == "pre"
    attended, cache = attend(normalise(params.norm_attention, x) if pre else x)
    check_sum(x, attended)
    check_feed_forward(params.feed_forward, attended)

    def rest(attended: Array, x: Array) -> Array:
        h = _skip(params.norm_attention, x, attended, _folded(dropout, 0), pre)
        fed = feed_forward(params.feed_forward, normalise(params.norm_feed_forward, h) if pre else h)
        return _skip(params.norm_feed_forward, h, fed, _folded(dropout, 1), pre)

    if dropout is not None or attended.dtype != x.dtype:
        return rest(attended, x), cache
    # Attention is over: no row needs another, and each may take the place of what attention made for it.
    arrays = arrays_in("", params).values()
    return by_rows(rest, attended, x, held=(*arrays,), over=True, products=True), cache


def _skip(norm: NormParams, x: Array, y: Array, dropout: Dropout | None, pre: bool) -> Array:
    if pre:
        return add(x, y, dropout)
    if norm.kind == "layer":
        return add_and_norm(x, y, norm.gamma, norm.beta, eps=norm.eps, dropout=dropout)
    return normalise(norm, add(x, y, dropout))


def _for_layer(n: int, residual_dropout: Dropout | None, options: AttentionOptions) -> dict[str, Any]:
    """The options of layer n: what draws at random draws from a key of the layer's own."""
    own: dict[str, Any] = {**options, "residual_dropout": _folded(residual_dropout, n)}
    if options.get("dropout") is not None:
        own["dropout"] = _folded(options["dropout"], n)
    return own


def _folded(dropout: Dropout | None, n: int) -> Dropout | None:
    dropout = Dropout.checked(dropout)
    return None if dropout is None else replace(dropout, rng=random.fold_in(dropout.rng, n))
