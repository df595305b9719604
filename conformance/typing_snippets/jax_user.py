"""What a project on JAX writes: compiled, mapped and differentiated functions of parameters."""

# jax.jit and jax.grad are untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import jax
import jax.numpy as jnp

import attnspec


def loss(params: attnspec.MultiHeadParams, x: jax.Array, rng: attnspec.random.Key) -> jax.Array:
    """Of one text."""
    y: jax.Array = attnspec.multi_head_attention(
        params, x, mask=attnspec.causal(), dropout=attnspec.Dropout(0.1, rng), implementation="auto"
    )
    return jnp.mean(y**2)


def gradients(params: attnspec.MultiHeadParams, x: jax.Array, seed: int) -> attnspec.MultiHeadParams:
    """In the class of the parameters."""
    found: attnspec.MultiHeadParams = jax.jit(jax.grad(loss))(params, x, attnspec.random.key(seed))
    return found


def keys(key: jax.Array) -> tuple[attnspec.random.Key, ...]:
    """attnspec's keys of one of JAX's."""
    return attnspec.random.split(attnspec.random.wrap(jax.random.key_data(key)), 3)


def fresh(width: int) -> attnspec.StackParams:
    """The same numbers as on every backend."""
    return attnspec.StackParams.init(
        attnspec.random.key(0), depth=2, order="post", model_width=width, heads=2, hidden_width=16, like=jnp
    )
