"""torch's fused attention on a processor (`F.scaled_dot_product_attention`) as a kernel that keeps the clauses.

The fused operation multiplies a masked weight, 0, by whatever stands in the value, and in its gradient by whatever the
product with the value is; it takes an infinite key for a number; and it has no empty rows. So rows are told apart.
Those that see numbers alone and get numbers are taken from it, computed with 0 in the place of what is no number; the
others are walked (`attnspec.blocks`). Which of the two a row is depends on nothing that the row does not see, so what
it does not see changes none of its bits (MASK-6). Usually all rows are of the first kind, which is cheap to find out:
if every number that was read is finite, and every lse that came back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from attnspec import small
from attnspec._compat import Wrapped, cast, unwrapped
from attnspec.backward import Gradients, attend_backward
from attnspec.blocks import attend
from attnspec.derivative import differentiable
from attnspec.fast import FAST
from attnspec.host import Kernel, host_of
from attnspec.request import Request
from attnspec.shapes import is_number

from .sdpa_calls import LARGEST, Calls, Operands, are_tame
from .sdpa_plan import plan_of

_LARGEST_SCALE = 2.0**10
_LARGEST_LSE = 2.0**10  # beyond, the weights of the walk back have to be made of references and totals


def supports(request: Request) -> str | None:
    """None, or why the fused operation does not take such a call."""
    axes, given = request.axes, (request.q, request.k, request.v)
    arrays = [unwrapped(x) if isinstance(x, Wrapped) and host_of(x).taped else x for x in given]
    if torch.compiler.is_compiling():
        return "torch.compile records plain operations"
    if torch.autograd.forward_ad._current_level >= 0:
        return "it has no derivative in forward mode"
    if any(type(x) not in (Tensor, torch.nn.Parameter) or _is_mapped(x) for x in arrays):
        return "it is for plain tensors, without vmap"
    if arrays[0].device.type != "cpu":
        return f"it is for the processor, not for {arrays[0].device.type}"
    for name in ("bias", "softcap", "sink", "dropout"):
        if getattr(request, name) is not None:
            return f"it knows no {name}"
    if not is_number(request.scale) or abs(request.scale) > _LARGEST_SCALE:
        return f"the scale is no number up to {_LARGEST_SCALE:g}"
    if not (axes.D and axes.E and all(axes.scores)):
        return "there is nothing to compute"
    if len(axes.lead) > 1 and any(x.shape[:-3] != axes.lead for x in arrays):
        return "of more than one leading axis some are broadcast"
    plan = plan_of(request)
    return plan if isinstance(plan, str) else None


def _is_mapped(x: Tensor) -> bool:
    """Whether a transform other than one that takes gradients is around it."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        if not functorch.is_gradtrackingtensor(x):
            return True
        x = functorch.get_unwrapped(x)
    return bool(functorch.is_legacy_batchedtensor(x))


def call(request: Request) -> tuple[Tensor, Tensor]:
    """(out, lse)."""
    arrays = request.q, request.k, request.v
    if not any(isinstance(x, Wrapped) for x in arrays) and request.host.concrete(*arrays):
        out, lse, *_ = _attended(request)
    else:
        out, lse, *_ = differentiable(_recorded, _gradients, request, always=True)
    return cast(out, request.q.dtype), lse


def _recorded(request: Request) -> tuple[Tensor, ...]:
    """As `attnspec.blocks.attend`, which takes over under transforms."""
    if not request.host.concrete(request.q, request.k, request.v):
        return attend(request, FAST)
    out, lse, *rest = _attended(request)
    return out, lse, *(rest or _sums(lse))


def _sums(lse: Tensor) -> tuple[Tensor, Tensor]:
    """The reference and the total of each row: of fused ones, lse and 1."""
    return lse[..., None].clone(), (lse != -math.inf).to(lse.dtype)[..., None]


def _attended(request: Request) -> tuple[Tensor, ...]:
    """(out, lse); with the reference and the total of each row if some are walked."""
    calls = Calls.of(request)
    k, v = calls.read()
    if all(map(calls.few, calls.pieces)) or are_tame(k):
        out, lse, doubt = calls.attended(calls.given)
        # An output that is finite has read no value that is not.
        if doubt is None and are_tame(v if out.numel() > v.numel() else out):
            return calls.shaped(out), calls.shaped(lse)
    return _mended(request, calls)


def _mended(request: Request, calls: Calls) -> tuple[Tensor, ...]:
    finite = (torch.isfinite(x).all(-1) for x in calls.given[1:])
    operands, walked = calls.without(~torch.logical_and(*finite))
    out, lse, doubt = calls.attended(operands)
    walked = walked | ~torch.isfinite(out).all(-1)
    walked = calls.shaped(walked if doubt is None else walked | doubt)
    fused = calls.shaped(out), calls.shaped(lse)
    return _chosen(walked, attend(request, FAST), (*fused, *_sums(fused[1]))) if bool(walked.any()) else fused


def _gradients(*saved: Any) -> Gradients:
    """As `attnspec.backward.attend_backward`, which takes over where these gradients are differentiated in turn."""
    request, (out, lse, _, _), (g, of_lse, _, of_total) = saved
    if not request.host.concrete(request.q, request.k, request.v, out, lse, g, of_lse, of_total):
        return attend_backward(saved, FAST)
    calls = Calls.of(request)
    rows = [calls.flat(x) for x in (g, out, lse)]
    walked = (~(lse.abs() <= _LARGEST_LSE) & (lse != -math.inf)) | (of_lse != 0) | (of_total[..., 0] != 0)
    if are_tame(calls.given.q, *calls.read(), g) and not bool(walked.any()):
        return calls.named(calls.pulled(calls.given, *rows))
    return _mended_gradients(saved, calls, walked)


def _mended_gradients(saved: Any, calls: Calls, walked: Tensor) -> Gradients:
    """Rows add to the gradients of keys on one of the two ways, and exactly 0 on the other."""
    request, results, (g, of_lse, of_reference, of_total) = saved
    tame_q, tame_k, tame_v, tame_g = (x.abs().amax(-1) <= LARGEST for x in (*calls.given, calls.flat(g)))
    (q, k, v), seeing = calls.without(~(tame_k & tame_v))
    flat = seeing | ~tame_q | ~tame_g | calls.flat(walked[..., None])[..., 0]
    q = q.masked_fill(~tame_q[..., None], 0.0)
    of_out, out, lse = (calls.flat(x) for x in (g, *results[:2]))
    of_out, out = (x.masked_fill(flat[..., None], 0.0) for x in (of_out, out))
    found = calls.named(calls.pulled(Operands(q, k, v), of_out, out, lse.masked_fill(flat, math.inf)))
    walked = calls.shaped(flat)
    if not bool(walked.any()):
        return found
    nothing = (torch.zeros_like(x) for x in (g, of_lse, of_total))
    g, of_lse, of_total = _chosen(walked, (g, of_lse, of_total), nothing)
    of_walked = attend_backward((request, results, (g, of_lse, of_reference, of_total)), FAST)
    return {name: x + of_walked[name] for name, x in found.items()}


def _chosen(rows: Tensor, ones: Iterable[Tensor], others: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Arrays (..., H, Q[, E]) with these rows of the ones and the rest of the others."""
    pairs = zip(ones, others, strict=True)
    return tuple(torch.where(rows if x.ndim == rows.ndim else rows[..., None], x, y) for x, y in pairs)


SDPA = Kernel("scaled_dot_product_attention", supports, call, recorded=True, from_scores=small.LARGEST + 1)
