"""Dropout: on a tensor, and on the weights of attention tile by tile. The same entries go on every framework."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from . import _compat
from ._compat import Array, Namespace, cast, unwrapped, widened
from .fresh import is_free
from .host import beside, host_of, on
from .prng import draw, draw_all, places
from .random import Key, below, bernoulli, words_of
from .request import Dropout, Request
from .shapes import Shape, Span, floating, is_number


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
    return dropped(x, option)


def dropped(x: Array, option: Dropout) -> Array:
    """`dropout` by an option that has been checked, of an array or of a part of one."""
    if not option.drops:
        return x
    with host_of(x).scope():
        if option.whole is None and is_number(option.rate) and is_free(x):
            return draw_all(words_of(option.rng), x.shape, x, partial(_of_words, option), x)
        return _where(_kept(option, unwrapped(x)), x, option)


def _of_words(option: Dropout, high: Array, low: Array, x: Array) -> Array:
    return _where(below(_compat.namespace(x), (high, low), 1 - option.rate), x, option)


def _where(keep: Array, x: Array, option: Dropout) -> Array:
    wide = widened(x)
    return cast(_compat.namespace(x).where(keep, wide * kept_scale(option, wide), 0.0), x.dtype)


def _kept(option: Dropout, like: Array) -> Array:
    """Which entries of an array stay."""
    rate = unwrapped(option.rate)
    if option.whole is None:
        return bernoulli(option.rng, 1 - rate, like.shape, like=like)
    xp, place = _compat.namespace(like), beside(like)
    rows = [xp.arange(n, dtype=xp.int32, **place) for n in like.shape]
    indices = [_index(xp, n, at) for n, at in zip(rows, option.at, strict=True)]
    return _draw(xp, replace(option, rate=rate), indices, option.whole)


def kept_scale(option: Dropout, like: Array) -> float | Array:
    """1 / (1 - rate), and 0 for rate 1, where nothing is kept."""
    if is_number(option.rate):
        return 1.0 / (1.0 - option.rate) if option.rate < 1 else 0.0
    xp = _compat.namespace(like)
    rate = xp.astype(option.rate, like.dtype, copy=False)
    return xp.where(rate < 1, 1.0 / (1.0 - xp.where(rate < 1, rate, 0.0)), 0.0)


def keep_tile(option: Dropout, request: Request, q: Span, k: Span) -> Array:
    """Which weights of a tile are kept: a tile of the draw over the whole (..., H, Q, K) of the call (DROPOUT-3)."""
    xp, shape = request.xp, request.axes.scores
    at, place = option.at or (0,) * len(shape), on(request.device)
    indices = [
        _index(xp, xp.arange(n, dtype=xp.int32, **place), start) for n, start in zip(shape[:-2], at[:-2], strict=True)
    ]
    for span, start in zip((q, k), at[-2:], strict=True):
        start = span.of(start, -1) if _compat.is_array(start) and start.ndim else start
        indices.append(_index(xp, xp.astype(span.rows(request.q), xp.int32), start))
    return _draw(xp, option, indices, option.whole or shape)


def _index(xp: Namespace, rows: Array, at: int | Array) -> Array:
    """Where these rows are in the whole; `at` is the place of the first, or has a place for each."""
    if isinstance(at, int):
        return rows + at
    at = xp.astype(at, xp.int32)
    return at if at.ndim else rows + at


def _draw(xp: Namespace, option: Dropout, indices: Sequence[Array], whole: Shape) -> Array:
    """The entries with these indices along the axes of the whole."""
    own = [n[(..., *(None,) * (len(whole) - axis - 1))] for axis, n in enumerate(indices)]
    rng = option.rng.high, option.rng.low
    return draw(rng, places(own, whole, xp), lambda *words: below(xp, words, 1 - option.rate))
