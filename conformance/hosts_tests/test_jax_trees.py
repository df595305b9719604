"""What attnspec calls by value (parameters, caches, masks, biases, keys) is a pytree of JAX."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from judging import draw

import attnspec

B, H, G, Q, K, D, M = 3, 6, 2, 5, 7, 4, 12
close = partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12)  # of two ways in float64
LAYER = {"model_width": M, "heads": H, "kv_heads": G, "hidden_width": 20, "order": "pre"}


@pytest.fixture(autouse=True)
def _in_double():
    with jax.enable_x64(True):
        yield


def ints(*values):
    return jnp.asarray(values, dtype=jnp.int32)


TREES = {
    "params": lambda: attnspec.LayerParams.init(attnspec.random.key(0), **LAYER, dtype="float64", like=jnp),
    "cache": lambda: attnspec.Cache.of(TREES["params"]().attention, capacity=K, lead=(B,)),
    "mask": lambda: attnspec.causal(ints(0, 1, 2)) & ~attnspec.padding(ints(1, 0, 2)),
    "bias": lambda: attnspec.alibi(H) + attnspec.relative_bias(jnp.ones((H, 3))),
    "key": lambda: attnspec.random.wrap(jax.random.key_data(jax.random.key(5))),
    "dropout": lambda: attnspec.Dropout(jnp.asarray(0.5), attnspec.random.key(0)),
}


@pytest.mark.parametrize("name", TREES)
def test_a_tree_comes_apart_into_arrays_and_together_again(name):
    tree = TREES[name]()
    leaves, structure = jax.tree.flatten(tree)
    assert leaves
    assert all(isinstance(leaf, jax.Array | int) for leaf in leaves)
    again = jax.tree.unflatten(structure, leaves)
    assert type(again) is type(tree)
    assert jax.tree.structure(again) == structure
    assert jax.tree.structure(jax.tree.map(lambda x: x + x, tree)) == structure


@pytest.mark.parametrize("name", TREES)
def test_a_tree_is_an_argument_and_a_result_of_a_compiled_function(name):
    tree = TREES[name]()
    traces = []

    @jax.jit
    def same(tree):
        traces.append(tree)
        return tree

    jax.tree.map(np.testing.assert_array_equal, same(tree), tree)
    same(jax.tree.map(lambda x: x + x, tree))
    assert len(traces) == 1


def test_paths_are_the_names_of_the_fields():
    paths = {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(TREES["params"]())}
    assert {".attention.wq", ".feed_forward.b_in", ".norm_attention.gamma"} < paths
    assert paths == {f".{name}" for name in attnspec.params.flatten(TREES["params"]())}


def test_a_gradient_is_of_the_class_of_the_parameters():
    params, x = TREES["params"](), jnp.asarray(draw(B, Q, M, dtype="float64"))

    def loss(params):
        return (attnspec.transformer_layer(params, x, mask=attnspec.causal()) ** 2).sum()

    slope = jax.jit(jax.grad(loss))(params)
    assert type(slope) is type(params)
    assert slope.order == "pre"
    direction = jax.tree.map(lambda x: jnp.asarray(draw(*x.shape, seed=3, dtype="float64")), params)
    step = 1e-6
    up, down = (loss(jax.tree.map(lambda x, d, s=s: x + s * d, params, direction)) for s in (step, -step))
    along = sum(jnp.vdot(a, b) for a, b in zip(*map(jax.tree.leaves, (slope, direction)), strict=True))
    np.testing.assert_allclose(along, (up - down) / (2 * step), rtol=1e-6)


def test_models_that_lie_on_a_new_axis_are_mapped_over():
    x = jnp.asarray(draw(B, Q, M, dtype="float64"))
    models = [attnspec.LayerParams.init(attnspec.random.key(n), **LAYER, dtype="float64", like=jnp) for n in range(4)]
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)
    got = jax.vmap(attnspec.transformer_layer, in_axes=(0, None))(together, x)
    close(got, jnp.stack([attnspec.transformer_layer(model, x) for model in models]))


def test_rules_and_keys_are_mapped_over_with_the_batch():
    q, k, v = (jnp.asarray(draw(B, h, n, D, seed=n, dtype="float64")) for h, n in ((H, Q), (G, K), (G, K)))
    seen = attnspec.padding(ints(7, 3, 1))
    got = jax.vmap(lambda q, k, v, seen: attnspec.attention(q, k, v, mask=seen))(q, k, v, seen)
    close(got, attnspec.attention(q, k, v, mask=seen))


@pytest.mark.parametrize("first", ["attnspec", "jax"])
def test_it_does_not_matter_who_is_imported_first(first):
    other = {"attnspec": "jax", "jax": "attnspec"}[first]
    program = (
        f"import {first}, {other}, numpy\n"
        "params = attnspec.NormParams.init(width=3, like=numpy)\n"
        "assert len(jax.tree.leaves(params)) == 2"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
