"""Flax's layers with attnspec for their attention: linen's and nnx's."""

from __future__ import annotations

import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attnspec_conformance.masks import Causal, Dense
from attnspec_conformance.trials import Call
from flax import linen, nnx
from judging import draw, judged

import attnspec
from attnspec.errors import DTypeError, OptionError, ShapeError
from attnspec.integrations import flax as integration
from attnspec.integrations.flax import dot_product_attention

B, H, G, Q, K, D, E, M = 3, 6, 2, 5, 7, 4, 8, 12
close = partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12)  # of two layers in float64
same = np.testing.assert_array_equal


@pytest.fixture(autouse=True)
def _in_double(monkeypatch):
    """float64, with the draws that Flax makes without it."""
    bernoulli = jax.random.bernoulli

    def of_float32(rng, p, shape):
        with jax.enable_x64(False):
            return bernoulli(rng, p, shape)

    monkeypatch.setattr(jax.random, "bernoulli", of_float32)
    with jax.enable_x64(True):
        yield


class Nowhere:
    """Takes weights to sow. Given a module nnx computes for itself; else it asks JAX, whose softmax is float32."""

    def sow(self, *sown):
        pass


def own_of_nnx(*arrays, module=None, **options):
    """nnx's attention in the dtype that it is given."""
    return nnx.dot_product_attention(*arrays, module=module or Nowhere(), **options)


@pytest.fixture
def calls(monkeypatch):
    """What attnspec's attention was asked for."""
    asked = []

    def counted(*arrays, **options):
        asked.append(options)
        return attnspec.attention(*arrays, **options)

    monkeypatch.setattr(integration, "attention", counted)
    return asked


def rows(heads=H, length=Q, width=D, seed=0, dtype="float64"):
    """(B, rows, heads, width), as Flax has them."""
    return jnp.asarray(draw(B, length, heads, width, seed=seed, dtype=dtype))


def grouped(**more):
    return rows(**more), rows(G, K, seed=1, **more), rows(G, K, E, seed=2, **more)


SOME = draw(B, 1, Q, K, seed=3) > -0.5  # every row sees a key
SEEN = SOME.copy()
SEEN[1, 0, 2] = False
X, Y = draw(B, Q, M, dtype="float64"), draw(B, K, M, seed=1, dtype="float64")


def of_linen(attention_fn, **options):
    return linen.MultiHeadDotProductAttention(H, param_dtype=jnp.float64, attention_fn=attention_fn, **options)


def of_nnx(attention_fn, **options):
    return nnx.MultiHeadAttention(
        H, M, num_kv_heads=G, decode=False, param_dtype=jnp.float64, attention_fn=attention_fn,
        rngs=nnx.Rngs(0, dropout=5), **options,
    )  # fmt: skip


@pytest.mark.parametrize("theirs", [linen.dot_product_attention, nnx.dot_product_attention], ids=["linen", "nnx"])
def test_every_argument_of_flax_is_named_and_defaults_to_the_same(theirs):
    """linen drops what is not named; an argument that a later Flax adds fails here."""
    own, ours = (inspect.signature(f).parameters for f in (theirs, dot_product_attention))
    assert own.keys() <= ours.keys()
    assert list(own)[:12] == list(ours)[:12]
    differing = {name for name in own if own[name].default != ours[name].default}
    assert differing <= {"promote_dtype"}
    assert not any(p.kind is p.VAR_KEYWORD for p in ours.values())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_it_is_attention_within_the_bound(dtype):
    q, k, v = grouped(dtype=dtype)
    heads = [np.moveaxis(np.asarray(x), -3, -2) for x in (q, k, v)]
    bias = draw(H, Q, K, seed=4, dtype=dtype)
    for options, meant in (
        ({}, {}),
        ({"is_causal": True}, {"mask": Causal()}),
        ({"mask": SEEN.astype(np.float32), "bias": bias}, {"mask": Dense(SEEN), "bias": bias}),
        ({"mask": SEEN, "is_causal": True}, {"mask": Dense(SEEN & np.tri(Q, K, dtype=bool))}),
        ({"mask": attnspec.causal()}, {"mask": Causal()}),
    ):
        options = {n: jnp.asarray(x) if isinstance(x, np.ndarray) else x for n, x in options.items()}
        out = dot_product_attention(q, k, v, **options)
        verdict = judged(Call(*heads, dtype=dtype, **meant), jnp.moveaxis(out, -3, -2))
        assert verdict.ok, verdict.message


