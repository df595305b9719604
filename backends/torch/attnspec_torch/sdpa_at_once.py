"""Calls that are one call of the fused operation, recognised at a glance and looked at as little as will do.

At 512 queries the operation takes 5 ms, and to check a call, to plan it and to read what came back takes a fifth of
that again; at 8 queries, twenty times as long as the operation. What shapes say is found once for all calls of these.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnspec.host import host_of
from attnspec.request import Request
from attnspec.rules import Padding, Rule, Window, as_mask
from attnspec.shapes import Axes, is_number

from .sdpa_calls import (
    LARGEST_LSE,
    LARGEST_SCALE,
    are_few,
    are_tame,
    attend,
    bias_of,
    fused,
    in_halves,
    is_halved,
    pull,
    readable,
)
from .sdpa_gradients import gradients, sums
from .sdpa_plan import Plan, with_rule
from .sdpa_stripes import ENTRIES

_C, _forward_ad, _is_compiling = torch._C, torch.autograd.forward_ad, torch.compiler.is_compiling


class _Known(NamedTuple):
    """What the shapes and the rule of a call say."""

    axes: Axes
    scale: float
    keys: int  # the first of them are read
    causal: bool
    few: bool  # see `are_few`
    halved: bool  # see `is_halved`


def at_once(q: Any, k: Any, v: Any, mask: Any, scale: Any) -> Tensor | None:
    """`attention` of such a call, with the bits of `sdpa.call`; None: of another, or some rows have to be mended."""
    if not (type(q) is Tensor and type(k) is Tensor and type(v) is Tensor and _is_undisturbed()):
        return None
    if q.ndim < 4:
        return _of_an_item(q, k, v, mask, scale)
    if not (_is_plain(q, k, v) and (scale is None or is_number(scale))):
        return None
    bias = None
    if type(mask) is Tensor:
        bias = _added(mask, q, k)
        if bias is None:
            return None
    elif not (mask is None or _is_static(mask)):
        return None
    known = _known(q.shape, k.shape, v.shape, mask if bias is None else None, scale)
    if known is None:
        return None
    if not (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)):
        found = _attended(known, q, k, v, bias)
        return None if found is None else found[0]
    with torch.no_grad():
        found = _attended(known, q, k, v, bias)
    if found is None:
        return None
    out, _ = _Recorded.apply(q, k, v, found, known, mask)
    return out


def _is_undisturbed() -> bool:
    """Whether no transform, no recording and no lower precision is in force; asked of C, in a tenth of the time."""
    return not (
        _is_compiling()
        or _C._get_tracing_state() is not None
        or _forward_ad._current_level >= 0
        or _C._functorch.peek_interpreter_stack() is not None
        or _C._is_any_autocast_enabled()
        or _C._get_fp32_precision_getter("mkldnn", "matmul") not in ("ieee", "none")
    )


def _of_an_item(q: Tensor, k: Tensor, v: Tensor, mask: Any, scale: Any) -> Tensor | None:
    """Of arrays (H, Q, D) or (Q, D)."""
    if not (1 < q.ndim == k.ndim == v.ndim and (mask is None or type(mask) is Window)):
        return None
    new = (None,) * (4 - q.ndim)
    out = at_once(q[new], k[new], v[new], mask, scale)
    return None if out is None else out[(0,) * len(new)]


def _is_plain(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Numbers in memory that the operation reads."""
    dtype = q.dtype
    return (
        dtype in _HELD
        and k.dtype is dtype
        and v.dtype is dtype
        and q.is_cpu
        and k.is_cpu
        and v.is_cpu
        and q.ndim == k.ndim == v.ndim == 4
        and q.stride(3) == k.stride(3) == v.stride(3) == 1
    )


_HELD = (torch.float32, torch.float64)


def _is_static(mask: Any) -> bool:
    """Whether a mask is a rule without arrays that may be one call."""
    kind = type(mask)
    return (kind is Window and type(mask.offset) is int) or (kind is Padding and isinstance(mask.lengths, int | tuple))


def _added(mask: Tensor, q: Tensor, k: Tensor) -> Tensor | None:
    """What is added to scores, (B or 1, H or 1, Q or 1, K): 0 and -inf; None: of another array, or of one too large."""
    shape, (B, H, Q, _), K = mask.shape, q.shape, k.shape[2]
    if not (mask.dtype is torch.bool and mask.is_cpu and shape[-1:] == (K,) and len(shape) <= 4):
        return None
    seen = mask[(None,) * (4 - len(shape))]
    b, h, rows, _ = seen.shape
    if not (b in (1, B) and h in (1, H) and rows in (1, Q)):
        return None
    if h == rows == 1:  # of one row of keys for all heads and queries it is soon known whether it hides all
        return bias_of(seen, q.dtype) if bool(seen.any(-1).all()) else None
    return bias_of(seen, q.dtype) if mask.numel() <= ENTRIES else None


def _is_of_pairs(bias: Tensor | None) -> bool:
    return bias is not None and bias.shape[1:3] != (1, 1)


