"""torch's own modules, read into those of attnspec: the same outputs, and what has no counterpart is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from module_cases import EXACT, B, C, H, K, M, Q, attention, encoder_layer, layer, randomised, rows, seen  # type: ignore[import-not-found]
from torch import nn

import attnspec
from attnspec.backend import torch as backend
from attnspec.errors import DTypeError, OptionError, ShapeError

pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_self_attention_is_that_of_torch(batch_first: bool, bias: bool) -> None:
    theirs = attention(batch_first=batch_first, bias=bias)
    ours = backend.MultiHeadAttention.from_torch(theirs)
    x = seen(batch_first, rows(B, Q, M))
    wanted, weights = theirs(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(ours(x), wanted, **EXACT)
    torch.testing.assert_close(ours.weights(x), weights, **EXACT)
    assert ours(x).shape == x.shape
    torch.testing.assert_close(ours(rows(Q, M)), theirs(*[rows(Q, M)] * 3)[0], **EXACT)  # without a batch


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(("kdim", "vdim"), [(None, None), (C, C), (C, 9), (9, C)])
@pytest.mark.parametrize("bias", [True, False])
def test_cross_attention_is_that_of_torch(batch_first: bool, kdim: int | None, vdim: int | None, bias: bool) -> None:
    theirs = attention(batch_first=batch_first, kdim=kdim, vdim=vdim, bias=bias)
    ours = backend.MultiHeadAttention.from_torch(theirs)
    x = seen(batch_first, rows(B, Q, M))
    key = seen(batch_first, rows(B, K, kdim or M, seed=2))
    value = key if kdim == vdim else seen(batch_first, rows(B, K, vdim or M, seed=3))
    context = key if kdim == vdim else torch.cat([key, value], -1)
    torch.testing.assert_close(ours(x, context), theirs(x, key, value)[0], **EXACT)


@pytest.mark.parametrize("batch_first", [True, False])
def test_masks_are_translated_as_documented(batch_first: bool) -> None:
    theirs = attention(batch_first=batch_first)
    ours = backend.MultiHeadAttention.from_torch(theirs)
    x, c = seen(batch_first, rows(B, Q, M)), seen(batch_first, rows(B, K, M, seed=2))
    pairs = rows(Q, K, seed=4) > 0.5
    heads = rows(B * H, Q, K, seed=5) > 0.5
    hidden = torch.arange(K) >= torch.tensor([7, 3, 5])[:, None]
    pairs[:, 0], heads[..., 0] = False, False  # every query sees the first key: an empty row is torch's NaN
    added = rows(Q, K, seed=6)
    keys = ~hidden[:, None, None, :]
    for their, our in (
        ({"attn_mask": pairs}, {"mask": ~pairs}),
        ({"attn_mask": heads}, {"mask": ~heads.unflatten(0, (B, H))}),
        ({"attn_mask": added}, {"bias": added}),
        ({"key_padding_mask": hidden}, {"mask": keys}),
        ({"key_padding_mask": hidden}, {"mask": attnspec.padding([7, 3, 5])}),
        ({"attn_mask": pairs, "key_padding_mask": hidden}, {"mask": attnspec.as_mask(~pairs) & keys}),
    ):
        torch.testing.assert_close(ours(x, c, **our), theirs(x, c, c, **their)[0], **EXACT)
    later = torch.ones(Q, Q, dtype=torch.bool).triu(1)
    wanted = theirs(x, x, x, attn_mask=later, is_causal=True)[0]
    torch.testing.assert_close(ours(x, mask=attnspec.causal()), wanted, **EXACT)


def test_a_zero_key_is_a_sink_of_0() -> None:
    theirs = attention(add_zero_attn=True, batch_first=True)
    ours = backend.MultiHeadAttention.from_torch(theirs)
    x = rows(B, Q, M)
    wanted, weights = theirs(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(ours(x), wanted, **EXACT)
    torch.testing.assert_close(ours.weights(x), weights[..., :-1], **EXACT)


def test_a_row_that_sees_nothing_is_the_bias_of_the_output() -> None:
    ours = backend.MultiHeadAttention.from_torch(attention(batch_first=True))
    out = ours(rows(B, Q, M), mask=attnspec.padding([5, 0, 2]))
    assert torch.equal(out[1], ours.bo.expand(Q, M))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "activation", ["relu", "gelu", nn.functional.silu, nn.ReLU(), nn.GELU(), nn.GELU("tanh"), nn.SiLU()], ids=str
)
def test_an_encoder_layer_is_that_of_torch(batch_first: bool, norm_first: bool, bias: bool, activation: Any) -> None:
    theirs = encoder_layer(batch_first=batch_first, norm_first=norm_first, bias=bias, activation=activation)
    ours = backend.TransformerLayer.from_torch(theirs)
    x = seen(batch_first, rows(B, Q, M))
    hidden = torch.arange(Q) >= torch.tensor([5, 3, 4])[:, None]
    later = torch.ones(Q, Q, dtype=torch.bool).triu(1)
    wanted = theirs(x, src_mask=later, src_key_padding_mask=hidden)
    mask = attnspec.causal() & ~hidden[:, None, None, :]
    torch.testing.assert_close(ours(x, mask=mask), wanted, **EXACT)


def test_the_fast_path_of_torch_gives_the_same() -> None:
    theirs = encoder_layer(batch_first=True, activation="gelu").requires_grad_(False)
    ours = backend.TransformerLayer.from_torch(theirs)
    with torch.no_grad():
        torch.testing.assert_close(ours(rows(B, Q, M)), theirs(rows(B, Q, M)), **EXACT)


def test_add_and_norm_is_a_layer_norm_of_the_sum() -> None:
    theirs = randomised(nn.LayerNorm(M, eps=0.1))
    ours = backend.AddAndNorm.from_torch(theirs)
    x, y = rows(B, Q, M), rows(B, Q, M, seed=2)
    torch.testing.assert_close(ours(x, y), theirs(x + y), **EXACT)


def test_weights_are_copied() -> None:
    theirs = encoder_layer()
    ours = backend.TransformerLayer.from_torch(theirs)
    before = ours(rows(Q, B, M))
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.zero_()
    assert torch.equal(ours(rows(Q, B, M)), before)


def test_mode_and_rates_are_kept() -> None:
    theirs = encoder_layer(dropout=0.25)
    ours = backend.TransformerLayer.from_torch(theirs)
    assert (ours.dropout, ours.residual_dropout, ours.training) == (0.25, 0.25, False)
    assert backend.TransformerLayer.from_torch(theirs.train()).training
    assert backend.MultiHeadAttention.from_torch(nn.MultiheadAttention(M, H, dropout=0.5)).dropout == 0.5


@pytest.mark.parametrize("learns", [True, False])
def test_what_learns_is_kept(learns: bool) -> None:
    theirs = encoder_layer()
    theirs.self_attn.in_proj_weight.requires_grad_(learns)
    theirs.norm2.bias.requires_grad_(not learns)
    with torch.no_grad():
        ours = backend.TransformerLayer.from_torch(theirs)
    other = {"attention.wq", "attention.wk", "attention.wv"} if not learns else {"norm_feed_forward.beta"}
    assert {name for name, p in ours.named_parameters() if not p.requires_grad} == other
    frozen = backend.MultiHeadAttention.from_torch(attention(kdim=C, vdim=9).requires_grad_(learns))
    assert {p.requires_grad for p in frozen.parameters()} == {learns}
    frozen = backend.AddAndNorm.from_torch(nn.LayerNorm(M).requires_grad_(learns))
    assert {p.requires_grad for p in frozen.parameters()} == {learns}


class Sums(nn.MultiheadAttention):  # type: ignore[misc]
    """Computes something else."""

    def forward(self, *inputs: torch.Tensor, **options: Any) -> Any:
        """The sum."""
        return sum(inputs), None


class Blocks(nn.TransformerEncoderLayer):  # type: ignore[misc]
    """Computes another feed-forward network."""

    def _ff_block(self, x: torch.Tensor) -> torch.Tensor:
        """The half."""
        return x / 2


class Wrapped(nn.Module):  # type: ignore[misc]
    """A map that is no `nn.Linear`, as quantisers and adapters put in its place."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = inner.weight, inner.bias