@pytest.mark.parametrize("lead", [(), (B,), (2, B)], ids=str)
def test_any_number_of_axes_may_lead(lead):
    q, k, v = (jnp.asarray(draw(*lead, n, H, w, seed=n, dtype="float64")) for n, w in ((Q, D), (K, D), (K, E)))
    close(dot_product_attention(q, k, v), linen.dot_product_attention(q, k, v))


@pytest.mark.parametrize("length", [0, 1, K])
def test_rows_that_see_nothing_are_zero(length):
    q, k, v = grouped()
    out = dot_product_attention(q, k[:, :length], v[:, :length], mask=jnp.zeros((B, 1, 1, length)))
    same(out, np.zeros((B, Q, H, E)))


def test_the_dtype_is_flaxs():
    q, k, v = grouped(dtype="float32")
    assert dot_product_attention(q.astype(jnp.bfloat16), k.astype(jnp.bfloat16), v).dtype == jnp.float32
    assert dot_product_attention(q, k, v, dtype=jnp.bfloat16).dtype == jnp.bfloat16
    widest = partial(jax.tree.map, lambda x: x.astype(jnp.float64))
    assert dot_product_attention(q, k, v, promote_dtype=lambda arrays, dtype: widest(arrays)).dtype == jnp.float64


class TestLinen:
    @pytest.mark.parametrize("seen", [None, SOME, SOME.astype(np.float32)], ids=["none", "bool", "float32"])
    def test_a_layer_gives_what_it_gives_with_its_own_attention(self, seen, calls):
        own = of_linen(linen.dot_product_attention)
        variables = own.init(jax.random.key(0), X, Y)
        close(of_linen(dot_product_attention).apply(variables, X, Y, mask=seen), own.apply(variables, X, Y, mask=seen))
        assert len(calls) == 1
        assert (calls[0]["mask"] is None) == (seen is None)

    def test_gradients_compiled_are_those_of_its_own_attention(self):
        own = of_linen(linen.dot_product_attention)
        seen = linen.make_causal_mask(X[..., 0])
        variables = own.init(jax.random.key(0), X)

        def gradient(layer):
            return jax.jit(jax.grad(lambda v: (layer.apply(v, X, mask=seen) ** 2).sum()))(variables)

        jax.tree.map(close, gradient(of_linen(dot_product_attention)), gradient(own))

    def test_a_rule_in_place_of_a_mask_makes_no_array(self, calls):
        layer = of_linen(dot_product_attention)
        variables = layer.init(jax.random.key(0), X)
        got = layer.apply(variables, X, mask=attnspec.causal())
        close(got, layer.apply(variables, X, mask=linen.make_causal_mask(X[..., 0])))
        assert calls[1]["mask"] == attnspec.causal()

    @pytest.mark.parametrize("broadcast", [True, False])
    def test_dropout_drops_what_flax_drops(self, broadcast, calls):
        options = {"dropout_rate": 0.4, "broadcast_dropout": broadcast}
        own = of_linen(linen.dot_product_attention, **options)
        variables = own.init(jax.random.key(0), X, Y, deterministic=True)
        theirs, got = (
            layer.apply(variables, X, Y, deterministic=False, rngs={"dropout": jax.random.key(2)})
            for layer in (own, of_linen(dot_product_attention, **options))
        )
        close(got, theirs)
        assert calls[0]["dropout"].rate == 0.4
        kept = own.apply(variables, X, Y, deterministic=True)
        assert abs(theirs - kept).max() > 0.01
        close(of_linen(dot_product_attention, **options).apply(variables, X, Y, deterministic=True), kept)

    def test_decoding_with_its_cache_is_the_causal_call(self, calls):
        layer = of_linen(dot_product_attention, decode=True)
        variables = layer.init(jax.random.key(0), X)
        cache, steps = variables["cache"], []
        for n in range(Q):
            step, new = layer.apply({"params": variables["params"], "cache": cache}, X[:, n : n + 1], mutable=["cache"])
            cache = new["cache"]
            steps.append(step)
        whole = of_linen(dot_product_attention).apply(
            {"params": variables["params"]}, X, mask=linen.make_causal_mask(X[..., 0])
        )
        close(jnp.concatenate(steps, axis=1), whole)
        assert len(calls) == Q + 2

    def test_weights_are_sown_and_change_no_bit(self):
        own, ours = (of_linen(f) for f in (linen.dot_product_attention, dot_product_attention))
        variables = own.init(jax.random.key(0), X, Y)
        got, sown = ours.apply(variables, X, Y, sow_weights=True, mutable=["intermediates"])
        _, wanted = own.apply(variables, X, Y, sow_weights=True, mutable=["intermediates"])
        jax.tree.map(close, sown, wanted)
        assert jax.tree.leaves(sown)[0].shape == (B, H, Q, K)
        same(got, ours.apply(variables, X, Y))

    def test_a_quantised_product_is_refused(self):
        layer = of_linen(
            dot_product_attention,
            qk_attn_weights_einsum_cls=lambda: jnp.einsum,
            attn_weights_value_einsum_cls=lambda: jnp.einsum,
        )
        with pytest.raises(OptionError, match="qk_attn_weights_einsum"):
            layer.init(jax.random.key(0), X)


