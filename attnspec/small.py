"""Attention of a small call without options: the operations of `in_place.py` at its one tile, and no plans.

For a few queries and keys, to make plans takes ten times as long as to compute.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ._compat import Array, Namespace, dtype_name, namespace
from .host import Host
from .in_place_sums import LEAST, MOST
from .in_place_tiles import SIDE, ones_of, products
from .shapes import Shape, is_number

# Up to so many queries, and scores in all, are one tile in `in_place.py`.
_QUERIES, _SCORES = SIDE, SIDE**2

# Between these scores, where nothing is that is not finite, no exponential is subnormal, and no sum of so many beyond
# `LEAST` and `MOST`.
_LOW, _HIGH = -13.0, 56.0

_UNIT = math.log(2.0)  # of exponents of 2

_FEW = 2**12  # of keys with so few entries `products` are plain ones


def attend(host: Host, q: Array, k: Array, v: Array, scale: float | Array | None) -> Array | None:
    """The very bits of `in_place.attend`, or None: the call is no small one, or not as plain as that.

    The host is that of q.
    """
    ops, device_of = host.in_place, host.device_of
    if ops is None or host.numerics is not None or not type(q) is type(k) is type(v) or not host.concrete(q, k, v):
        return None
    dtype, device = q.dtype, device_of(q)
    call = type(q), dtype, q.shape, k.shape, v.shape  # the type first: dtypes of different ones are not to be compared
    known = _known.get(call)
    if known is None:
        known = _remembered(call, namespace(q))
    if not (known.scores and dtype == k.dtype == v.dtype):
        return None
    if not (device is None or device == device_of(k) == device_of(v)):
        return None
    for kernel in host.kernels:
        if kernel.takes_concrete and kernel.from_scores <= known.scores and kernel.is_near(q):
            return None
    exp, unit = (ops.exp, 1.0) if ops.exp2 is None else (ops.exp2, _UNIT)
    if scale is None:
        scale = known.scale
    elif not is_number(scale):
        return None
    if not 2.0**-59 * unit <= abs(scale) <= unit:
        return None
    with host.scope():
        if known.single:
            q, k, v = q[None, ...], k[None, ...], v[None, ...]
        q = q * (float(scale) / unit)
        scores = q @ k.mT if known.few else products(known.xp, q, k)
        least, most = ops.extremes(scores)
        p, sunk = exp(scores, least)
        total = p @ ones_of(known.xp, known.keys, dtype, device)
        if not (least * unit >= _LOW and most * unit <= _HIGH):
            least, most = ops.extremes(total)
            if sunk is not None or not (least >= LEAST and most <= MOST):
                return None
        out = p @ v
        least, most = ops.extremes(out)
        if not math.isfinite(most - least):
            return None
        out /= total
        return out[0, ...] if known.single else out


class _Known(NamedTuple):
    """What the types, the dtype and the shapes of a call say."""

    xp: Namespace
    scores: int = 0  # in all; 0: it is no small call, or heads or batches are shared
    keys: int = 0
    scale: float = 0.0
    few: bool = False
    single: bool = False  # a head without more axes


_known: dict[tuple[Any, ...], _Known] = {}
_KEPT = 64


def _remembered(call: tuple[Any, ...], xp: Namespace) -> _Known:
    if len(_known) >= _KEPT:
        _known.clear()
    _, dtype, *shapes = call
    held = dtype_name(dtype) in ("float32", "float64")
    return _known.setdefault(call, _of_shapes(xp, *shapes) if held else _Known(xp))


def _of_shapes(xp: Namespace, q: Shape, k: Shape, v: Shape) -> _Known:
    """Nothing is refused here: `make_request` says what is wrong with a call."""
    if len(q) < 2 or q[:-2] != k[:-2] or q[-1:] != k[-1:] or k[:-1] != v[:-1]:
        return _Known(xp)
    (Q, D), (K, E) = q[-2:], v[-2:]
    scores = math.prod(q[:-1]) * K
    if not D or not E or scores > _SCORES or Q > _QUERIES:
        return _Known(xp)
    return _Known(xp, scores, K, 1.0 / math.sqrt(D), K * D < _FEW, len(q) == 2)
