"""Modules of torch: their parameters, training, autocast, compilation."""

from __future__ import annotations

import copy
import doctest
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import array_api_compat.torch as xp
import attnspec_torch.modules
import pytest
import torch
from module_cases import KEY, B, H, M, Q, layer, rows  # type: ignore[import-not-found]
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

import attnspec
from attnspec.backend import torch as backend
from attnspec.errors import DTypeError
from attnspec.host import host_of
from attnspec.random import below

pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")


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
        if name != "add-and-norm":  # which has the widest of its dtypes
            halved = copy.deepcopy(module).to(torch.bfloat16)
            assert torch.equal(halved(*inputs), halved(*halves))
            with pytest.raises(DTypeError, match="one dtype"):
                module(*(x.double() for x in inputs))
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


@pytest.mark.parametrize("gain", [None, torch.float32, torch.bfloat16])
def test_add_and_norm_under_autocast_has_the_widest_dtype(gain: torch.dtype | None) -> None:
    x, y = rows(B, Q, M, dtype=torch.float32), rows(B, Q, M, seed=2, dtype=torch.bfloat16)
    gamma = None if gain is None else rows(M, seed=3, dtype=gain)
    module = backend.AddAndNorm(attnspec.NormParams(gamma))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(module(x, y), attnspec.add_and_norm(x, y.float(), gamma))
        assert torch.equal(module(y, x), attnspec.add_and_norm(y.float(), x, gamma))
        assert module(y, y).dtype == (gain or torch.bfloat16)


@pytest.mark.parametrize("name", modules())
def test_arrays_of_others_are_refused(name: str) -> None:
    module, inputs = modules()[name]
    with pytest.raises(DTypeError, match="an input is of type ndarray; a tensor is needed"):
        module(*(x.numpy() for x in inputs))


@pytest.mark.parametrize("dtype", [torch.float64, "float64"])
def test_a_dtype_is_torch_s_own_or_its_name(dtype: Any) -> None:
    sizes = {"model_width": M, "heads": H, "dtype": dtype}
    attended, summed = backend.MultiHeadAttention.init(KEY(0), **sizes), backend.AddAndNorm.init(width=M, dtype=dtype)
    for module in (layer(dtype=dtype), attended, summed):
        assert {p.dtype for p in module.parameters()} == {torch.float64}


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


def test_a_dynamic_program_serves_all_keys_and_rates_and_there_is_one_for_each_length() -> None:
    module, _ = modules()["attention"]
    torch._dynamo.reset()
    programs = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=programs)
    calls = [(Q, 3, 0.5), (Q, 5, 0.3), (Q, 2**40 + 7, 0.1), (Q, -2, 0.7), (Q + 1, 3, 0.5), (Q + 2, 6, 0.25)]
    with torch.no_grad():
        for length, seed, rate in calls:
            module.dropout = rate
            x = rows(B, length, M, dtype=torch.float32)
            wanted = module(x, rng=KEY(seed))
            torch.testing.assert_close(compiled(x, rng=KEY(seed)), wanted, rtol=0, atol=2.0**-18)
    assert programs.frame_count == len({length for length, _, _ in calls})


@pytest.mark.parametrize("rate", [0.0, 2.0**-150, 1.1 * 2.0**-150, 2.0**-24, 0.1, 0.3 + 2.0**-30, 1.0])
def test_a_recorded_rate_is_rounded_as_an_eager_one(rate: float) -> None:
    words = torch.arange(2**9).repeat_interleave(3).to(torch.int32) << 23 | torch.tensor([0, 1, 2**9]).repeat(2**9)
    words = words.to(torch.int32)
    recorded = replace(host_of(words), traced=lambda *arrays: True)
    eager = below(xp, (words, torch.zeros_like(words)), rate)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attnspec.random, "host_of", lambda x: recorded)
        assert torch.equal(below(xp, (words, torch.zeros_like(words)), rate), eager)


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
