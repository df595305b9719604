"""torch.nn.MultiheadAttention, with projections that are the identity: one subject for each of its ways to compute.

Without weights it asks scaled_dot_product_attention; with them it computes them; and its fast path is a kernel of its
own, for evaluation of self-attention without gradients, of an even number of heads.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import count

import numpy as np
import torch
from attnspec_conformance import masks
from attnspec_conformance.adapters import Adapter, Flag, Pairs
from attnspec_conformance.trials import Call
from torch import Tensor
from torch.nn.functional import pad
from torch_subjects import DTYPES, REFUSALS, bias_of_q, fits
from wrapping import of_one_head


def _multihead(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    need_weights: bool,
    hidden: Tensor | None = None,
    bias: Tensor | None = None,
    is_causal: bool = False,
    rate: float = 0.0,
    training: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Output and weights of a layer. `is_causal` is a hint, that the mask beside it is the causal one."""
    mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).triu(1) if is_causal else hidden
    if bias is not None:
        mask = bias if mask is None else torch.where(mask, -torch.inf, bias)
    layer = _identity(*q.shape[2:], v.shape[3], rate, q.dtype).train(training)
    out, weights = layer(
        *(x.flatten(2) for x in (q, k, v)), attn_mask=_by_head(mask), is_causal=is_causal and bias is None,
        need_weights=need_weights, average_attn_weights=False,
    )  # fmt: skip
    return out.unflatten(2, q.shape[2:])[..., : v.shape[3]], weights


@lru_cache
def _identity(H: int, D: int, E: int, rate: float, dtype: torch.dtype) -> torch.nn.MultiheadAttention:
    """The projection of the values adds columns of zeros to each head where they are narrower than q."""
    layer = torch.nn.MultiheadAttention(
        H * D, H, dropout=rate, bias=False, kdim=H * D, vdim=H * E, batch_first=True, dtype=dtype
    )
    same, widened = torch.eye(H * D), torch.kron(torch.eye(H), torch.eye(D, E))
    projections = {"q_proj_weight": same, "k_proj_weight": same, "v_proj_weight": widened}
    if E == D:
        projections = {"in_proj_weight": torch.cat([*projections.values()])}
    layer.load_state_dict({**projections, "out_proj.weight": same})
    return layer.requires_grad_(False)


def _by_head(mask: Tensor | None) -> Tensor | None:
    """(B * H, Q, K)."""
    return mask.flatten(0, 1) if mask is not None and mask.ndim == 4 else mask


def _multihead_limits(call: Call) -> str | None:
    if not 0 < call.q.shape[-1] >= call.v.shape[-1]:
        return "its heads have one width, which is not 0"
    return of_one_head(call) or _of_overflow(call) or bias_of_q(call)


def _of_overflow(call: Call) -> str | None:
    """A limit of layers too: finite numbers of which one head, and not all, may make a score that is not finite."""
    q, k = (np.abs(np.asarray(x, np.float64)).max(initial=0) for x in (call.q, call.k))
    if call.q.ndim > 2 and np.finfo(np.float32).max < call.q.shape[-1] * q * k < np.inf:
        return "its projections spread what overflows in one head over all of them"
    return None


def _of_empty_rows(call: Call) -> str | None:
    """A limit where a row without keys gives NaN."""
    if not fits(call):
        return None
    pairs = (*call.q.shape[:-1], call.k.shape[-2])
    seen = np.ones(pairs, bool)
    if call.mask is not None:
        seen = seen & masks.pairs(call.mask, pairs, call.q_positions, call.k_positions)
    if call.bias is not None:
        seen = seen & (call.bias != -np.inf)
    rows = seen.any(-1)
    if rows.ndim > 1 and (rows.any(-2) != rows.all(-2)).any():
        return "its projection spreads what a row without keys gives in one head over all of them"
    return None


mha = Adapter(
    name="torch.mha",
    kernel=lambda *arrays, **options: _multihead(*arrays, need_weights=False, **options)[0],
    backend="torch",
    capabilities=(*DTYPES, "vjp"),
    layout="BSHD",
    mask=Pairs("hidden", means="hidden"),
    causal=Flag("is_causal", align="start"),
    arguments={"bias": "bias", "rate": "rate"},
    rounds_weights=True,
    limits=_multihead_limits,
    refusals=REFUSALS,
)
mha_weights = replace(
    mha,
    name="torch.mha.weights",
    rounds_weights=False,
    limits=lambda call: _multihead_limits(call) or _of_empty_rows(call),
    kernel=lambda *arrays, **options: _multihead(*arrays, need_weights=True, **options)[0],
    weights=lambda *arrays, **options: _multihead(*arrays, need_weights=True, **options)[1],
)
mha_weights_eval = replace(
    mha_weights,
    name="torch.mha.weights.eval",
    kernel=lambda *arrays, **options: _multihead(*arrays, need_weights=True, training=False, **options)[0],
    weights=lambda *arrays, **options: _multihead(*arrays, need_weights=True, training=False, **options)[1],
    arguments={"bias": "bias"},
)


def _fast(q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor | None = None) -> Tensor:
    H, E = q.shape[2], v.shape[3]
    layer = _self_attention(H, q.shape[3], E, q.dtype)
    x = torch.cat([part.flatten(2) for part in (q, k, v)], dim=2)
    if hidden is not None and hidden.ndim == 4:
        hidden = pad(hidden, (0, 0, 0, 0, 0, layer.num_heads - H))
    with torch.no_grad():
        x = pad(x, (0, layer.embed_dim - x.shape[2]))
        out, _ = layer(x, x, x, attn_mask=_by_head(hidden), need_weights=False)
    return out.unflatten(2, (layer.num_heads, -1))[..., :H, :E]


@lru_cache
def _self_attention(H: int, D: int, E: int, dtype: torch.dtype) -> torch.nn.MultiheadAttention:
    """Of tokens that are a query, a key and a value end to end: its projections choose, and multiply q by 2**n.

    Heads are 4**n times as wide as q to hold all three, and the scale of the layer is 2**n times smaller for it.
    """
    heads, parts = H + H % 2, (D, D, E)
    n = next(n for n in count() if heads * D * 4**n >= H * sum(parts))
    width = D * 4**n
    layer = torch.nn.MultiheadAttention(heads * width, heads, batch_first=True, dtype=dtype)
    projections = torch.zeros(3, heads, width, heads * width)
    start = 0
    for projection, columns, factor in zip(projections, parts, (2.0**n, 1.0, 1.0), strict=True):
        for h in range(H):
            projection[h, :columns, start : start + columns] = factor * torch.eye(columns)
            start += columns
    layer.load_state_dict({
        "in_proj_weight": projections.reshape(-1, heads * width),
        "in_proj_bias": torch.zeros(3 * heads * width),
        "out_proj.weight": torch.eye(heads * width),
        "out_proj.bias": torch.zeros(heads * width),
    })  # fmt: skip
    return layer.requires_grad_(False).eval()


def _fast_limits(call: Call) -> str | None:
    if call.q.shape[-2] != call.k.shape[-2]:
        return "self-attention has as many queries as keys"
    if not call.q.shape[-1]:
        return "its heads have a width that is not 0"
    if not all(np.isfinite(x).all() for x in (call.q, call.k, call.v)):
        return "its projections mix a query, a key and a value, so that what is not finite in one is not in all"
    return _of_empty_rows(call)


mha_fast = replace(
    mha,
    name="torch.mha.fast",
    kernel=_fast,
    capabilities=DTYPES,
    causal=None,
    arguments={},
    limits=_fast_limits,
)
