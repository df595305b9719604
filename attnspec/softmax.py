"""Partial results of attention, and how they merge: what split caches, ring attention and out-of-core runs need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

from . import _compat
from ._compat import Array, dtype_name
from .errors import OptionError, ShapeError
from .host import host_of
from .shapes import floating, together


def merge_attention(parts: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Merge the results of attention over disjoint sets of keys into the result over all of them.

    lse = log sum_p exp(lse_p),    out = sum_p exp(lse_p - lse) out_p

    Parameters
    ----------
    parts : sequence of (out (..., H, Q, E), lse (..., H, Q))
        As `attention_with_lse` returns them; a sink belongs to one of the parts. Parts without keys (lse = -inf)
        change nothing.

    Returns
    -------
    out, lse
        `out` in the dtype of the parts, computed in that of `lse`.

    Notes
    -----
    Clause SOFTMAX-5: any partition, in any grouping. lse is a natural logarithm (FlashInfer's is base 2).

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> q, k, v = np.ones((1, 2)), np.eye(2), np.asarray([[1.0], [3.0]])
    >>> parts = [attnspec.attention_with_lse(q, k[j : j + 1], v[j : j + 1]) for j in range(2)]
    >>> attnspec.merge_attention(parts)[0].tolist()
    [[2.0]]
    """
    parts = list(parts)
    if not parts:
        msg = "merge_attention got no parts; at least one (out, lse) is needed."
        raise OptionError(msg)
    for out, lse in parts:
        floating(out=out)
        floating(lse=lse)
        together(out=parts[0][0], other=out, lse=lse)
        if tuple(out.shape[:-1]) != tuple(lse.shape) or out.shape != parts[0][0].shape:
            got = f"{tuple(out.shape)} and {tuple(lse.shape)}"
            msg = f"parts need out (..., Q, E) and lse (..., Q) of one shape, got {got}."
            raise ShapeError(msg)
    flat = _compat.alike(*(x for part in parts for x in part))
    parts = list(zip(flat[::2], flat[1::2], strict=True))
    with host_of(parts[0][0]).scope():
        xp = _compat.namespace(parts[0][0])
        top = reduce(xp.maximum, (lse for _, lse in parts))
        shift = xp.where(top == -math.inf, 0.0, top)
        shares = [xp.exp(lse - shift) for _, lse in parts]
        total = sum(shares[1:], shares[0])
        empty = total == 0
        total = xp.where(empty, 1.0, total)
        lse = xp.where(empty, -math.inf, shift + xp.log(total))
        out = _weighted(parts[0], shares[0], total)
        for part, share in zip(parts[1:], shares[1:], strict=True):
            out = out + _weighted(part, share, total)
        return _compat.cast(out, parts[0][0].dtype), lse


def _weighted(part: tuple[Array, Array], share: Array, total: Array) -> Array:
    out, lse = part
    if dtype_name(out) != dtype_name(lse):
        out = _compat.cast(out, lse.dtype)
    return (share / total)[..., None] * out
