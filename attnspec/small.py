"""Attention of a small call without options: the operations of `in_place.py` at its one tile, and no plans.

For a few queries and keys, to make plans takes ten times as long as to compute.
"""

from __future__ import annotations

import math

from ._compat import Array, dtype_name, namespace
from .host import beside, host_of
from .in_place import MOST, products
from .shapes import is_number

# Scores in all: so many are one tile in `in_place.py`, and a plan takes no longer than to compute more of them.
LARGEST = 2**14

# Where no score is less, a sum is trusted however few keys there are, and no key was infinite.
_LOW = -13.0


def attend(q: Array, k: Array, v: Array, scale: float | Array | None) -> Array | None:
    """The very bits of `in_place.attend`, or None: the call is no small one, or not as plain as that."""
    if min(getattr(x, "ndim", 0) for x in (q, k, v)) < 2:
        return None
    kind, host = type(q), host_of(q)
    ops = host.in_place
    if (
        ops is None
        or host.numerics is not None
        or type(k) is not kind
        or type(v) is not kind
        or not host.concrete(q, k, v)
    ):
        return None
    (*lead, Q, D), (*lead_k, K, width), shape = q.shape, k.shape, v.shape
    plain = lead == lead_k and width == D and shape[:-1] == k.shape[:-1]
    scores = math.prod(lead) * Q * K
    if not plain or not D or not 0 < scores <= LARGEST:
        return None
    if any(kernel.takes_concrete and kernel.from_scores <= scores for kernel in host.kernels):
        return None
    if not q.dtype == k.dtype == v.dtype or dtype_name(q) not in ("float32", "float64"):
        return None
    if not host.device_of(q) == host.device_of(k) == host.device_of(v):
        return None
    exp, unit = (ops.exp, 1.0) if ops.exp2 is None else (ops.exp2, math.log(2.0))
    scale = 1.0 / math.sqrt(D) if scale is None else scale
    if not is_number(scale) or not 2.0**-59 * unit <= abs(scale) <= unit:
        return None
    xp, single = namespace(q), q.ndim == 2
    with host.scope():
        if single:
            q, k, v = q[None, ...], k[None, ...], v[None, ...]
        scored = products(xp, q * (float(scale) / unit), k)
        least = float(xp.min(scored))
        if not least >= _LOW / unit:
            return None
        p, _ = exp(scored, least)
        total = xp.matmul(p, xp.ones((K, 1), dtype=p.dtype, **beside(p)))
        out = xp.matmul(p, v)
        if not (float(xp.max(total)) <= MOST and math.isfinite(float(xp.sum(out)))):
            return None
        out /= total
        return out[0, ...] if single else out
