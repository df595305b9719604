"""Small random models of transformers, and attnspec's of the same tensors."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
import transformers

import attnspec
from attnspec import checkpoints
from attnspec.backend import numpy as backend

VOCABULARY, LENGTHS = 31, [7, 2, 5]
# 6 heads of 4 make 24; the head width of Llamas is free, so there the model is 18 wide.
SIZES = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WIDE = SIZES | {"hidden_size": 24, "intermediate_size": 22, "num_hidden_layers": 3, "num_attention_heads": 6}
GROUPED = WIDE | {"hidden_size": 18, "head_dim": 4, "num_key_value_heads": 2, "rms_norm_eps": 0.1}
SHORT_TURNS = {"rope_parameters": {"rope_type": "default", "rope_theta": 30.0}}
CLASSES = {
    "bert": (transformers.BertModel, WIDE | {"layer_norm_eps": 0.1, "max_position_embeddings": 9}),
    "gpt2": (
        transformers.GPT2LMHeadModel,
        SIZES | {"n_embd": 24, "n_layer": 3, "n_head": 6, "n_inner": 22, "n_positions": 9, "layer_norm_epsilon": 0.1},
    ),
    "llama": (transformers.LlamaForCausalLM, GROUPED | SHORT_TURNS),
    "mistral": (transformers.MistralForCausalLM, GROUPED | SHORT_TURNS | {"sliding_window": 3}),
    "qwen2": (transformers.Qwen2ForCausalLM, GROUPED | SHORT_TURNS | {"num_key_value_heads": 3}),
}
VARIANTS = {
    **{family: (family, {}) for family in CLASSES},
    "bert, relu": ("bert", {"hidden_act": "relu"}),
    "bert, tanh": ("bert", {"hidden_act": "gelu_new"}),
    "gpt2, relu": ("gpt2", {"activation_function": "relu"}),
    "gpt2, untied": ("gpt2", {"tie_word_embeddings": False}),
    "llama, biases": ("llama", {"attention_bias": True}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, gelu": ("llama", {"hidden_act": "gelu"}),
    "llama, a window that is not its own": ("llama", {"sliding_window": 3}),
    "llama, no groups": ("llama", {"num_key_value_heads": 6}),
    "mistral, no window": ("mistral", {"sliding_window": None}),
}
CAUSAL = [name for name, (family, _) in VARIANTS.items() if family != "bert"]


def tolerance(name: str) -> float:
    """Of the greatest entry. Llama's norms and angles are float32 whatever the dtype, the others' insides float64."""
    return 2.0**-40 if VARIANTS[name][0] in ("bert", "gpt2") else 2.0**-18


@cache
def made(name: str) -> Any:
    """A random model in float64, with weights of a size at which attention chooses."""
    family, options = VARIANTS[name]
    cls, sizes = CLASSES[family]
    torch.manual_seed(3)
    model = cls(cls.config_class(**(sizes | options))).to(torch.float64).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64) * 0.4)
    return model


def ids() -> Any:
    """Three texts of LENGTHS tokens."""
    drawn = np.random.default_rng(0).integers(3, VOCABULARY, (3, max(LENGTHS)))
    return np.where(np.arange(max(LENGTHS)) < np.asarray(LENGTHS)[:, None], drawn, 0)


def theirs(name: str, **inputs: Any) -> Any:
    """All that transformers' model gives for the texts."""
    tokens = torch.asarray(ids())
    real = torch.arange(tokens.shape[1]) < torch.asarray(LENGTHS)[:, None]
    with torch.no_grad():
        return made(name)(input_ids=tokens, attention_mask=real.int(), output_hidden_states=True, **inputs)


def converted(name: str, **config: Any) -> checkpoints.Model:
    """attnspec's model of the same tensors, with another configuration if one is given."""
    model = made(name)
    return checkpoints.convert(model.state_dict(), model.config.to_dict() | config, backend=backend)


def distance(got: Any, wanted: Any) -> float:
    """Of the rows that mean something, in units of the greatest entry."""
    real = np.arange(max(LENGTHS)) < np.asarray(LENGTHS)[:, None]
    got, wanted = np.asarray(got)[real], np.asarray(wanted)[real]
    assert got.shape == wanted.shape
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


def same(one: checkpoints.Model, other: checkpoints.Model) -> None:
    """The same parameters to the bit, and the same of what is no array."""
    left, right = attnspec.params.flatten(one), attnspec.params.flatten(other)
    assert left.keys() == right.keys()
    for name, x in left.items():
        np.testing.assert_array_equal(x, right[name])
    assert (one.causal, one.tied, one.window, one.rotary) == (other.causal, other.tied, other.window, other.rotary)
