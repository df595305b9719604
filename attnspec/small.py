"""Attention of a small call without options: the operations of `in_place.py` at its one tile, and no plans.

For a few queries and keys, to make plans takes ten times as long as to compute.
"""

from __future__ import annotations

import math
from functools import lru_cache

from ._compat import Array, dtype_name, namespace
from .host import host_of
from .in_place_sums import LEAST, MOST
from .in_place_tiles import SIDE, ones_of, products
from .shapes import Shape, is_number

# Up to so many queries, and scores in all, are one tile in `in_place.py`.
_QUERIES, _SCORES = SIDE, SIDE**2

# Between these scores, where nothing is that is not finite, no exponential is subnormal, and no sum of so many beyond
# `LEAST` and `MOST`.
_LOW, _HIGH = -13.0, 56.0


def attend(q: Array, k: Array, v: Array, scale: float | Array | None) -> Array | None:
    """The very bits of `in_place.attend`, or None: the call is no small one, or not as plain as that."""
    host = host_of(q)
    ops, device_of = host.in_place, host.device_of
    if ops is None or host.numerics is not None or not type(q) is type(k) is type(v) or not host.concrete(q, k, v):
        return None
    count, device = _scores(q.shape, k.shape, v.shape), device_of(q)
    if not count or not q.dtype == k.dtype == v.dtype or dtype_name(q) not in ("float32", "float64"):
        return None
    if not device == device_of(k) == device_of(v):
        return None
    for kernel in host.kernels:
        if kernel.takes_concrete and kernel.from_scores <= count:
            return None
    exp, unit = (ops.exp, 1.0) if ops.exp2 is None else (ops.exp2, math.log(2.0))
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    if not is_number(scale) or not 2.0**-59 * unit <= abs(scale) <= unit:
        return None
    xp, single = namespace(q), q.ndim == 2
    with host.scope():
        if single:
            q, k, v = q[None, ...], k[None, ...], v[None, ...]
        scores = products(xp, q * (float(scale) / unit), k)
        least, most = ops.extremes(scores)
        p, sunk = exp(scores, least)
        total = p @ ones_of(xp, p.shape[-1], p.dtype, device)
        if not (least * unit >= _LOW and most * unit <= _HIGH):
            least, most = ops.extremes(total)
            if sunk is not None or not (least >= LEAST and most <= MOST):
                return None
        out = p @ v
        least, most = ops.extremes(out)
        if not math.isfinite(most - least):
            return None
        out /= total
        return out[0, ...] if single else out


@lru_cache(maxsize=64)
def _scores(q: Shape, k: Shape, v: Shape) -> int:
    """How many there are in a call of these shapes; 0 if it is no small one, or if heads or batches are shared.

    Nothing is refused here: `make_request` says what is wrong with a call.
    """
    if len(q) < 2 or q[:-2] != k[:-2] or q[-1:] != k[-1:] or k[:-1] != v[:-1]:
        return 0
    count = math.prod(q[:-1]) * k[-2]
    return count if count <= _SCORES and q[-2] <= _QUERIES and q[-1] and v[-1] else 0
