"""The module of docs/examples/hosts/equinox_module.py beside Equinox's own layer."""

from __future__ import annotations

import runpy
from functools import partial
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from judging import draw

import attnspec

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "hosts" / "equinox_module.py"
B, H, Q, M = 4, 3, 5, 12
CAUSAL = np.tri(Q, dtype=bool)
close = partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12)  # of two layers in float64


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(EXAMPLE))


@pytest.fixture(params=[False, True], ids=["plain", "offsets"])
def pair(request, example):
    """attnspec's module and Equinox's layer, with the same weights, in float64."""
    with jax.enable_x64(True):
        biased = {f"use_{part}_bias": request.param for part in ("query", "key", "value", "output")}
        layer = eqx.nn.MultiheadAttention(H, M, qk_size=2, vo_size=7, dtype="float64", key=jax.random.key(0), **biased)
        yield example["from_equinox"](layer), layer


def test_the_module_answers_as_equinox_layer(pair):
    module, layer = pair
    x = jnp.asarray(draw(Q, M, dtype="float64"))
    close(module(x, mask=attnspec.causal()), layer(x, x, x, mask=CAUSAL))
    close(module(x), layer(x, x, x))


def test_its_gradient_is_that_of_equinox_layer(pair, example):
    module, layer = pair
    x = jnp.asarray(draw(Q, M, dtype="float64"))

    def gradient(layer, call):
        return eqx.filter_jit(eqx.filter_grad(lambda layer: (call(layer) ** 2).sum()))(layer)

    got = gradient(module, lambda module: module(x, mask=attnspec.causal()))
    theirs = gradient(layer, lambda layer: layer(x, x, x, mask=CAUSAL))
    jax.tree.map(close, got, example["from_equinox"](theirs))


def test_mapping_over_a_batch_is_calling_it_with_one(pair):
    module, layer = pair
    x = jnp.asarray(draw(B, Q, M, dtype="float64"))
    close(eqx.filter_jit(eqx.filter_vmap(module))(x), module(x))
    close(module(x), jax.vmap(lambda x: layer(x, x, x))(x))


def test_its_arrays_are_what_equinox_trains(pair):
    module, layer = pair
    ours, theirs = (jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array)) for tree in (module, layer))
    assert sum(x.size for x in ours) == sum(x.size for x in theirs)
    assert all(eqx.is_inexact_array(leaf) for leaf in jax.tree.leaves(module))
