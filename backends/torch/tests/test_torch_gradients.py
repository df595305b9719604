"""Gradients by the means that only torch has: backward(), func, gradcheck, forward mode, hessians, compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import attnspec
from attnspec import reproducible

# A framework's deprecations are its own affair.
pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")

H, G, Q, K, D, E = 4, 2, 5, 6, 3, 2
BIAS = torch.randn(H, 1, K, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
Inputs = tuple[torch.Tensor, ...]


@pytest.fixture
def inputs() -> Inputs:
    rng = torch.Generator().manual_seed(0)
    shapes = ((2, H, Q, D), (2, G, K, D), (2, G, K, E), (H,))
    return tuple(torch.randn(s, generator=rng, dtype=torch.float64, requires_grad=True) for s in shapes)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor) -> Any:
    """Grouped heads, a causal mask with an empty row, a bias, a sink, a softcap and dropout; out and lse."""
    drop = attnspec.Dropout(0.25, attnspec.random.key(3))
    options = {"bias": BIAS, "sink": sink, "softcap": 2.0, "dropout": drop}
    return attnspec.attention_with_lse(q, k, v, mask=attnspec.causal(-1), **options)


def loss(*inputs: torch.Tensor) -> torch.Tensor:
    """One number of both results."""
    out, lse = attend(*inputs)
    return (out * out).sum() + torch.sin(lse).sum()


def plain(*inputs: torch.Tensor) -> torch.Tensor:
    """The same through plain operations."""
    q, k, v, sink = inputs
    drop = attnspec.Dropout(0.25, attnspec.random.key(3))
    out, lse = attnspec.attention_with_lse(
        q, k, v, mask=attnspec.causal(-1), bias=BIAS, sink=sink, softcap=2.0, dropout=drop, implementation="portable"
    )
    return (out * out).sum() + torch.sin(lse).sum()


def test_backward_fills_the_gradients_that_func_gives(inputs: Inputs) -> None:
    wanted = torch.func.grad(loss, argnums=(0, 1, 2, 3))(*(x.detach() for x in inputs))
    loss(*inputs).backward()
    for x, gradient in zip(inputs, wanted, strict=True):
        torch.testing.assert_close(x.grad, gradient, rtol=1e-13, atol=1e-13)


def test_the_tape_gives_what_autograd_gives(inputs: Inputs) -> None:
    """The same walk back, hence the same bits."""
    detached = [x.detach() for x in inputs]
    (out, lse), pull = attnspec.vjp(attend, *detached)
    g, h = torch.ones_like(out), torch.ones_like(lse)
    recorded = attend(*inputs)
    wanted = torch.autograd.grad(recorded, inputs, (g, h))
    for one, other in zip(pull((g, h)), wanted, strict=True):
        assert torch.equal(one, other)


def test_gradcheck_and_gradgradcheck_pass_in_float64(inputs: Inputs) -> None:
    assert torch.autograd.gradcheck(attend, inputs)
    assert torch.autograd.gradgradcheck(lambda *a: attend(*a)[0], inputs)


def test_many_cotangents_at_once_give_the_gradients_of_each(inputs: Inputs) -> None:
    """What `autograd.functional.jacobian(vectorize=True)` asks for, by a mapping that is not `torch.func`'s."""
    out, _ = attend(*inputs)
    many = torch.randn(3, *out.shape, generator=torch.Generator().manual_seed(5), dtype=out.dtype)
    batched = torch.autograd.grad(out, inputs, many, is_grads_batched=True, retain_graph=True)
    for n in range(3):
        for x, y in zip(batched, torch.autograd.grad(out, inputs, many[n], retain_graph=True), strict=True):
            torch.testing.assert_close(x[n], y, rtol=1e-12, atol=1e-12)


def test_gradcheck_passes_in_forward_mode(inputs: Inputs) -> None:
    assert torch.autograd.gradcheck(lambda *a: attend(*a)[0], inputs, check_forward_ad=True, check_backward_ad=False)