class TestNnx:
    @pytest.mark.parametrize(
        "options", [{}, {"is_causal": True}, {"mask": jnp.asarray(SOME)}], ids=["plain", "causal", "mask"]
    )
    def test_a_layer_gives_what_it_gives_with_its_own_attention(self, options, calls):
        own, ours = (of_nnx(f) for f in (own_of_nnx, dot_product_attention))
        close(ours(X, Y, **options), own(X, Y, **options))
        assert len(calls) == 1
        assert (calls[0]["mask"] is None) == (not options)

    def test_gradients_compiled_are_those_of_its_own_attention(self):
        def gradient(layer):
            return nnx.jit(nnx.grad(lambda layer: (layer(X, is_causal=True) ** 2).sum()))(layer)

        jax.tree.map(close, *(gradient(of_nnx(f)) for f in (own_of_nnx, dot_product_attention)))

    @pytest.mark.parametrize("broadcast", [True, False])
    def test_dropout_drops_what_flax_drops(self, broadcast, calls):
        options = {"dropout_rate": 0.4, "broadcast_dropout": broadcast, "deterministic": False}
        own, ours = (of_nnx(f, **options) for f in (own_of_nnx, dot_product_attention))
        seen = jnp.asarray(SOME | np.eye(Q, K, dtype=bool))
        close(ours(X, Y, mask=seen, is_causal=True), own(X, Y, mask=seen, is_causal=True))
        assert calls[0]["dropout"].rate == 0.4

    def test_weights_are_sown_and_change_no_bit(self):
        own, ours = (of_nnx(f) for f in (nnx.dot_product_attention, dot_product_attention))
        (got, sown), (_, wanted) = (
            nnx.capture(layer, nnx.Intermediate)(X, Y, sow_weights=True) for layer in (ours, own)
        )
        jax.tree.map(close, sown, wanted)
        assert jax.tree.leaves(sown)[0].shape == (B, H, Q, K)
        same(got, ours(X, Y))


RNG = jax.random.key(7)
DROPPED = {"dropout_rate": 0.5, "dropout_rng": RNG}


