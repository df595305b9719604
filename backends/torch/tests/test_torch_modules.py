"""Modules of torch: their parameters, torch's own modules read into them, training, autocast, compilation."""

from __future__ import annotations

import copy
import doctest
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attnspec_torch.modules
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import attnspec
from attnspec.backend import torch as backend
from attnspec.errors import DTypeError, OptionError, ShapeError

pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")

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


class Sums(nn.MultiheadAttention):  # type: ignore[misc]
    """Computes something else."""

    def forward(self, *inputs: torch.Tensor, **options: Any) -> Any:
        """The sum."""
        return sum(inputs), None


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


def modules() -> dict[str, tuple[Any, Any]]:
    """Fresh modules that drop in training, and their inputs."""
    x, y = (rows(B, Q, M, seed=seed, dtype=torch.float32) for seed in (1, 2))
    norm = attnspec.NormParams(x[0, 0], x[0, 1])
    return {
        "attention": (backend.MultiHeadAttention.init(KEY(0), model_width=M, heads=H, dropout=0.5), (x,)),
        "add-and-norm": (backend.AddAndNorm(norm, dropout=0.5), (x, y)),
        "layer": (layer(dropout=0.5, residual_dropout=0.25), (x,)),
    }


def test_a_state_dict_is_the_flattened_parameters() -> None:
    for module, _ in modules().values():
        named = dict(module.named_parameters())
        assert named.keys() == attnspec.params.flatten(module.params).keys() == module.state_dict().keys()
        assert all(x is named[name] for name, x in attnspec.params.flatten(module.params).items())
        assert len({x.data_ptr() for x in named.values()}) == len(named)
        assert all(isinstance(x, nn.Parameter) and x.requires_grad and x.is_contiguous() for x in named.values())


def test_a_state_dict_restores_the_function_and_files_of_params_fit(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    one, other = layer(), backend.TransformerLayer.init(
        KEY(1), model_width=M, heads=H, hidden_width=11, order="pre"
    )  # fmt: skip
    x = rows(B, Q, M, dtype=torch.float32)
    assert not torch.equal(one(x), other(x))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(x), other(x))
    save_file(one.state_dict(), tmp_path / "module.safetensors")
    attnspec.params.save(tmp_path / "params.safetensors", one.params, backend=backend)
    saved = [load_file(tmp_path / f"{name}.safetensors") for name in ("module", "params")]
    assert saved[0].keys() == saved[1].keys()
    assert all(torch.equal(saved[0][name], saved[1][name]) for name in saved[0])
    loaded = attnspec.params.load(tmp_path / "params.safetensors", backend=backend)
    assert torch.equal(backend.TransformerLayer(loaded)(x), one(x))


def test_fresh_modules_have_the_numbers_of_every_backend() -> None:
    params = attnspec.LayerParams.init(
        KEY(0), model_width=M, heads=H, hidden_width=11, order="pre", like=torch.empty(0)
    )
    made = layer().state_dict()
    assert all(torch.equal(made[name], x) for name, x in attnspec.params.flatten(params).items())


def test_modules_call_the_functions() -> None:
    (attended, (x,)), (summed, (_, y)), (whole, _) = modules().values()
    for module in (attended, summed, whole):
        module.eval()
    params = summed.params
    mask, rotary = attnspec.causal(), attnspec.Rotary(base=7.0)
    wanted = attnspec.multi_head_attention(attended.params, x, y, mask=mask, rotary=rotary, softcap=2.0)
    assert torch.equal(attended(x, y, mask=mask, rotary=rotary, softcap=2.0), wanted)
    assert torch.equal(summed(x, y), attnspec.add_and_norm(x, y, params.gamma, params.beta))
    wanted = attnspec.transformer_layer(whole.params, x, mask=mask, rotary=rotary)
    assert torch.equal(whole(x, mask=mask, rotary=rotary), wanted)


def test_a_key_drops_what_the_functions_drop_with_it() -> None:
    (attended, (x,)), (summed, (_, y)), (whole, _) = modules().values()
    drop, params = attnspec.Dropout(0.5, KEY(3)), summed.params
    assert torch.equal(attended(x, rng=KEY(3)), attnspec.multi_head_attention(attended.params, x, dropout=drop))
    wanted = attnspec.add_and_norm(x, y, params.gamma, params.beta, dropout=drop)
    assert torch.equal(summed(x, y, rng=KEY(3)), wanted)
    of_weights, of_sums = attnspec.random.split(KEY(3))
    wanted = attnspec.transformer_layer(
        whole.params, x, dropout=attnspec.Dropout(0.5, of_weights), residual_dropout=attnspec.Dropout(0.25, of_sums)
    )
    assert torch.equal(whole(x, rng=KEY(3)), wanted)


