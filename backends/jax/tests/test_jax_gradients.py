"""Gradients by the means that only JAX has: grad under jit and vmap, grad of grad, forward mode of plain operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import attnspec

H, G, Q, K, D, E = 4, 2, 5, 6, 3, 2
ALL = (0, 1, 2, 3)


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture
def inputs() -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.standard_normal(s)) for s in ((2, H, Q, D), (2, G, K, D), (2, G, K, E), (H,)))


def loss(*inputs: jax.Array, implementation: str = "auto") -> Any:
    """One number of out and lse, with an empty row, a sink, a softcap and dropout."""
    q, k, v, sink = inputs
    out, lse = attnspec.attention_with_lse(
        q, k, v, mask=attnspec.causal(-1), sink=sink, softcap=2.0,
        dropout=attnspec.Dropout(0.25, attnspec.random.key(3)), implementation=implementation,
    )  # fmt: skip
    return (out * out).sum() + jnp.sin(lse).sum()


def plain(*inputs: jax.Array) -> Any:
    """The same through plain operations."""
    return loss(*inputs, implementation="portable")


def close(one: Any, other: Any, rtol: float = 1e-11) -> None:
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol)


def test_grad_eager_and_compiled_is_that_of_the_plain_operations(inputs: tuple[jax.Array, ...]) -> None:
    wanted = jax.jit(jax.grad(plain, argnums=ALL))(*inputs)
    close(jax.jit(jax.grad(loss, argnums=ALL))(*inputs), wanted)
    close(jax.grad(loss, argnums=ALL)(*inputs), wanted)


def test_gradients_pass_the_check_of_jax(inputs: tuple[jax.Array, ...]) -> None:
    """Numerical differences: of the walk back in reverse, of the plain operations forward."""
    check_grads(jax.jit(loss), inputs, order=1, modes=["rev"], rtol=1e-6, atol=1e-6)
    check_grads(jax.jit(plain), inputs, order=1, modes=["fwd"], rtol=1e-6, atol=1e-6)


def test_second_derivatives_are_those_of_the_plain_operations(inputs: tuple[jax.Array, ...]) -> None:
    q, k, v, sink = inputs

    def twice(function: Any) -> Any:
        inner = jax.grad(lambda k: function(q, k, v, sink))
        return jax.jit(jax.grad(lambda k: jnp.sum(jnp.sin(inner(k)))))(k)

    close(twice(loss), twice(plain), 1e-9)


def test_forward_mode_of_the_plain_operations_is_the_transpose_of_reverse_mode(inputs: tuple[jax.Array, ...]) -> None:
    rng = np.random.default_rng(1)
    tangents = tuple(jnp.asarray(rng.standard_normal(x.shape)) for x in inputs)
    _, moved = jax.jit(lambda x, t: jax.jvp(plain, x, t))(inputs, tangents)
    gradients = jax.jit(jax.grad(loss, argnums=ALL))(*inputs)
    close(moved, sum(jnp.sum(g * t) for g, t in zip(gradients, tangents, strict=True)))


def test_per_sample_gradients_and_gradients_of_a_map(inputs: tuple[jax.Array, ...]) -> None:
    q, k, v, _ = inputs

    def one(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
        return (attnspec.attention(q, k, v, mask=attnspec.causal(1)) ** 2).sum()

    whole = jax.jit(jax.grad(one, argnums=(0, 1, 2)))(q, k, v)
    close(jax.jit(jax.vmap(jax.grad(one, argnums=(0, 1, 2))))(q, k, v), whole)
    close(jax.jit(jax.grad(lambda *a: jax.vmap(one)(*a).sum(), argnums=(0, 1, 2)))(q, k, v), whole)


def test_a_whole_layer_trains_under_jit() -> None:
    """value_and_grad over parameters as a tree, and an update by tree.map."""
    params = attnspec.LayerParams.init(
        attnspec.random.key(0), model_width=4, heads=2, hidden_width=6, order="pre", like=jnp
    )
    x = jnp.asarray(np.random.default_rng(2).standard_normal((5, 4)), jnp.float32)

    def updated(params: Any) -> Any:
        def value(params: Any) -> Any:
            return jnp.mean((attnspec.transformer_layer(params, x, mask=attnspec.causal()) - 1.0) ** 2)

        loss, gradients = jax.value_and_grad(value)(params)
        return loss, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

    step, losses = jax.jit(updated), []
    for _ in range(5):
        value, params = step(params)
        losses.append(float(value))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]
