"""Tiny random models of transformers, and transformers' own eager attention as the truth."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import transformers
from torch.nn import functional

VOCABULARY = 97
# Batch 3, 6 heads of width 8, 11 tokens: no two of the axes are equal.
DECODER = {
    "vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 6, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = dict(DECODER, num_key_value_heads=2, head_dim=8)


def model(name: str, options: dict[str, Any], dtype: torch.dtype, *, spread: float = 0.5) -> Any:
    """A model of that class for evaluation, of eager attention. Its weights are of a size that makes attention choose.

    Experts are computed one by one: the grouped product of torch knows no float64.
    """
    cls = getattr(transformers, name)
    config = cls.config_class(**options)
    made = cls._from_config(config, attn_implementation="eager", experts_implementation="eager").to(dtype).eval()
    drawn = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter_name, parameter in made.named_parameters():
            if parameter.ndim >= 2:
                parameter.copy_(torch.randn(parameter.shape, generator=drawn) * spread)
            elif "sinks" in parameter_name:
                parameter.copy_(torch.randn(parameter.shape, generator=drawn))
    return made


def tokens(*shape: int, seed: int = 1) -> torch.Tensor:
    """Random tokens, none of them special."""
    return torch.randint(3, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


@contextlib.contextmanager
def eager(made: Any) -> Iterator[Any]:
    """The model with its own attention; in float64, without the softmax in float32 that many families insist on."""
    double = next(made.parameters()).dtype == torch.float64
    with mock.patch.object(functional, "softmax", _uncast_softmax) if double else contextlib.nullcontext():
        yield attending(made, "eager")


def attending(made: Any, implementation: str) -> Any:
    """The model with the registered attention of that name."""
    made.set_attn_implementation(implementation)
    return made


_softmax = functional.softmax


def _uncast_softmax(x: torch.Tensor, dim: int | None = None, dtype: torch.dtype | None = None) -> torch.Tensor:
    lowered = x.dtype == torch.float64 and dtype == torch.float32
    return _softmax(x, dim=dim, dtype=None if lowered else dtype)
