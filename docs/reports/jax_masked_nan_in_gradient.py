import sys

import jax
import jax.numpy as jnp

print("jax", jax.__version__)
query = jnp.ones((1, 1, 1, 2))
key = jnp.array([[1.0, 0.0], [0.0, 1.0], [jnp.nan, jnp.nan]]).reshape(1, 3, 1, 2)
value = jnp.array([[2.0, 0.0], [0.0, 4.0], [0.0, 0.0]]).reshape(1, 3, 1, 2)
mask = jnp.array([True, True, False]).reshape(1, 1, 1, 3)  # the key of NaN is hidden


def total(query, key, value, mask=None):
    return jax.nn.dot_product_attention(query, key, value, mask=mask).sum()


got = jax.grad(total)(query, key, value, mask)
right = jax.grad(total)(query, key[:, :2], value[:, :2])
print(
    "output:", total(query, key, value, mask), " right, without the hidden key:", total(query, key[:, :2], value[:, :2])
)
print("gradient of query:", got.ravel(), " right, without the hidden key:", right.ravel())
sys.exit(int(not jnp.allclose(got, right)))
