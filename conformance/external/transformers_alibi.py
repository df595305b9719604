"""The ALiBi layers of Bloom and MPT, which do not ask transformers' interfaces: what enters and leaves their attention.

Falcon's eager attention adds ALiBi twice in transformers 5.24, so that it is no truth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from case import Case
from transformers import DynamicCache
from transformers_tiny import eager, model, tokens

from attnspec import alibi, as_mask, causal
from attnspec.integrations import transformers as integration

B, PROMPT, STEP, LAYERS, WIDTH = 3, 9, 2, 2, 48
# Sequences 1 and 2 begin with padding.
REAL = torch.arange(PROMPT + STEP) >= torch.tensor([[0], [4], [2]])


@dataclass(frozen=True)
class Family:
    """`split` makes q, k, v (B, rows, H, D) of the projection's output; MPT's softmax is in float32 in any case."""

    model: str
    options: Callable[[int], dict[str, Any]]
    attention: str
    projection: str
    merged: str
    split: Callable[[torch.Tensor, int], tuple[torch.Tensor, ...]]
    dtype: torch.dtype
    tolerance: float


FAMILIES = {
    "bloom": Family(
        "BloomModel",
        lambda H: {"vocab_size": 97, "hidden_size": WIDTH, "n_layer": LAYERS, "n_head": H},
        "h.{}.self_attention", "query_key_value", "dense",
        lambda x, H: x.unflatten(-1, (H, 3, -1)).unbind(-2),
        torch.float64, 1e-9,
    ),
    "mpt": Family(
        "MptModel",
        lambda H: {"vocab_size": 97, "d_model": WIDTH, "n_layers": LAYERS, "n_heads": H, "max_seq_len": 32},
        "blocks.{}.attn", "Wqkv", "out_proj",
        lambda x, H: x.unflatten(-1, (3, H, -1)).unbind(-3),
        torch.float32, 1e-5,
    ),
}  # fmt: skip


def cases() -> list[Case]:
    """Two families; 4 heads, and 6, whose slopes follow another rule; a prompt, and two tokens more with its cache."""
    return [
        Case(f"{family}: {H} heads, {'a step with a cache' if step else 'the prompt'}", partial(check, family, H, step))
        for family in FAMILIES
        for H in (4, 6)
        for step in (0, 1)
    ]


def check(family: str, H: int, step: int) -> None:
    """Raise AssertionError where the heads of a layer are not those that its output projection was given."""
    wanted = FAMILIES[family]
    for q, k, v, heads in _seen(family, H)[step]:
        Q, K = q.shape[-2], k.shape[-2]
        got = integration.attention(
            q, k, v, mask=causal(align="end") & as_mask(REAL[:, None, None, :K]), bias=alibi(H, align="end"),
            scale=(WIDTH // H) ** -0.5,
        )  # fmt: skip
        rows = REAL[:, K - Q : K]
        got, heads = got.transpose(1, 2).flatten(2)[rows], heads[rows]
        error = ((got - heads).abs().max() / heads.abs().max()).item()
        assert error <= wanted.tolerance, f"{family}: {error:.1e} of the greatest entry away from the layer"


@cache
def _seen(family: str, H: int) -> tuple[list[tuple[torch.Tensor, ...]], ...]:
    """For the prompt and the step: q, k, v and the merged heads of each layer."""
    wanted = FAMILIES[family]
    made = model(wanted.model, wanted.options(H), wanted.dtype)
    projected, merged = [], []
    for layer in range(LAYERS):
        attention = made.get_submodule(wanted.attention.format(layer))
        projection, out = attention.get_submodule(wanted.projection), attention.get_submodule(wanted.merged)
        projection.register_forward_hook(lambda module, inputs, output: projected.append(output))
        out.register_forward_pre_hook(lambda module, inputs: merged.append(inputs[0]))
    ids, kept, calls = tokens(B, PROMPT + STEP), DynamicCache(config=made.config), []
    with torch.no_grad(), eager(made) as truth:
        for first, last in ((0, PROMPT), (PROMPT, PROMPT + STEP)):
            projected.clear(), merged.clear()
            truth(input_ids=ids[:, first:last], attention_mask=REAL[:, :last].long(), cache=kept, use_cache=True)
            queries = [wanted.split(x, H)[0].transpose(1, 2) for x in projected]
            layers = zip(queries, kept.layers, merged, strict=True)
            calls.append([(q, entry.keys.clone(), entry.values.clone(), heads) for q, entry, heads in layers])
    return tuple(calls)
