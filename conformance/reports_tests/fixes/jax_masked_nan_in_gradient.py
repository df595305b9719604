"""A key that nobody may see is replaced before it is multiplied."""

import jax
import jax.numpy as jnp

attention = jax.nn.dot_product_attention


def cleaned(query, key, value, mask=None):
    if mask is not None:
        seen = mask[:, 0].any(axis=1)[..., None, None]  # (B, 1, Q, K) to (B, K, 1, 1)
        key = jnp.where(seen, key, 0)
    return attention(query, key, value, mask=mask)


jax.nn.dot_product_attention = cleaned
