"""An Equinox module whose attention is attnspec's, and the same weights in Equinox's own layer.

attnspec's parameters are pytrees, so a module holds them as they are: `eqx.filter_jit`, `eqx.filter_grad` and
`jax.vmap` see through them. Equinox's layer has no argument for another attention, hence a module of one's own.

Needs: pip install 'attnspec[jax]' equinox
"""

import equinox as eqx
import jax
import jax.numpy as jnp

import attnspec


class SelfAttention(eqx.Module):
    """Multi-head attention of a sequence to itself."""

    params: attnspec.MultiHeadParams

    def __call__(self, x, mask=None):
        """(..., Q, M) -> (..., Q, M)."""
        return attnspec.multi_head_attention(self.params, x, mask=mask)


def from_equinox(layer: eqx.nn.MultiheadAttention) -> SelfAttention:
    """The module with the weights of Equinox's layer: (H * D, M) there, (M, H, D) here."""
    inner = (layer.query_proj, layer.key_proj, layer.value_proj)
    wq, wk, wv = (jnp.moveaxis(p.weight.reshape(layer.num_heads, -1, p.in_features), -1, 0) for p in inner)
    wo = jnp.moveaxis(layer.output_proj.weight.reshape(layer.output_size, layer.num_heads, -1), 0, -1)
    bq, bk, bv = (None if p.bias is None else p.bias.reshape(layer.num_heads, -1) for p in inner)
    return SelfAttention(attnspec.MultiHeadParams(wq, wk, wv, wo, bq, bk, bv, layer.output_proj.bias))


# 1. The same answers as Equinox's layer. It takes one sequence (Q, M) and a mask of every pair; here a rule will do.

rng_layer, rng_x = jax.random.split(jax.random.key(0))
layer = eqx.nn.MultiheadAttention(3, 12, use_query_bias=True, use_output_bias=True, key=rng_layer)
module = from_equinox(layer)
x = jax.random.normal(rng_x, (5, 12))
theirs = layer(x, x, x, mask=jnp.tril(jnp.ones((5, 5), bool)))
assert jnp.allclose(module(x, mask=attnspec.causal()), theirs, atol=1e-5)

# 2. Compiled, differentiated, mapped. The gradient is a module of the same class.


@eqx.filter_jit
@eqx.filter_grad
def gradient(module, x):
    """Of how far the outputs are from the inputs."""
    return ((module(x, mask=attnspec.causal()) - x) ** 2).mean()


slope = gradient(module, x)
assert isinstance(slope, SelfAttention)
assert slope.params.wq.shape == (12, 3, 4)
assert float(jnp.abs(slope.params.wq).max()) > 0

batch = jnp.stack([x, 2 * x])
mapped = jax.vmap(module)(batch)
assert jnp.allclose(mapped, module(batch), atol=1e-5)