@lru_cache(maxsize=256)
def _known(q: Any, k: Any, v: Any, rule: Rule | None, scale: float | None) -> _Known | None:
    """None: such a call is no single call of the operation, or it is to be refused."""
    (B, H, Q, D), (_, G, K, _) = q, k
    if k != v or (k[0], k[3]) != (B, D) or not (D > 1 and G and B * H * Q * K) or H % G:
        return None
    if not (scale is None or 0 < scale <= LARGEST_SCALE):  # the operation hides keys before it scales
        return None
    axes, plan = Axes((B,), H, G, Q, K, D, D), Plan()
    if rule is not None:
        rule.check(axes)
        plan = with_rule(plan, rule, axes)  # type: ignore[assignment]
    pieces = [] if plan is None else plan.pieces(axes)
    if len(pieces) != 1 or pieces[0][:2] != (slice(0, B), slice(0, Q)) or pieces[0].k.start:
        return None
    keys, causal = pieces[0].k.stop, pieces[0].causal
    few = are_few(Q, H // G, keys, causal=causal)
    scale = 1.0 / math.sqrt(D) if scale is None else float(scale)
    return _Known(axes, scale, keys, causal, few, is_halved(Q, keys, causal=causal))


def _attended(known: _Known, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """(out, lse), if every row sees numbers alone and is a number."""
    k, v = _read(known, k), _read(known, v)
    of_pairs = _is_of_pairs(bias)
    if of_pairs or not known.few:
        # Of numbers like these nothing else can come; and what was just read is near when the operation reads it.
        if not are_tame(q, k, v):
            return None
        if known.halved and bias is None:
            return in_halves(partial(attend, scale=known.scale), q, k, v)
        out, lse = attend(q, k, v, 0.0, known.causal, scale=known.scale, attn_mask=bias)
        return None if of_pairs and not _is_ordinary(lse) else (out, lse)
    out, lse, doubt = fused(q, k, v, known.scale, bias, causal=False, few=True)
    # An output that is finite has read no value that is not.
    return (out, lse) if doubt is None and are_tame(out) else None


def _is_ordinary(lse: Tensor) -> bool:
    """Whether each row surely sees a key, and its lse says all of it."""
    least, most = torch.aminmax(lse.abs())
    return bool(least.item() > 0 and most.item() <= LARGEST_LSE)


def _read(known: _Known, x: Tensor) -> Tensor:
    return x if known.keys == known.axes.K else x[:, :, : known.keys]


class _Recorded(torch.autograd.Function):  # type: ignore[misc]
    """Results that are at hand, and their gradients."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, found: tuple[Tensor, Tensor], known: _Known, mask: Any
    ) -> tuple[Tensor, Tensor]:
        array = mask if isinstance(mask, Tensor) else None
        ctx.save_for_backward(q, k, v, *found, array)  # who writes to one of them is told so
        ctx.call = known, None if array is not None else mask
        ctx.set_materialize_grads(False)
        return found

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, of_lse: Tensor | None) -> tuple[Any, ...]:
        q, k, v, out, lse, array = ctx.saved_tensors
        known, mask = ctx.call
        mask = mask if array is None else array
        g = torch.zeros_like(out) if g is None else g
        pulled = None if of_lse is not None else _pulled(known, mask, (q, k, v, out, lse), g)
        if pulled is None:
            rule = None if mask is None else as_mask(mask)
            request = Request(q, k, v, known.axes, rule, scale=known.scale)
            results, nothing = (out, lse, *sums(lse)), torch.zeros_like(lse)
            of_lse = nothing if of_lse is None else of_lse
            found = gradients(request, results, (g, of_lse, nothing[..., None], nothing[..., None]))
            pulled = found["q"], found["k"], found["v"]
        return (*pulled, None, None, None)


def _pulled(known: _Known, mask: Any, saved: tuple[Tensor, ...], g: Tensor) -> tuple[Tensor, ...] | None:
    """The gradients of q, k and v, if no row has to be mended and nobody differentiates them in turn."""
    q, k, v, out, lse = saved
    if not host_of(g).concrete(g, q, k, v):
        return None
    k, v = _read(known, k), _read(known, v)
    least, most = torch.aminmax(lse)
    of_size = -least.item() <= LARGEST_LSE and most.item() <= LARGEST_LSE
    # What forward looked at is not looked at again.
    if not (of_size and are_tame(*(g, q, k, v) if known.few else (g,))):
        return None
    # Made again: it may be as large as all scores of a head, and nobody knows how long a graph lives.
    bias = _added(mask, q, k) if type(mask) is Tensor else None
    options = {"scale": known.scale, "attn_mask": bias}
    pulled = pull(readable(g, g.shape[-1]), q, k, v, out, lse, 0.0, known.causal, **options)
    missing = known.axes.K - known.keys
    if not missing:
        return pulled  # type: ignore[no-any-return]
    return (pulled[0], *(torch.nn.functional.pad(x, (0, 0, 0, missing)) for x in pulled[1:]))
