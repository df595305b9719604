import sys

import flax
import jax
import jax.numpy as jnp
from flax import linen, nnx

print("flax", flax.__version__, "jax", jax.__version__)
x, seed = jnp.ones((1, 3, 1, 2)), jax.random.key(0)
print("nnx.Dropout(1.0):", nnx.Dropout(1.0, rngs=nnx.Rngs(0))(jnp.ones(2)))
wrong = 0
for attention in (nnx.dot_product_attention, linen.dot_product_attention):
    name = f"{'nnx' if attention is nnx.dot_product_attention else 'linen'}.dot_product_attention"
    try:
        out = attention(x, x, x, dropout_rate=1.0, dropout_rng=seed, deterministic=False)[0, 0, 0]
        print(f"{name}, dropout_rate=1.0: {out}; right: [0. 0.], or an error")
        wrong += bool(jnp.isnan(out).any())
    except ValueError as error:
        print(f"{name}, dropout_rate=1.0: {type(error).__name__}")
sys.exit(int(wrong > 0))
