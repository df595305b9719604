"""Attention in parts that merge to the very bits of the undivided call: for split caches, rings and out-of-core runs.

    parts = [reproducible.partial(q, k[cut], v[cut], k_positions=cut) for cut in cuts_of_the_keys]
    out, lse = reproducible.finish(reproducible.merge(parts))

Sums over keys are rounded once for each chunk of 256 keys, and chunks are added in the order of their keys. A partial
result keeps its chunks apart, so any grouping gives the same sums, if each part but the last holds a multiple of 256
keys. (Outputs that were normalised and rounded already, as `merge_attention` takes them, cannot give that.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from .._compat import Array, dtype_name, namespace
from ..blocks import Seen, broken, nothing_seen, of_sink, take_in
from ..dropout import kept_scale
from ..errors import OptionError, ShapeError
from ..host import host_of
from ..numerics import Partial as Sums
from ..request import make_request
from ..shapes import Span, of_type
from ..struct import Struct
from ..tiling import over_queries, status_of
from .arrays import NUMERICS, Identical, wide
from .doors import identically
from .steady import CHUNK

_SUMS, _FLAGS = ("reference", "total", "out"), ("visible", "bad_score", "bad_value")
ARRAYS = (*_SUMS, *_FLAGS)  # with an entry for each chunk


@dataclass(frozen=True)
class Partial(Struct):
    """Attention over some of the keys, not normalised, chunk by chunk: what `merge` and `finish` take."""

    reference: Array  # (C, ..., H, Q, 1), C chunks of keys
    total: Array  # (C, ..., H, Q, 1)
    out: Array  # (C, ..., H, Q, E)
    visible: Array  # boolean (C, ..., H, Q, 1): a key was seen
    bad_score: Array  # one that is not finite was, or the query is not
    bad_value: Array  # a value was that is not finite
    keys: int  # how many there were
    lonely: Array | None  # (..., H, Q, 1), the lse of rows that see the sink alone
    kept: float | Array  # what dropout multiplies the output by
    dtype: str  # of q
    headless: bool


@identically
def partial(q: Array, k: Array, v: Array, **options: Any) -> Partial:
    """Attention of q over some of the keys, for `merge` and `finish`.

    Parameters
    ----------
    q, k, v, **options
        As `attention`. Parts that are not the first say by `k_positions` where their keys stand, for masks and biases
        about positions, and their dropout by `whole` and `at` which weights of the undivided call these are. A sink
        belongs to the first part.

    Returns
    -------
    Partial
        Of float64 arrays. Nobody differentiates it: differentiate `attention`.

    Examples
    --------
    >>> import numpy as np
    >>> from attnspec import reproducible
    >>> q, k, v = (np.random.default_rng(n).standard_normal((600, 8)).astype("f4") for n in range(3))
    >>> parts = [reproducible.partial(q, k[:512], v[:512]), reproducible.partial(q, k[512:], v[512:])]
    >>> out, lse = reproducible.finish(reproducible.merge(parts))
    >>> bool(np.all(out == reproducible.attention(q, k, v)))
    True
    """
    if host_of(q).taped:
        msg = "partial results have no gradient; differentiate attention."
        raise OptionError(msg)
    request = make_request(q, k, v, **options)
    if request.dropout is not None and request.dropout.whole is None:
        msg = "dropout draws by the index of a key in the undivided call: say whole= and at= in attnspec.Dropout."
        raise OptionError(msg)
    xp, numerics = request.xp, NUMERICS[dtype_name(q)].suited(request)
    operands = numerics.prepare(request)

    def rows(q: Span, stripe: Span, carry: None) -> tuple[tuple[Array, ...], None]:
        tile = numerics.queries(request, operands, q)
        chunks = []
        for start in range(0, max(1, request.axes.K), CHUNK):
            sums = numerics.start(request if start == 0 else replace(request, sink=None), tile)
            found = sums, nothing_seen(xp, sums)
            if request.axes.K:
                k = request.k_span(start, min(CHUNK, request.axes.K - start))
                found = take_in(request, numerics, operands, (q, tile), found, k, status_of(request, q, k))
            sums, seen = found
            bad = seen.bad_score if operands.bad_q is None else seen.bad_score | (q.of(operands.bad_q, -2) & seen.any)
            chunks.append((*sums, seen.any, bad, seen.bad_value))
        return tuple(xp.stack(list(x)) for x in zip(*chunks, strict=True)), carry

    (reference, total, out, visible, bad_score, bad_value), _ = over_queries(request, numerics, rows, None)
    lonely = None if request.sink is None else of_sink(request, total[0, ..., 0])
    kept = 1.0 if request.dropout is None else kept_scale(request.dropout, out)
    return Partial(
        reference, total, out, visible, bad_score, bad_value, request.axes.K, lonely, kept, dtype_name(q),
        request.headless,
    )  # fmt: skip


def merge(parts: Sequence[Partial]) -> Partial:
    """The partial results over disjoint sets of keys as one, in the order of their keys.

    Merging merged ones gives the same, whatever the grouping. Each but the last is of a multiple of 256 keys; others
    raise `errors.ShapeError`.
    """
    parts = list(parts)
    if not parts:
        msg = "merge got no parts; at least one `partial` is needed."
        raise OptionError(msg)
    first = parts[0]
    for part in parts:
        of_type("part", part, Partial)
        got = (part.dtype, tuple(part.out.shape[1:]))
        wanted = (first.dtype, tuple(first.out.shape[1:]))
        if got != wanted:
            msg = f"parts of one call agree in dtype and in (..., H, Q, E), got {wanted} and {got}."
            raise ShapeError(msg)
    cut = next((part.keys for part in parts[:-1] if part.keys % CHUNK), None)
    if cut is not None:
        msg = f"a part that is not the last has {cut} keys; a multiple of {CHUNK} is needed, or the bits are others."
        raise ShapeError(msg)
    host = host_of(first.out)
    with host.scope(), host.apart():
        xp = namespace(first.out)
        joined = {name: xp.concat([getattr(part, name) for part in parts], axis=0) for name in ARRAYS}
        return replace(first, keys=sum(part.keys for part in parts), **joined)


@identically
def finish(part: Partial) -> tuple[Array, Array]:
    """(out, lse) of `attention_with_lse`, from the partial results over all of its keys."""
    xp, numerics, whole = namespace(part.out), NUMERICS[part.dtype], folded(part)
    sums = Sums(*(getattr(whole, name)[0, ...] for name in _SUMS))
    seen = Seen(*(getattr(whole, name)[0, ...] for name in _FLAGS))
    nan_lse, nan_out = broken(None, sums, seen)
    out, lse = numerics.finish(sums)
    out = out * part.kept
    lse = lse[..., None] if part.lonely is None else xp.where(seen.any, lse[..., None], part.lonely)
    out, lse = xp.where(nan_out, math.nan, out), xp.where(nan_lse, math.nan, lse)[..., 0]
    results = Identical(out.value, part.dtype), Identical(lse.value, wide(part.dtype))
    return tuple(x[0, ...] for x in results) if part.headless else results


def folded(part: Partial) -> Partial:
    """Its chunks as one: what `finish` does first, and what may be done early with those that come first."""
    xp = namespace(part.out)
    chunks = [Sums(*(getattr(part, name)[n, ...] for name in _SUMS)) for n in range(part.out.shape[0])]
    sums = reduce(NUMERICS[part.dtype].merge, chunks)
    flags = {name: xp.any(getattr(part, name), axis=0) for name in _FLAGS}
    return replace(part, **{name: x[None, ...] for name, x in (sums._asdict() | flags).items()})