def changed(part: str, change: Callable[[nn.Module], Any]) -> Any:
    """A layer of torch, a module in it replaced by what the change makes of it, unless that is None."""
    theirs = encoder_layer()
    made = change(theirs.get_submodule(part))
    if isinstance(made, nn.Module):
        theirs.set_submodule(part, made)
    return theirs


def hooked(module: nn.Module) -> None:
    """With a hook that doubles what the module gives."""
    module.register_forward_hook(lambda module, inputs, output: output * 2)


@pytest.mark.parametrize("part", ["linear1", "linear2", "self_attn.out_proj"])
def test_maps_that_are_not_linear_are_refused(part: str) -> None:
    with pytest.raises(DTypeError, match="the module is Wrapped; Linear with its own forward is needed"):
        backend.TransformerLayer.from_torch(changed(part, Wrapped))


@pytest.mark.parametrize("part", ["", "linear1", "self_attn", "self_attn.out_proj", "norm2", "dropout1"])
def test_hooks_that_would_not_be_called_are_refused(part: str) -> None:
    with pytest.raises(OptionError, match="has forward hooks"):
        backend.TransformerLayer.from_torch(changed(part, hooked))


def test_blocks_and_forwards_of_their_own_are_refused() -> None:
    with pytest.raises(
        DTypeError, match="Blocks; TransformerEncoderLayer with its own forward, _sa_block and _ff_block"
    ):
        backend.TransformerLayer.from_torch(Blocks(M, H, 11))
    theirs = encoder_layer()
    theirs.self_attn.forward = lambda *inputs, **options: inputs
    with pytest.raises(DTypeError, match="MultiheadAttention with its own forward"):
        backend.TransformerLayer.from_torch(theirs)


