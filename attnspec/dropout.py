"""Dropout: on a tensor, and on the weights of attention tile by tile. The same entries go on every framework."""

from __future__ import annotations

import math

from . import _compat
from ._compat import Array, unwrapped, widened
from .host import host_of, on
from .prng import counters, threefry2x32
from .random import Key, below, bernoulli
from .request import Dropout, Request
from .shapes import Span, floating, is_number


def dropout(x: Array, rate: float | Array, rng: Key) -> Array:
    """Zero each entry with probability `rate` and scale the rest by 1 / (1 - rate).

    out = where(bernoulli(rng, 1 - rate, x.shape), x / (1 - rate), 0)

    Parameters
    ----------
    x : floating array
    rate : float in [0, 1] or 0-d floating array
        0 is the exact identity, 1 gives exact zeros. Anything else raises `errors.OptionError`.
    rng : Key
        The same key drops the same entries on every backend. There is no training flag: not to drop is not to call.

    Returns
    -------
    array like `x`

    Notes
    -----
    Clauses DROPOUT-1 to 3. Others: rate 1 gives NaN in flax, rates outside [0, 1] are accepted by equinox and flax.
    Source: Srivastava et al., 2014.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> attnspec.dropout(np.ones(4), 0.5, attnspec.random.key(0)).tolist()
    [0.0, 0.0, 2.0, 2.0]
    """
    floating(x=x)
    option = Dropout(rate, rng)
    option.check()
    if not option.drops:
        return x
    with host_of(x).scope():
        xp = _compat.namespace(x)
        wide = widened(x)
        kept = wide * kept_scale(option, wide)
        keep = bernoulli(rng, 1 - unwrapped(rate), x.shape, like=unwrapped(x))
        return xp.astype(xp.where(keep, kept, 0.0), x.dtype)


def kept_scale(option: Dropout, like: Array) -> float | Array:
    """1 / (1 - rate), and 0 for rate 1, where nothing is kept."""
    if is_number(option.rate):
        return 1.0 / (1.0 - option.rate) if option.rate < 1 else 0.0
    xp = _compat.namespace(like)
    rate = xp.astype(option.rate, like.dtype, copy=False)
    return xp.where(rate < 1, 1.0 / (1.0 - xp.where(rate < 1, rate, 0.0)), 0.0)


def keep_tile(option: Dropout, request: Request, q: Span, k: Span) -> Array:
    """Which weights of a tile are kept: a tile of the draw over the whole (..., H, Q, K) of the call (DROPOUT-3)."""
    xp, shape = request.xp, (request.whole or request.axes).scores
    place, leading = on(request.device), request.axes.scores[:-2]
    indices = [
        xp.arange(start, start + n, dtype=xp.int32, **place)[(..., *(None,) * (len(shape) - axis - 1))]
        for axis, (start, n) in enumerate(zip(request.first or (0,) * len(leading), leading, strict=True))
    ]
    indices.append(xp.astype(q.rows(request.q), xp.int32)[:, None])
    indices.append(xp.astype(k.rows(request.k), xp.int32))
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    words = threefry2x32((option.rng.high, option.rng.low), counters(indices, strides, xp))
    return below(xp, words, 1 - option.rate)
