"""Modules of torch and of attnspec with numbers of which every omission shows."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import attnspec
from attnspec.backend import torch as backend

B, Q, K, H, D, C = 3, 5, 7, 2, 4, 6
M = H * D
KEY = attnspec.random.key
EXACT = {"rtol": 0.0, "atol": 1e-12}  # two ways of float64 through numbers of size 1


def rows(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Normal numbers, the same for the same shape and seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def randomised(module: Any) -> Any:
    """In float64 and for evaluation, no parameter left at 0 or 1, where an omission would not show."""
    module = module.to(torch.float64).eval()
    with torch.no_grad():
        for n, parameter in enumerate(module.parameters()):
            parameter.copy_(rows(*parameter.shape, seed=n + 10) * 0.7)
    return module


def attention(**options: Any) -> Any:
    """One of torch's."""
    return randomised(nn.MultiheadAttention(M, H, **options))


def encoder_layer(**options: Any) -> Any:
    """One of torch's, with an eps that shows."""
    return randomised(nn.TransformerEncoderLayer(M, H, 11, **({"layer_norm_eps": 0.1} | options)))


def layer(**options: Any) -> Any:
    """One of attnspec's."""
    sizes = {"model_width": M, "heads": H, "hidden_width": 11, "order": "pre"}
    return backend.TransformerLayer.init(KEY(0), **(sizes | options))


def seen(batch_first: bool, x: torch.Tensor) -> torch.Tensor:
    """x (B, rows, M) as a module with that layout takes it, and back."""
    return x if batch_first else x.transpose(0, 1)
