"""The attention functions that models of transformers choose between, asked as its models ask them.

"eager" is a function of each model's own: that of Llama, of Gemma 2 with a softcap, of GPT-OSS with sinks. A mask comes
to it as 0 and the lowest number, in the form of `masking_utils.eager_mask`; "sdpa" gets a boolean one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from attnspec_conformance.adapters import Adapter, Flag, Pairs
from attnspec_conformance.trials import Call
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.llama import modeling_llama


def _eager(
    attend: Callable[..., tuple[Tensor, Tensor]],
    part: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attends: Tensor | None = None,
    bias: Tensor | None = None,
    is_causal: bool = False,
    scaling: float | None = None,
    dropout: float = 0.0,
    sinks: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """Output or weights. A mask and a bias are added up, as T5 does."""
    mask = eager_mask(**_lengths(q, k), dtype=q.dtype) if is_causal else None
    if attends is not None:
        mask = torch.where(attends, torch.zeros((), dtype=q.dtype), torch.finfo(q.dtype).min)
    if bias is not None:
        mask = bias if mask is None else bias + mask
    module = _module(q, k, training=True, sinks=sinks)
    scaling = q.shape[-1] ** -0.5 if scaling is None else scaling
    return _heads_first(*attend(module, q, k, v, mask, scaling=scaling, dropout=dropout, **options))[part]


def _sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attends: Tensor | None = None,
    is_causal: bool = False,
    scaling: float | None = None,
    **options: Any,
) -> Tensor:
    """The mask of a causal model is None where the flag says the same."""
    mask = sdpa_mask(**_lengths(q, k)) if is_causal else attends
    module = _module(q, k, is_causal=is_causal)
    scaling = q.shape[-1] ** -0.5 if scaling is None else scaling
    return _heads_first(*sdpa_attention_forward(module, q, k, v, mask, scaling=scaling, **options))[0]


def _lengths(q: Tensor, k: Tensor) -> dict[str, int]:
    """The last query is at the last key, as it is with a cache."""
    Q, K = q.shape[2], k.shape[2]
    return {"batch_size": q.shape[0], "q_length": Q, "kv_length": K, "q_offset": K - Q}


def _module(q: Tensor, k: Tensor, **attributes: Any) -> SimpleNamespace:
    """What the functions read of the layer that asks them."""
    return SimpleNamespace(num_key_value_groups=q.shape[1] // k.shape[1], **attributes)


def _heads_first(out: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
    return out.transpose(1, 2), weights


def _limits(call: Call) -> str | None:
    if call.bias_dtype not in (None, call.dtype):
        return "a float mask has the dtype of q"
    if not call.q.shape[-1]:
        return "its models divide by the root of the width"
    return None


def _sinks_limits(call: Call) -> str | None:
    if call.sink is None:
        return "its models have a sink for every head"
    return _limits(call)


def _eager_of(name: str, attend: Callable[..., tuple[Tensor, Tensor]], **more: str) -> Adapter:
    return Adapter(
        name=name,
        kernel=partial(_eager, attend, 0),
        backend="torch",
        capabilities=("float64", "float16", "bfloat16", "vjp"),
        grouped=True,
        mask=Pairs("attends"),
        causal=Flag("is_causal", align="end"),
        arguments={"bias": "bias", "scale": "scaling", "rate": "dropout"} | more,
        weights=partial(_eager, attend, 1),
        limits=_limits,
        refusals=(ValueError, TypeError, RuntimeError, IndexError),
    )


eager = _eager_of("transformers.eager", modeling_llama.eager_attention_forward)
eager_softcap = _eager_of("transformers.eager.softcap", modeling_gemma2.eager_attention_forward, softcap="softcap")
eager_sinks = replace(
    _eager_of("transformers.eager.sinks", modeling_gpt_oss.eager_attention_forward, sink="sinks"), limits=_sinks_limits
)
sdpa = replace(
    eager,
    name="transformers.sdpa",
    kernel=_sdpa,
    weights=None,
    arguments={"bias": "position_bias", "scale": "scaling", "rate": "dropout"},
)
