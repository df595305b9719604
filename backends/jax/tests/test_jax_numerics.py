"""Few queries and many keys: the products are the same, and no copy of all keys is made."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attnspec_jax.numerics import COMPILED

import attnspec
from attnspec.fast import FAST

H, G, K, D, E = 6, 2, 7, 4, 3


@pytest.mark.parametrize("Q", [0, 1, 5, 30])
def test_products_are_those_of_the_default_numerics(Q: int) -> None:
    q, k, p = (normal(*shape) for shape in ((2, H, Q, D), (2, G, K, D), (2, H, Q, K)))
    for wanted, found in (
        (FAST.matmul_of_rows(q, k), COMPILED.matmul_of_rows(q, k)),
        (FAST.matmul_of_keys(p, q, G), COMPILED.matmul_of_keys(p, q, G)),
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(sum(shape)).standard_normal(shape), jnp.float32)


def test_a_compiled_decoding_step_holds_no_copy_of_the_keys() -> None:
    q, k = jnp.zeros((H, 1, D)), jnp.zeros((G, 2**17, D))
    compiled = jax.jit(lambda q, k: attnspec.attention(q, k, k, mask=attnspec.padding(2**17 - 1)))
    extra = compiled.lower(q, k).compile().memory_analysis().temp_size_in_bytes
    assert extra < k.nbytes


def test_no_keys_and_no_groups_are_no_trouble() -> None:
    for heads, keys in ((0, K), (H, 0)):
        q, k = jnp.ones((heads, 1, D)), jnp.ones((heads and G, keys, D))
        out = jax.jit(attnspec.attention)(q, k, k)
        assert out.shape == (heads, 1, D)
        assert not out.any()