class TestDropout:
    @pytest.mark.parametrize("rng", [RNG, jax.random.PRNGKey(7), attnspec.random.key(7)], ids=["new", "old", "ours"])
    @pytest.mark.parametrize("broadcast", [True, False])
    def test_keys_of_jax_old_and_new_and_of_attnspec_draw_the_same(self, rng, broadcast):
        q, k, v = grouped()
        got = dot_product_attention(q, k, v, broadcast_dropout=broadcast, dropout_rng=rng, dropout_rate=0.5)
        close(got, own_of_nnx(q, k, v, broadcast_dropout=broadcast, **DROPPED))

    @pytest.mark.parametrize(
        ("lead", "shape"), [((), (K,)), ((B,), (Q, 1)), ((2, B), (H, 1, K)), ((2, B), (B, 1, Q, K))], ids=str
    )
    def test_one_draw_holds_beside_masks_and_biases_that_broadcast(self, lead, shape):
        q, k, v = (jnp.asarray(draw(*lead, n, h, w, dtype="float64")) for n, h, w in ((Q, H, D), (K, G, D), (K, G, E)))
        options = {"bias": jnp.asarray(draw(*shape)), "mask": jnp.asarray(draw(*shape, seed=1) > -2)}
        got, theirs = (f(q, k, v, **options, **DROPPED) for f in (dot_product_attention, own_of_nnx))
        close(got, theirs)

    def test_the_gradient_of_one_draw_is_flaxs(self):
        arrays = grouped()
        got, theirs = (
            jax.grad(lambda *a, f=f: (f(*a, **DROPPED) ** 2).sum(), argnums=(0, 1, 2))(*arrays)
            for f in (dot_product_attention, own_of_nnx)
        )
        jax.tree.map(close, got, theirs)

    def test_rate_one_gives_zeros_and_rate_zero_needs_no_key(self):
        q, k, v = grouped()
        for broadcast in (True, False):
            out = dot_product_attention(q, k, v, broadcast_dropout=broadcast, dropout_rng=RNG, dropout_rate=1.0)
            same(out, np.zeros((B, Q, H, E)))
        same(dot_product_attention(q, k, v, dropout_rate=0.0), dot_product_attention(q, k, v))

    def test_what_has_no_meaning_is_refused(self):
        q, k, v = grouped()
        with pytest.raises(OptionError, match="without dropout_rng"):
            dot_product_attention(q, k, v, dropout_rate=0.5)
        with pytest.raises(OptionError, match=r"rate=1\.5"):
            dot_product_attention(q, k, v, dropout_rate=1.5, dropout_rng=RNG)
        with pytest.raises(DTypeError, match="words"):
            dot_product_attention(q, k, v, dropout_rate=0.5, dropout_rng=jax.random.key(0, impl="rbg"))
        for rule in ({"mask": attnspec.causal()}, {"bias": attnspec.alibi(H)}):
            with pytest.raises(OptionError, match="broadcast_dropout=False"):
                dot_product_attention(q, k, v, **rule, **DROPPED)
        with pytest.raises(ShapeError):
            dot_product_attention(q, k, v, mask=jnp.ones((Q + 1, K)), **DROPPED)


def test_others_arrays_are_taken_and_give_their_own():
    q, k, v = (np.asarray(x) for x in grouped())
    out = dot_product_attention(q, k, v, mask=SEEN)
    assert type(out) is np.ndarray
    close(out, dot_product_attention(*map(jnp.asarray, (q, k, v)), mask=jnp.asarray(SEEN)))
    rng = attnspec.random.key(3)
    dropped = dot_product_attention(q, k, v, dropout_rate=0.5, dropout_rng=rng, broadcast_dropout=False)
    assert type(dropped) is np.ndarray
    with pytest.raises(OptionError, match="by JAX"):
        dot_product_attention(q, k, v, dropout_rate=0.5, dropout_rng=rng)


def test_shapes_and_dtypes_that_do_not_fit_are_refused():
    q, k, v = grouped()
    with pytest.raises(ShapeError, match="rows, heads, width"):
        dot_product_attention(q[0, 0], k, v)
    with pytest.raises(DTypeError, match="int32"):
        dot_product_attention(q, k, v.astype(jnp.int32))
    with pytest.raises(ShapeError, match="multiple"):
        dot_product_attention(q[:, :, :5], k, v)
