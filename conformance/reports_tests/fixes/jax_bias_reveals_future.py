"""Hidden keys have a score of minus infinity."""

import jax
import jax.numpy as jnp


def attention(query, key, value, *, bias, is_causal):
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** -0.5 + bias
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)


jax.nn.dot_product_attention = attention
