"""Greedy decoding with a cache: the tokens of attnspec's attention and of eager attention, one by one."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from case import Case
from transformers_families import ALTERNATING, MASKS
from transformers_tiny import GROUPED, attending, eager, model, tokens

from attnspec.integrations import transformers as integration

B, PROMPT, STEPS = 3, 9, 32
# Sequences 1 and 2 begin with padding.
REAL = torch.arange(PROMPT) >= torch.tensor([[0], [4], [2]])

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", GROUPED),
    "mistral": ("MistralForCausalLM", dict(GROUPED, sliding_window=5)),
    "gemma2": (
        "Gemma2ForCausalLM", dict(GROUPED, **ALTERNATING, attn_logit_softcapping=2.0, query_pre_attn_scalar=16),
    ),
    "gpt-oss": ("GptOssForCausalLM", dict(GROUPED, **ALTERNATING, num_local_experts=2, num_experts_per_tok=1)),
    "qwen3": ("Qwen3ForCausalLM", GROUPED),
}  # fmt: skip


def cases() -> list[Case]:
    """Five families, two kinds of mask, and two of cache: one that grows, one of fixed length."""
    return [
        Case(f"{family}, masks as {masks}, {kept} cache", partial(check, family, masks, kept))
        for family in FAMILIES
        for masks in MASKS
        for kept in ("dynamic", "static")
    ]


def check(family: str, masks: str, kept: str) -> None:
    """Raise AssertionError where a token is another."""
    name = f"attnspec-{masks}"
    integration.register(name, masks=masks)
    wanted = _eager(family)
    got = _decoded(attending(_made(family), name), kept)
    assert torch.equal(got, wanted), f"{family}: {got.tolist()} in place of {wanted.tolist()}"


@cache
def _made(family: str) -> Any:
    # Without these two a model repeats one token for ever, whatever its attention does.
    name, options = FAMILIES[family]
    return model(name, dict(options, tie_word_embeddings=False), torch.float64, spread=0.3)


@cache
def _eager(family: str) -> torch.Tensor:
    with eager(_made(family)) as truth:
        return _decoded(truth, "dynamic")


def _decoded(made: Any, kept: str) -> torch.Tensor:
    """(B, STEPS) tokens."""
    out = made.generate(
        tokens(B, PROMPT), attention_mask=REAL.long(), do_sample=False, use_cache=True, cache_implementation=kept,
        max_new_tokens=STEPS, min_new_tokens=STEPS, disable_compile=True,
    )  # fmt: skip
    return out[:, PROMPT:]
