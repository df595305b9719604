"""The gradients of torch's fused attention, and of rows whose numbers cannot be taken from it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from attnspec.backward import Gradients, attend_backward
from attnspec.blocks import row_totals
from attnspec.fast import FAST
from attnspec.struct import arrays_in

from .sdpa_calls import LARGEST, LARGEST_LSE, Calls, Operands, are_tame
from .sdpa_stripes import calls_of


def sums(lse: Tensor) -> tuple[Tensor, Tensor]:
    """The reference and the total of each row: of fused ones, lse and 1."""
    return lse[..., None].clone(), (lse != -math.inf).to(lse.dtype)[..., None]


def gradients(*saved: Any) -> Gradients:
    """As `attnspec.backward.attend_backward`, which takes over where these gradients are differentiated in turn."""
    request, (out, lse, _, _), (g, of_lse, _, of_total) = saved
    if not request.host.concrete(request.q, request.k, request.v, out, lse, g, of_lse, of_total):
        return attend_backward(saved, FAST)
    if arrays_in("", request.bias):  # which may learn, of which the operation knows nothing
        return attend_backward(saved, FAST)
    calls = calls_of(request)
    rows = [calls.flat(x) for x in (g, out, lse)]
    walked = (~(lse.abs() <= LARGEST_LSE) & (lse != -math.inf)) | (of_lse != 0) | (of_total[..., 0] != 0)
    if are_tame(calls.given.q, *calls.read(), g) and not bool(walked.any()):
        return calls.named(calls.pulled(calls.given, *rows))
    return _mended_gradients(saved, calls, walked)


def _mended_gradients(saved: Any, calls: Calls, walked: Tensor) -> Gradients:
    """Rows add to the gradients of keys on one of the two ways, and exactly 0 on the other."""
    request, results, (g, of_lse, of_reference, of_total) = saved
    tame_k, tame_v, tame_g = (x.abs().amax(-1) <= LARGEST for x in (*calls.given[1:], calls.flat(g)))
    (q, k, v), seeing = calls.without(~(tame_k & tame_v))
    flat = seeing | ~tame_g | calls.flat(walked[..., None])[..., 0]
    # A query that is no number is one of those rows, or sees no key.
    q = q.masked_fill(~torch.isfinite(q), 0.0)
    of_out, out, lse = (calls.flat(x) for x in (g, *results[:2]))
    of_out, out = (x.masked_fill(flat[..., None], 0.0) for x in (of_out, out))
    found = calls.named(calls.pulled(Operands(q, k, v), of_out, out, lse.masked_fill(flat, math.inf)))
    walked = calls.shaped(flat)
    if not bool(walked.any()):
        return found
    large = (results[1].abs() > LARGEST_LSE) & (results[1].abs() < math.inf)
    if bool(large.any()):
        results = (*results[:2], *chosen(large, row_totals(request, FAST), results[2:]))
    nothing = (torch.zeros_like(x) for x in (g, of_lse, of_total))
    g, of_lse, of_total = chosen(walked, (g, of_lse, of_total), nothing)
    of_walked = attend_backward((request, results, (g, of_lse, of_reference, of_total)), FAST)
    return {name: x + of_walked[name] for name, x in found.items()}


def chosen(rows: Tensor, ones: Iterable[Tensor], others: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Arrays (..., H, Q[, E]) with these rows of the ones and the rest of the others."""
    pairs = zip(ones, others, strict=True)
    return tuple(torch.where(rows if x.ndim == rows.ndim else rows[..., None], x, y) for x, y in pairs)