@pytest.mark.parametrize(
    ("make", "error", "named"),
    [
        (lambda: backend.MultiHeadAttention.from_torch(attention(add_bias_kv=True)), OptionError, "add_bias_kv"),
        (lambda: backend.MultiHeadAttention.from_torch(nn.Linear(M, M)), DTypeError, "Linear"),
        (lambda: backend.MultiHeadAttention.from_torch(Sums(M, H)), DTypeError, "Sums"),
        (lambda: backend.TransformerLayer.from_torch(attention()), DTypeError, "MultiheadAttention"),
        (lambda: backend.TransformerLayer.from_torch(encoder_layer(activation=torch.tanh)), OptionError, "tanh"),
        (lambda: backend.AddAndNorm.from_torch(nn.LayerNorm((Q, M))), OptionError, "normalized_shape"),
        (lambda: backend.AddAndNorm(attnspec.NormParams(None, kind="rms")), OptionError, "rms"),
        (lambda: backend.TransformerLayer(layer().params.attention), DTypeError, "LayerParams"),
        (lambda: layer(dropout=1.5), OptionError, "dropout=1.5"),
        (lambda: layer()(rows(Q, M), dropout=None), OptionError, "option of the module"),
        (lambda: layer()(rows(Q, M)), DTypeError, "one dtype"),
        (lambda: layer()(rows(Q, M + 1, dtype=torch.float32)), ShapeError, "M"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(
    make: Callable[[], Any], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        make()


def test_rates_that_differ_between_the_sums_are_refused() -> None:
    theirs = encoder_layer()
    theirs.dropout2.p = 0.5
    with pytest.raises(OptionError, match=r"dropout2 0\.5"):
        backend.TransformerLayer.from_torch(theirs)
