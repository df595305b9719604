import sys

import jax
import jax.numpy as jnp

print("jax", jax.__version__)
query, key = jnp.ones((1, 1, 1, 1), jnp.int32), jnp.ones((1, 2, 1, 1), jnp.int32)
value = jnp.array([3, 5], jnp.int32).reshape(1, 2, 1, 1)
right = jax.nn.dot_product_attention(*(array.astype(jnp.float32) for array in (query, key, value))).item()
try:
    out = jax.nn.dot_product_attention(query, key, value)
except (TypeError, ValueError) as error:
    print(f"int32: {type(error).__name__}; right: an error, or {right}")
    sys.exit(0)
print(f"int32: {out.item()} ({out.dtype}); right: an error, or {right}, as the same numbers in float32 give")
sys.exit(int(abs(out.item() - right) > 0.01))
