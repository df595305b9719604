"""torch's fused attention on a processor (`F.scaled_dot_product_attention`) as a kernel that keeps the clauses.

The fused operation multiplies a masked weight, 0, by whatever stands in the value, and in its gradient by whatever the
product with the value is; it takes an infinite key for a number; and it has no empty rows. So rows are told apart.
Those that see numbers alone and get numbers are taken from it, computed with 0 in the place of what is no number; the
others are walked (`attnspec.blocks`). Which of the two a row is depends on nothing that the row does not see, so what
it does not see changes none of its bits (MASK-6). Usually all rows are of the first kind, which is cheap to find out:
if every number that was read is finite, and every lse that came back.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnspec._compat import Wrapped, cast, unwrapped
from attnspec.blocks import attend
from attnspec.derivative import differentiable
from attnspec.fast import FAST
from attnspec.host import Kernel, host_of
from attnspec.request import Request
from attnspec.shapes import is_number
from attnspec.struct import arrays_in

from .sdpa_at_once import at_once
from .sdpa_calls import LARGEST_SCALE, Calls, are_tame
from .sdpa_gradients import chosen, gradients, sums
from .sdpa_plan import plan_of
from .sdpa_stripes import calls_of, why_not


def supports(request: Request) -> str | None:
    """None, or why the fused operation does not take such a call."""
    axes, given = request.axes, (request.q, request.k, request.v)
    held = arrays_in("", (request.mask, request.bias)).values()
    arrays = [unwrapped(x) if isinstance(x, Wrapped) and host_of(x).taped else x for x in (*given, *held)]
    if torch.compiler.is_compiling():
        return "torch.compile records plain operations"
    if torch.autograd.forward_ad._current_level >= 0:
        return "it has no derivative in forward mode"
    if any(type(x) not in (Tensor, torch.nn.Parameter) or _is_mapped(x) for x in arrays):
        return "it is for plain tensors, without vmap"
    if arrays[0].device.type != "cpu":
        return f"it is for the processor, not for {arrays[0].device.type}"
    for name in ("softcap", "sink", "dropout"):
        if getattr(request, name) is not None:
            return f"it knows no {name}"
    if not is_number(request.scale) or abs(request.scale) > LARGEST_SCALE:
        return f"the scale is no number up to {LARGEST_SCALE:g}"
    if not (axes.D and axes.E and all(axes.scores)):
        return "there is nothing to compute"
    if len(axes.lead) > 1 and any(x.shape[:-3] != axes.lead for x in given):
        return "of more than one leading axis some are broadcast"
    if request.bias is None and plan_of(request) is not None:
        return None
    return why_not(request)


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
    arrays = request.q, request.k, request.v, *arrays_in("", request.bias).values()
    if not any(isinstance(x, Wrapped) for x in arrays) and request.host.concrete(*arrays):
        out, lse, *_ = _attended(request)
    else:
        out, lse, *_ = differentiable(_recorded, gradients, request, always=True)
    return cast(out, request.q.dtype), lse


def _recorded(request: Request) -> tuple[Tensor, ...]:
    """As `attnspec.blocks.attend`, which takes over under transforms."""
    if not request.host.concrete(request.q, request.k, request.v, *arrays_in("", request.bias).values()):
        return attend(request, FAST)
    out, lse, *rest = _attended(request)
    return out, lse, *(rest or sums(lse))


def _attended(request: Request) -> tuple[Tensor, ...]:
    """(out, lse); with the reference and the total of each row if some are walked."""
    calls = calls_of(request)
    v = calls.read()[1]
    if are_tame(*calls.looked_at()):
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
    return chosen(walked, attend(request, FAST), (*fused, *sums(fused[1]))) if bool(walked.any()) else fused


SDPA = Kernel(
    "scaled_dot_product_attention", supports, call, recorded=True, is_near=lambda x: x.is_cpu, at_once=at_once
)
