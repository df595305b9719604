"""The models of transformers with attnspec for their attention, against their own eager attention.

Twenty-one families, tiny and random, with either kind of mask that `attnspec.integrations.transformers.register` knows.
Rows that are padding are not compared: without a key, eager attention gives the mean of all values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from case import Case
from transformers_tiny import DECODER, GROUPED, attending, eager, model, tokens

from attnspec.integrations import transformers as integration

# Of the greatest entry of the last hidden state: two layers on amplify the rounding of the attention below.
TOLERANCE = {"float64": 1e-9, "float32": 3e-5}

MASKS = ("rules", "arrays")


@dataclass(frozen=True)
class Family:
    """A class of transformers, the options of its configuration, and inputs(dtype) -> (inputs, the rows that count)."""

    model: str
    options: dict[str, Any]
    inputs: Callable[[torch.dtype], tuple[dict[str, Any], Any]]


def cases(dtype: str = "float32") -> list[Case]:
    """A case for each family and kind of mask."""
    return [
        Case(f"{dtype}: {family}, masks as {masks}", partial(check, family, masks, dtype))
        for family in FAMILIES
        for masks in MASKS
    ]


def check(family: str, masks: str, dtype: str) -> None:
    """Raise AssertionError where the last hidden state is not eager's."""
    name = f"attnspec-{masks}"
    integration.register(name, masks=masks)
    made, inputs, rows = _made(family, dtype)
    wanted = _eager(family, dtype)
    with torch.no_grad():
        got = attending(made, name)(**inputs).last_hidden_state[rows]
    error = ((got - wanted).abs().max() / wanted.abs().max()).item()
    assert error <= TOLERANCE[dtype], f"{family}: {error:.1e} of the greatest entry away from eager"


@cache
def _made(family: str, dtype: str) -> tuple[Any, dict[str, Any], Any]:
    wanted = FAMILIES[family]
    inputs, rows = wanted.inputs(getattr(torch, dtype))
    return model(wanted.model, wanted.options, getattr(torch, dtype)), inputs, rows


@cache
def _eager(family: str, dtype: str) -> torch.Tensor:
    made, inputs, rows = _made(family, dtype)
    with torch.no_grad(), eager(made) as truth:
        return truth(**inputs).last_hidden_state[rows]


EVERY_ROW = slice(None)
LENGTHS = torch.tensor([[11], [7], [9]])


def _text(dtype: torch.dtype) -> tuple[dict[str, Any], Any]:
    mask = torch.arange(11) < LENGTHS
    return {"input_ids": tokens(3, 11), "attention_mask": mask.long()}, mask


def _translation(dtype: torch.dtype) -> tuple[dict[str, Any], Any]:
    return {**_text(dtype)[0], "decoder_input_ids": tokens(3, 6, seed=2)}, EVERY_ROW


def _image(dtype: torch.dtype) -> tuple[dict[str, Any], Any]:
    return {"pixel_values": _normal(3, 3, 16, 16).to(dtype)}, EVERY_ROW


def _speech(dtype: torch.dtype) -> tuple[dict[str, Any], Any]:
    return {"input_features": _normal(3, 8, 20).to(dtype), "decoder_input_ids": tokens(3, 11)}, EVERY_ROW


def _normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def _family(model: str, inputs: Any, *bases: dict[str, Any], without: str = "", **options: Any) -> Family:
    merged = {name: x for base in bases for name, x in base.items() if name != without}
    return Family(model, merged | options, inputs)


ALTERNATING = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
ENCODER_DECODER = {
    "vocab_size": 97, "d_model": 48, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 6,
    "decoder_attention_heads": 6, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 3,
}  # fmt: skip

FAMILIES = {
    "bert": _family("BertModel", _text, DECODER),
    "bert-decoder": _family("BertModel", _text, DECODER, is_decoder=True),
    "roberta": _family("RobertaModel", _text, DECODER, max_position_embeddings=80),
    "distilbert": _family(
        "DistilBertModel", _text, vocab_size=97, dim=48, hidden_dim=40, n_layers=2, n_heads=6,
        max_position_embeddings=64,
    ),
    "vit": _family("ViTModel", _image, DECODER, without="vocab_size", image_size=16, patch_size=4),
    "gpt2": _family(
        "GPT2Model", _text, vocab_size=97, n_embd=48, n_layer=2, n_head=6, n_positions=64, bos_token_id=1,
        eos_token_id=2, scale_attn_by_inverse_layer_idx=True,
    ),
    "opt": _family("OPTModel", _text, DECODER, without="intermediate_size", ffn_dim=40, word_embed_proj_dim=48),
    "llama": _family("LlamaModel", _text, GROUPED),
    "llama-one-group": _family("LlamaModel", _text, GROUPED, num_key_value_heads=1),
    "mistral": _family("MistralModel", _text, GROUPED, num_key_value_heads=3, sliding_window=4),
    "qwen3": _family("Qwen3Model", _text, GROUPED),
    "gemma2": _family(
        "Gemma2Model", _text, GROUPED, ALTERNATING, attn_logit_softcapping=2.0, query_pre_attn_scalar=16
    ),
    "gemma3": _family("Gemma3TextModel", _text, GROUPED, ALTERNATING),
    "gpt-oss": _family("GptOssModel", _text, GROUPED, ALTERNATING, num_local_experts=2, num_experts_per_tok=1),
    "cohere": _family("CohereModel", _text, GROUPED, without="head_dim"),
    "phi3": _family("Phi3Model", _text, GROUPED, without="head_dim", sliding_window=4),
    "granite": _family("GraniteModel", _text, GROUPED, without="head_dim", attention_multiplier=0.3),
    "t5": _family(
        "T5Model", _translation, vocab_size=97, d_model=48, d_kv=8, d_ff=40, num_layers=2, num_heads=6,
        relative_attention_num_buckets=8, relative_attention_max_distance=16, pad_token_id=0, decoder_start_token_id=0,
    ),
    "whisper": _family(
        "WhisperModel", _speech, ENCODER_DECODER, num_mel_bins=8, max_source_positions=10, max_target_positions=32,
        suppress_tokens=None, begin_suppress_tokens=None,
    ),
    "bart": _family("BartModel", _translation, ENCODER_DECODER, max_position_embeddings=64),
    "clip": _family("CLIPTextModel", _text, DECODER),
}  # fmt: skip
