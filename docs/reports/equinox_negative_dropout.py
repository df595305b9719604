import sys

import equinox as eqx
import jax
import jax.numpy as jnp

print("equinox", eqx.__version__, "jax", jax.__version__)
x, accepted = jnp.ones((3, 4)), 0
for rate in (-0.25, 1.5):
    try:
        layer = eqx.nn.MultiheadAttention(2, 4, dropout_p=rate, key=jax.random.key(0))
        ratio = layer(x, x, x, key=jax.random.key(1)) / layer(x, x, x, inference=True)
        print(f"dropout_p={rate}: the output is {ratio[0, 0]:.2f} times that without dropout; right: an error")
        accepted += 1
    except ValueError as error:
        print(f"dropout_p={rate}: {type(error).__name__}")
sys.exit(int(accepted > 0))
