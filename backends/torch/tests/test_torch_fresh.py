"""What is computed a few rows at a time, over what nobody else holds, has the bits of what is computed as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import attnspec

M, F = 40, 72
RNG = torch.Generator().manual_seed(2)
GAMMA, BETA, W_IN, W_OUT, B_IN, B_OUT = (torch.randn(s, generator=RNG) for s in (M, M, (M, F), (F, M), F, M))


def network(activation: Any, gated: bool) -> Callable[[Tensor], Tensor]:
    params = attnspec.FeedForwardParams(W_IN, W_OUT, B_IN, B_OUT, W_IN + 1 if gated else None, activation=activation)
    return lambda x: attnspec.feed_forward(params, x)


CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "layer norm": lambda x: attnspec.layer_norm(x, GAMMA, BETA),
    "layer norm without gain": lambda x: attnspec.layer_norm(x, eps=0.0),
    "add and norm": lambda x: attnspec.add_and_norm(x, x.flip(0), GAMMA, BETA),
    **{a: network(a, gated=False) for a in ("relu", "gelu", "gelu_tanh", "silu")},
    "gated": network("silu", gated=True),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_many_rows_are_what_each_is(name: str, dtype: torch.dtype) -> None:
    """Twice as many as are computed at a time and some; recorded, they are computed as a whole."""
    x = torch.randn(3, 1201, M, generator=torch.Generator().manual_seed(1)).to(dtype)
    x[1, 5] *= 1e18
    x[2, 7] = 3.0
    function, before = in_dtype(CASES[name], dtype), x.clone()
    y = function(x)
    assert torch.equal(x, before)
    recorded = function(x.clone().requires_grad_()).detach()
    torch.testing.assert_close(y, recorded, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(y[1:2, 6:9], function(x[1:2, 6:9]))


def in_dtype(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """A function whose parameters are float32, of arrays of that dtype."""
    return function if dtype == torch.float32 else lambda x: function(x.float()).to(dtype)


def test_a_layer_has_the_rows_of_its_parts() -> None:
    """Each part given all rows: what stands behind attention is computed for some rows at a time, in its place."""
    params = attnspec.LayerParams.init(
        attnspec.random.key(0), model_width=M, heads=4, hidden_width=F, order="post", like=torch
    )
    x = torch.randn(7, 311, M, generator=torch.Generator().manual_seed(1))
    h = attnspec.add_and_norm(x, attnspec.multi_head_attention(params.attention, x))
    wanted = attnspec.add_and_norm(h, attnspec.feed_forward(params.feed_forward, h))
    torch.testing.assert_close(attnspec.transformer_layer(params, x), wanted, rtol=0, atol=0)