@pytest.mark.parametrize("name", modules())
def test_dropout_happens_in_training_alone_and_torch_s_seed_repeats_it(name: str) -> None:
    module, inputs = modules()[name]
    torch.manual_seed(5)
    first, second = module(*inputs), module(*inputs)
    torch.manual_seed(5)
    assert torch.equal(module(*inputs), first)
    assert not torch.equal(first, second)
    module.eval()
    state = torch.get_rng_state()
    quiet = module(*inputs)
    assert torch.equal(module(*inputs, rng=KEY(3)), quiet)
    module.train()(*inputs, rng=KEY(3))
    assert torch.equal(torch.get_rng_state(), state)  # nobody asked torch's generator
    assert not torch.equal(first, quiet)


def test_a_checkpointed_layer_drops_the_same_again() -> None:
    module, (x,) = modules()["layer"]
    gradients = []
    for run in (module, partial(checkpoint, module, use_reentrant=False)):
        torch.manual_seed(5)
        gradients.append(torch.autograd.grad(run(x).square().sum(), list(module.parameters())))
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_every_parameter_learns() -> None:
    module, (x,) = modules()["layer"]
    module.eval()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.05)
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    losses = []
    for _ in range(5):
        optimiser.zero_grad()
        loss = (module(x, mask=attnspec.causal()) - x.flip(-1)).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]
    # A bias of keys moves every score of a row alike, so its gradient is zero up to rounding.
    assert {n for n, p in module.named_parameters() if torch.equal(p, before[n])} <= {"attention.bk"}


def test_modules_move_between_dtypes_and_are_copied() -> None:
    module, (x,) = modules()["layer"]
    module.eval()
    assert torch.equal(copy.deepcopy(module)(x), module(x))
    double = copy.deepcopy(module).to(torch.float64)
    assert double(x.double()).dtype == torch.float64
    assert module.to(torch.bfloat16)(x.bfloat16()).dtype == torch.bfloat16
    # deepest first: the meta device computes shapes alone
    assert module.to("meta")(x.bfloat16().to("meta")).shape == x.shape


def test_functional_calls_and_per_sample_gradients_see_the_parameters() -> None:
    module, (x,) = modules()["layer"]
    module.eval()
    params = dict(module.named_parameters())

    def loss(params: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(module, params, (x,)).square().sum()

    mapped = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(params, x)
    whole = torch.autograd.grad(module(x).square().sum(), list(params.values()))
    for (name, one), wanted in zip(mapped.items(), whole, strict=True):
        torch.testing.assert_close(one.sum(0), wanted, rtol=1e-4, atol=1e-3, msg=name)


@pytest.mark.parametrize("name", modules())
def test_autocast_lowers_nothing_inside_and_what_it_lowered_before_is_widened(name: str) -> None:
    module, inputs = modules()[name]
    module.eval()
    halves = [x.bfloat16() for x in inputs]
    wanted, of_halves = module(*inputs), module(*(x.float() for x in halves))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(module(*inputs), wanted)
        assert torch.equal(module(*halves), of_halves)
        assert (inputs[0] @ inputs[0].mT).dtype == torch.bfloat16
    if name != "add-and-norm":  # whose gain and offset are read in any dtype
        with pytest.raises(DTypeError, match="one dtype"):
            module(*halves)


def test_autocast_around_a_model_keeps_the_residual_wide() -> None:
    """A residual in float32 beside a sublayer that autocast has lowered."""
    module, (x, _) = modules()["add-and-norm"]
    sublayer = nn.Linear(M, M)
    with torch.autocast("cpu", torch.bfloat16):
        y = sublayer(x)
        assert y.dtype == torch.bfloat16
        assert torch.equal(module.eval()(x, y), module(x, y.float()))


@pytest.mark.parametrize("training", [False, True])
def test_a_compiled_layer_is_the_eager_one_without_a_graph_break(training: bool) -> None:
    module, (x,) = modules()["layer"]
    module.train(training)
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    results = []
    for run in (module, compiled):
        torch.manual_seed(5)
        y = run(x, mask=attnspec.causal())
        results.append((y, *torch.autograd.grad(y.square().mean(), list(module.parameters()))))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2.0**-18 * float(one.detach().abs().max() + 1))


def test_modules_say_what_they_hold() -> None:
    assert repr(modules()["attention"][0]) == (
        "MultiHeadAttention(wq=(8, 2, 4), wk=(8, 2, 4), wv=(8, 2, 4), wo=(2, 4, 8), bq=(2, 4), bk=(2, 4), bv=(2, 4), "
        "bo=(8,), dropout=0.5, batch_first=True)"
    )
    assert "(norm_attention): NormParams(gamma=(8,), beta=(8,), kind=layer, eps=1e-05)" in repr(layer())


def test_the_examples_run() -> None:
    done = doctest.testmod(attnspec_torch.modules)
    assert done.attempted > 0
    assert done.failed == 0
