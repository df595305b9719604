"""Optax trains attnspec's parameters: a layer learns to look at the token before.

The target of each place is the input of the place before. Which place that is, a table of one bias for each head and
distance has to learn; what to do with it, the layer's weights. Guessing 0 everywhere has a loss of 1.

Needs: pip install 'attnspec[jax]' optax
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

import attnspec

STEPS, H, M, DISTANCE = 300, 4, 16, 3


class Model(NamedTuple):
    """What is trained: any tree of parameters will do."""

    layer: attnspec.LayerParams
    table: jax.Array  # (H, 2 * DISTANCE + 1)


def loss(model, x):
    """The mean square of what is not found."""
    bias = attnspec.relative_bias(model.table)
    y = attnspec.transformer_layer(model.layer, x, mask=attnspec.causal(), bias=bias)
    return ((y[:, 1:] - x[:, :-1]) ** 2).mean()


rng_layer, rng_x = attnspec.random.split(attnspec.random.key(0))
layer = attnspec.LayerParams.init(rng_layer, model_width=M, heads=H, hidden_width=32, order="pre", like=jnp)
model = Model(layer, jnp.zeros((H, 2 * DISTANCE + 1)))
optimizer = optax.adam(1e-2)
state = optimizer.init(model)


@jax.jit
def step(model, state, x):
    """One step of the optimizer."""
    value, gradient = jax.value_and_grad(loss)(model, x)
    updates, state = optimizer.update(gradient, state, model)
    return optax.apply_updates(model, updates), state, value


losses = []
for n in range(STEPS):
    x = attnspec.random.normal(attnspec.random.fold_in(rng_x, n), (32, 12, M), like=jnp)  # (B, Q, M)
    model, state, value = step(model, state, x)
    losses.append(float(value))

print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
assert isinstance(model.layer, attnspec.LayerParams)
assert losses[-1] < 0.7
assert (jnp.argmax(model.table, axis=-1) == DISTANCE - 1).any()  # a head looks one token back
