import sys

import jax
import jax.numpy as jnp

print("jax", jax.__version__)
x = jnp.ones((1, 4, 1, 1))
value = jnp.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 4, 1, 1)
wrong = 0
for low in (-1e30, -3e38, float(jnp.finfo(jnp.float32).min)):
    bias = jnp.array([low, 0.0, 0.0, 0.0]).reshape(1, 1, 1, 4)  # the first token is padding
    out = jax.nn.dot_product_attention(x, x, value, bias=bias, is_causal=True).ravel()
    print(f"bias {low:.1e} on the first key, is_causal: {out}; right: [1. 2. 2.5 3. ]")
    wrong += not jnp.allclose(out, jnp.array([1.0, 2.0, 2.5, 3.0]))
sys.exit(int(wrong > 0))
