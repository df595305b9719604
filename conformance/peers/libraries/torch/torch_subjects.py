"""PyTorch's functions of attention: scaled_dot_product_attention and flex_attention.

Its masks come in one argument that is boolean or a bias, so what is masked is minus infinity in the bias where a call
has both, as its documentation says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from attnspec_conformance import masks
from attnspec_conformance.adapters import Adapter, Flag, Pairs, Sides
from attnspec_conformance.trials import Call
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from wrapping import widened

DTYPES = ("float64", "float16", "bfloat16")
REFUSALS = (ValueError, TypeError, RuntimeError, IndexError, AssertionError)


def bias_of_q(call: Call) -> str | None:
    if call.bias_dtype not in (None, call.dtype):
        return "a float mask has the dtype of q"
    return None


# scaled_dot_product_attention


def _sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attends: Tensor | None = None,
    bias: Tensor | None = None,
    is_causal: bool = False,
    **options: Any,
) -> Tensor:
    """`is_causal` beside a mask is an error, so what it says is a mask itself beside a bias."""
    mask, flagged = attends, is_causal and bias is None
    if is_causal and not flagged:
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    if bias is not None:
        mask = bias if mask is None else torch.where(mask, bias, -torch.inf)
    grouped = q.shape[-3] != k.shape[-3]
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=flagged, enable_gqa=grouped, **options)


def _math(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return _sdpa(q, k, v, **options)


def _flash(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return _sdpa(q, k, v, **options)


def _flash_limits(call: Call) -> str | None:
    if call.dropout is not None and call.dropout.rate > 0:
        return "on the processor the flash kernel has no dropout"
    if 0 in call.q.shape + call.k.shape + call.v.shape:
        return "the flash kernel takes no empty axes"
    if call.layout in ("transposed", "strided"):
        return "the flash kernel takes no arrays whose last axis is not contiguous"
    return bias_of_q(call)


sdpa = Adapter(
    name="torch.sdpa",
    kernel=_sdpa,
    backend="torch",
    capabilities=(*DTYPES, "vjp"),
    leading=None,
    grouped=True,
    mask=Pairs("attends", means="attends"),
    causal=Flag("is_causal", align="start"),
    arguments={"bias": "bias", "scale": "scale", "rate": "dropout_p"},
    limits=bias_of_q,
    refusals=REFUSALS,
)
sdpa_math = replace(sdpa, name="torch.sdpa.math", kernel=_math)
sdpa_flash = replace(
    sdpa,
    name="torch.sdpa.flash",
    kernel=widened(_flash),  # it wants one width
    leading=1,
    rounds_weights=True,
    limits=_flash_limits,
)


# flex_attention


def _flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attends: Tensor | None = None,
    causal: bool = False,
    window: tuple[int | None, int | None] = (None, None),
    bias: Tensor | None = None,
    softcap: float | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """A mask is a function that says whether a pair is seen, cap and bias a function of its score."""
    left, right = window

    def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        seen = torch.ones_like(i, dtype=torch.bool)
        if attends is not None:
            seen = seen & attends[b, h, i, j]
        if causal:
            seen = seen & (j <= i)
        if left is not None:
            seen = seen & (i - left <= j)
        if right is not None:
            seen = seen & (j <= i + right)
        return seen

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        return score if bias is None else score + bias[b, h, i, j]

    (B, H, Q, _), K = q.shape, k.shape[2]
    masked = attends is not None or causal or window != (None, None)
    out, aux = flex_attention(
        q, k, v,
        score_mod=None if softcap is None and bias is None else score_mod,
        block_mask=create_block_mask(mask_mod, B, H, Q, K, device="cpu") if masked else None,
        scale=scale,
        enable_gqa=k.shape[1] != H,
        return_aux=AuxRequest(lse=True),
    )  # fmt: skip
    return out, aux.lse


def _flex_limits(call: Call) -> str | None:
    return None if fits(call) else "its masks and biases are functions, which have no shape that could fail to fit"


def fits(call: Call) -> bool:
    """Whether mask and bias broadcast from the right to (..., H, Q, K)."""
    pairs = (*call.q.shape[:-1], call.k.shape[-2])
    given = [call.bias, *([call.mask.array] if isinstance(call.mask, masks.Dense) else [])]
    shapes = [x.shape for x in given if x is not None]
    return all(
        len(shape) <= len(pairs) and all(n in (1, m) for n, m in zip(shape[::-1], pairs[::-1], strict=False))
        for shape in shapes
    )


flex = Adapter(
    name="torch.flex",
    kernel=_flex,
    backend="torch",
    capabilities=DTYPES,
    grouped=True,
    mask=Pairs("attends"),
    causal=Flag("causal", align="start"),
    window=Sides("window", align="start", unbounded=None),
    arguments={"bias": "bias", "scale": "scale", "softcap": "softcap"},
    lse="e",
    limits=_flex_limits,
    refusals=REFUSALS,
)
