"""What a project on PyTorch writes: functions of tensors, and modules among its own."""

from __future__ import annotations

import torch
from attnspec_torch.modules import AddAndNorm, MultiHeadAttention, TransformerLayer

import attnspec
from attnspec.integrations.torch import scaled_dot_product_attention


class Block(torch.nn.Module):
    """A model with attnspec's modules for parts."""

    def __init__(self) -> None:
        super().__init__()
        rng = attnspec.random.key(0)
        self.attention = MultiHeadAttention.init(rng, model_width=8, heads=2, dropout=0.1)
        self.norm = AddAndNorm.from_torch(torch.nn.LayerNorm(8), dropout=0.1)
        self.layer = TransformerLayer.from_torch(torch.nn.TransformerEncoderLayer(8, 2, batch_first=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, Q, M) -> (B, Q, M)."""
        attended: torch.Tensor = self.attention(x, mask=attnspec.causal())
        y = self.norm.forward(x, attended, rng=attnspec.random.key(1))
        return self.layer.forward(y, mask=attnspec.window(2, 0), rotary=attnspec.Rotary())


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The functions, in attnspec's words and in PyTorch's."""
    drop = attnspec.Dropout(0.1, attnspec.random.key(0))
    out: torch.Tensor = attnspec.attention(q, k, v, mask=attnspec.causal(), dropout=drop)
    same: torch.Tensor = scaled_dot_product_attention(q, k, v, is_causal=True)
    return out + same


def parameters(layer: TransformerLayer) -> attnspec.LayerParams:
    """What the functions take, of a module."""
    params: attnspec.LayerParams = layer.params
    return params