def components() -> dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]]:
    """Those whose derivative is their own or torch's, with the shapes of their operands."""
    ids = torch.tensor([[1, 2, 1], [0, 4, 1]])
    return {
        "layer norm": (attnspec.layer_norm, ((3, 6), (6,), (6,))),
        "rms norm": (lambda x, g: attnspec.rms_norm(x, g, eps=0.1), ((3, 6), (6,))),
        "rotary": (lambda x: attnspec.rotary(x, torch.arange(4)), ((2, 4, 6),)),
        "embed": (lambda table: attnspec.embed(table, ids), ((5, 4),)),
        "loss": (lambda x: attnspec.cross_entropy(x, ids), ((2, 3, 5),)),
        "weights": (lambda q, k: attnspec.attention_weights(q, k, softcap=2.0), ((4, 5, 3), (2, 6, 3))),
        "merge": (lambda a, b, c, d: attnspec.merge_attention([(a, b), (c, d)]), ((2, 3, 4), (2, 3)) * 2),
    }


@pytest.mark.parametrize("name", components())
def test_gradcheck_passes_for_the_other_components(name: str) -> None:
    function, shapes = components()[name]
    rng = torch.Generator().manual_seed(1)
    inputs = [torch.randn(s, generator=rng, dtype=torch.float64, requires_grad=True) for s in shapes]
    assert torch.autograd.gradcheck(function, inputs)


def test_second_derivatives_are_those_of_the_plain_operations(inputs: Inputs) -> None:
    q, k, v, sink = (x.detach() for x in inputs)
    hessians = [torch.func.hessian(lambda k, f=f: f(q, k, v, sink))(k) for f in (loss, plain)]
    torch.testing.assert_close(*hessians, rtol=1e-10, atol=1e-10)


def test_forward_mode_is_the_transpose_of_reverse_mode(inputs: Inputs) -> None:
    primal = tuple(x.detach() for x in inputs)
    rng = torch.Generator().manual_seed(2)
    tangents = tuple(torch.randn(x.shape, generator=rng, dtype=x.dtype) for x in primal)
    _, moved = torch.func.jvp(loss, primal, tangents)
    gradients = torch.func.grad(loss, argnums=(0, 1, 2, 3))(*primal)
    along = sum(float((g * t).sum()) for g, t in zip(gradients, tangents, strict=True))
    np.testing.assert_allclose(float(moved), along, rtol=1e-12)


def test_per_sample_gradients_and_gradients_of_a_map(inputs: Inputs) -> None:
    q, k, v, _ = (x.detach() for x in inputs)

    def one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (attnspec.attention(q, k, v, mask=attnspec.causal(1)) ** 2).sum()

    whole = torch.func.grad(one, argnums=(0, 1, 2))(q, k, v)
    mapped = torch.func.vmap(torch.func.grad(one, argnums=(0, 1, 2)))(q, k, v)
    of_map = torch.func.grad(lambda *a: torch.func.vmap(one)(*a).sum(), argnums=(0, 1, 2))(q, k, v)
    for other in (mapped, of_map):
        for x, y in zip(whole, other, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


def test_a_compiled_step_has_the_gradients_of_an_eager_one(inputs: Inputs) -> None:
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    wanted = torch.autograd.grad(loss(*inputs), inputs)
    for x, y in zip(torch.autograd.grad(compiled(*inputs), inputs), wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-11, atol=1e-11)


def test_parameters_learn_by_backward() -> None:
    """Leaves of parameters are torch's own: an optimiser of torch takes them."""
    params = attnspec.MultiHeadParams.init(attnspec.random.key(0), model_width=4, heads=2, like=torch.zeros(1))
    leaves = [x.requires_grad_() for x in attnspec.params.flatten(params).values()]
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(3))
    optimiser = torch.optim.SGD(leaves, lr=0.1)
    losses = []
    for _ in range(5):
        optimiser.zero_grad()
        value = (attnspec.multi_head_attention(params, x, mask=attnspec.causal()) - x).square().mean()
        value.backward()
        optimiser.step()
        losses.append(value.item())
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


def test_what_an_identical_function_reads_beside_its_arguments_is_constant() -> None:
    x, w = torch.ones(3, 4), torch.ones(4, 4, requires_grad=True)

    def product(x: Any) -> Any:
        return x @ w

    function = reproducible.identically(product)
    assert not function(x).requires_grad
    x.requires_grad_()
    function(x).sum().backward()
    assert w.grad is None
    assert torch.equal(x.grad, torch.full((3, 4), 4.0))
