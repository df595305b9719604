"""Flax's layers, linen's and nnx's, with attnspec for their attention.

Needs: pip install 'attnspec[jax]' flax
"""

import jax
import jax.numpy as jnp
from flax import linen, nnx

import attnspec
from attnspec.integrations.flax import dot_product_attention

x = jax.random.normal(jax.random.key(0), (2, 5, 12))  # (B, Q, M)

# 1. linen. Masks are Flax's arrays, or attnspec's rules, which make no array of Q x K.

layer = linen.MultiHeadDotProductAttention(num_heads=3, attention_fn=dot_product_attention)
variables = layer.init(jax.random.key(1), x)
y = layer.apply(variables, x, mask=attnspec.causal())
theirs = linen.MultiHeadDotProductAttention(num_heads=3)
assert jnp.allclose(y, theirs.apply(variables, x, mask=linen.make_causal_mask(x[..., 0])), atol=1e-5)

# 2. nnx, with grouped heads. Dropout drops what Flax's own attention would drop from the same key.

options = {"num_heads": 6, "num_kv_heads": 2, "in_features": 12, "decode": False, "dropout_rate": 0.5}
ours = nnx.MultiHeadAttention(**options, attention_fn=dot_product_attention, rngs=nnx.Rngs(0, dropout=1))
theirs = nnx.MultiHeadAttention(**options, rngs=nnx.Rngs(0, dropout=1))
assert jnp.allclose(
    ours(x, is_causal=True, deterministic=False), theirs(x, is_causal=True, deterministic=False), atol=1e-5
)


# 3. Compiled, and differentiated.


@nnx.jit
def gradient(layer, x):
    """Of the mean square of the outputs."""
    return nnx.grad(lambda layer: (layer(x, is_causal=True, deterministic=True) ** 2).mean())(layer)


assert gradient(ours, x).query.kernel[...].shape == (12, 6, 2)
