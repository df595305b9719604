"""The conventions of PyTorch, JAX, Keras and MLX in attnspec's words: the adapters on NumPy beside the functions."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import attnspec
from attnspec.errors import DTypeError, MaskError, OptionError, ShapeError
from attnspec.integrations import jax, keras, mlx, torch

B, H, G, Q, K, D, E = 4, 6, 2, 5, 7, 3, 2


def draw(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def heads(q=H, k=G):
    return draw(B, q, Q, D), draw(B, k, K, D, seed=1), draw(B, k, K, E, seed=2)


SEEN = draw(B, 1, Q, K, seed=3) > -0.5
BIAS = draw(H, Q, K, seed=4)


def same(got, wanted):
    np.testing.assert_array_equal(got, wanted)


def close(got, wanted):
    np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


class TestTorch:
    def test_booleans_select_and_floats_are_added(self):
        q, k, v = heads()
        same(torch.scaled_dot_product_attention(q, k, v, SEEN, enable_gqa=True), attnspec.attention(q, k, v, mask=SEEN))
        same(torch.scaled_dot_product_attention(q, k, v, BIAS, enable_gqa=True), attnspec.attention(q, k, v, bias=BIAS))
        with pytest.raises(MaskError):
            torch.scaled_dot_product_attention(q, k, v, SEEN.astype(int), enable_gqa=True)

    @pytest.mark.parametrize("given", [SEEN, BIAS], ids=["mask", "bias"])
    def test_causal_holds_beside_a_mask(self, given):
        q, k, v = heads()
        got = torch.scaled_dot_product_attention(q, k, v, given, is_causal=True, enable_gqa=True)
        triangle = np.tril(np.ones((Q, K), bool))
        options = {"mask": triangle & SEEN} if given is SEEN else {"mask": triangle, "bias": BIAS}
        close(got, attnspec.attention(q, k, v, **options))

    @pytest.mark.parametrize(("of_q", "of_k", "of_v"), [(1, H, H), (H, 1, 1), (H, 1, H), (1, H, 1), (H, H, H)])
    def test_without_grouping_heads_broadcast(self, of_q, of_k, of_v):
        q, k, v = draw(B, of_q, Q, D), draw(B, of_k, K, D, seed=1), draw(B, of_v, K, E, seed=2)
        wide = [np.broadcast_to(x, (B, H, *x.shape[2:])) for x in (q, k, v)]
        close(torch.scaled_dot_product_attention(q, k, v), attnspec.attention(*wide))

    def test_rows_without_heads_are_one_head_for_all(self):
        q, k, v = heads()
        close(torch.scaled_dot_product_attention(q[0, 0], k, v), attnspec.attention(q[:1, [0, 0]], k, v))
        with pytest.raises(ShapeError, match=r"^q has shape"):
            torch.scaled_dot_product_attention(q[0, 0, 0], k, v)

    def test_heads_are_grouped_only_if_asked(self):
        with pytest.raises(ShapeError, match="enable_gqa=True"):
            torch.scaled_dot_product_attention(*heads())

    def test_dropout_needs_a_key_and_draws_by_it(self):
        q, k, v = heads(k=H)
        with pytest.raises(OptionError, match="rng"):
            torch.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
        rng = attnspec.random.key(3)
        got = torch.scaled_dot_product_attention(q, k, v, dropout_p=0.5, rng=rng)
        same(got, attnspec.attention(q, k, v, dropout=attnspec.Dropout(0.5, rng)))

    def test_softmax_is_along_any_axis_and_zero_where_there_is_nothing(self):
        x = draw(3, 4, 5)
        close(torch.softmax(x, 1), np.exp(x) / np.exp(x).sum(axis=1, keepdims=True))
        x[:, 1] = -np.inf
        same(torch.softmax(x, -1)[:, 1], np.zeros((3, 5)))
        assert torch.softmax(np.asarray(7.0), 0) == 1
        assert torch.softmax(np.ones((2, 0)), 1, np.float32).dtype == np.float32
        with pytest.raises(OptionError, match="dim=3"):
            torch.softmax(x, 3)

    def test_norms_are_over_several_axes_and_eps_may_be_negative(self):
        x, w, b = 3 * draw(2, 3, 4), draw(3, 4, seed=1), draw(3, 4, seed=2)
        far = x - x.mean(axis=(1, 2), keepdims=True)
        for eps in (0.5, -0.5):
            root = np.sqrt((far**2).mean(axis=(1, 2), keepdims=True) + eps)
            close(torch.layer_norm(x, (3, 4), w, b, eps), far / root * w + b)
            close(torch.rms_norm(x, (3, 4), w, eps), x / np.sqrt((x**2).mean(axis=(1, 2), keepdims=True) + eps) * w)
        assert np.isnan(torch.layer_norm(x, (3, 4), eps=-1e3)).all()
        with pytest.raises(ShapeError, match="normalized_shape"):
            torch.layer_norm(x, (4, 3))


class TestTorchMultiHead:
    """B differs from every length, C and the value's width from M."""

    M, C, V = 12, 10, 8
    x, key, value = draw(Q, B, M), draw(K, B, C), draw(K, B, V)
    wq, wk, wv, wo = draw(M, M, seed=1), draw(M, C, seed=1), draw(M, V, seed=1), draw(M, M, seed=2)
    b, bo = draw(3 * M), draw(M)

    def asked(self, x=x, key=key, value=value, bias_k=None, bias_v=None, zero=False, rate=0.0, **more):
        return torch.multi_head_attention_forward(
            x, key, value, self.M, H, None, self.b, bias_k, bias_v, zero, rate, self.wo, self.bo,
            use_separate_proj_weight=True, q_proj_weight=self.wq, k_proj_weight=self.wk, v_proj_weight=self.wv,
            **more,
        )  # fmt: skip

    def by_parts(self, rows_k=(), rows_v=(), **options):
        """The same from attnspec.attention: projections by matrices, then heads cut out of M."""
        third = np.split(self.b, 3)
        pairs = ((self.x, self.wq), (self.key, self.wk), (self.value, self.wv))
        q, k, v = (np.swapaxes(x @ w.T + b, 0, 1) for (x, w), b in zip(pairs, third, strict=True))
        k, v = (np.concatenate([x, *(np.broadcast_to(r, (B, 1, self.M)) for r in rows)], axis=1)
                for x, rows in ((k, rows_k), (v, rows_v)))  # fmt: skip
        q, k, v = (np.swapaxes(x.reshape(B, -1, H, self.M // H), 1, 2) for x in (q, k, v))
        out = np.swapaxes(attnspec.attention(q, k, v, **options), 1, 2).reshape(B, Q, self.M)
        weights = attnspec.attention_weights(q, k, **{n: o for n, o in options.items() if n != "dropout"})
        return np.swapaxes(out @ self.wo.T + self.bo, 0, 1), weights

    def test_it_is_projections_around_attention(self):
        out, weights = self.by_parts()
        for average in (True, False):
            got, of_heads = self.asked(average_attn_weights=average)
            close(got, out)
            close(of_heads, weights.mean(axis=1) if average else weights)
        got, none = self.asked(need_weights=False)
        close(got, out)
        assert none is None

    def test_packed_weights_are_those_of_query_key_and_value_one_above_the_other(self):
        x, w = self.x, draw(3 * self.M, self.M)
        q, k, v = np.split(w, 3)
        asked = partial(
            torch.multi_head_attention_forward, x, x, x, self.M, H, in_proj_bias=None, bias_k=None, bias_v=None,
            add_zero_attn=False, dropout_p=0.0, out_proj_weight=self.wo, out_proj_bias=None, need_weights=False,
        )  # fmt: skip
        apart = asked(
            in_proj_weight=None, use_separate_proj_weight=True, q_proj_weight=q, k_proj_weight=k, v_proj_weight=v
        )
        same(asked(in_proj_weight=w)[0], apart[0])
        with pytest.raises(OptionError, match="in_proj_weight"):
            asked(in_proj_weight=None)

    def test_true_hides(self):
        padded = draw(B, K) > 0.5
        out, weights = self.by_parts(mask=SEEN & ~padded[:, None, None, :])
        hidden = np.broadcast_to(~SEEN, (B, H, Q, K)).reshape(B * H, Q, K)
        got, of_heads = self.asked(attn_mask=hidden, key_padding_mask=padded, average_attn_weights=False)
        close(got, out)
        close(of_heads, weights)

    def test_floats_are_added_and_all_masks_hold(self):
        padded = draw(B, K)
        out, _ = self.by_parts(bias=BIAS + padded[:, None, None, :], mask=attnspec.causal())
        by_head = np.broadcast_to(BIAS, (B, H, Q, K)).reshape(B * H, Q, K)
        close(self.asked(attn_mask=by_head, key_padding_mask=padded, is_causal=True)[0], out)

    def test_added_keys_are_seen_by_every_query(self):
        bias_k, bias_v, nothing = draw(1, 1, self.M), draw(1, 1, self.M, seed=1), np.zeros(self.M)
        seen = np.concatenate([np.tril(np.ones((Q, K), bool)), np.ones((Q, 2), bool)], axis=1)
        hidden = np.concatenate([SEEN[0, 0], np.ones((Q, 2), bool)], axis=1)
        out, weights = self.by_parts([bias_k, nothing], [bias_v, nothing], mask=seen & hidden)
        got, averaged = self.asked(bias_k=bias_k, bias_v=bias_v, zero=True, attn_mask=~SEEN[0, 0], is_causal=True)
        close(got, out)
        close(averaged, weights.mean(axis=1))
        with pytest.raises(OptionError, match="bias_k and bias_v"):
            self.asked(bias_k=bias_k)

    def test_static_keys_and_values_take_the_place_of_projected_ones(self):
        k, v, hidden = draw(B * H, 9, self.M // H), draw(B * H, 9, self.M // H, seed=1), draw(Q, 9) > 0.5
        q = np.swapaxes((self.x @ self.wq.T + self.b[: self.M]).reshape(Q, B, H, -1), 0, 1).swapaxes(1, 2)
        heads = attnspec.attention(q, *(x.reshape(B, H, 9, -1) for x in (k, v)), mask=~hidden)
        out = heads.swapaxes(1, 2).reshape(B, Q, self.M).swapaxes(0, 1) @ self.wo.T + self.bo
        close(self.asked(static_k=k, static_v=v, attn_mask=hidden)[0], out)

    def test_without_batch_it_is_one_item_of_a_batch(self):
        padded = draw(B, K) > 0.5
        out, weights = self.asked(key_padding_mask=padded)
        one, of_one = self.asked(self.x[:, 1], self.key[:, 1], self.value[:, 1], key_padding_mask=padded[1])
        close(one, out[:, 1])
        close(of_one, weights[1])

    def test_dropout_is_for_training_and_leaves_the_weights_alone(self):
        rng = attnspec.random.key(1)
        out, weights = self.by_parts(dropout=attnspec.Dropout(0.5, rng))
        got, averaged = self.asked(rate=0.5, rng=rng)
        close(got, out)
        close(averaged, weights.mean(axis=1))
        same(self.asked(rate=0.5, training=False)[0], self.asked()[0])
        with pytest.raises(OptionError, match="rng"):
            self.asked(rate=0.5)

    @pytest.mark.parametrize(
        ("wrong", "error"),
        [
            ({"key": draw(K, B, 9)}, ShapeError), ({"x": draw(Q, 12)}, ShapeError),
            ({"attn_mask": np.zeros((B, Q, K), bool)}, ShapeError), ({"attn_mask": np.zeros((Q, K), int)}, MaskError),
            ({"key_padding_mask": np.zeros((K, B), bool)}, ShapeError), ({"static_k": draw(H, 7, 2)}, ShapeError),
            ({"bias_k": draw(1, 1, 6), "bias_v": draw(1, 1, 12)}, ShapeError),
            ({"x": np.zeros((Q, B, 12), int)}, DTypeError), ({"attn_mask": [[False] * K] * Q}, DTypeError),
            ({"key_padding_mask": attnspec.padding(3)}, DTypeError), ({"static_k": [[[0.0, 1.0]]]}, DTypeError),
            ({"static_k": np.zeros(3)}, ShapeError),
        ],
    )  # fmt: skip
    def test_what_does_not_fit_is_refused(self, wrong, error):
        with pytest.raises(error):
            self.asked(**wrong)


def turned(*arrays):
    """Heads behind rows, as JAX and Keras have them."""
    return [np.swapaxes(x, 1, 2) for x in arrays]


class TestJax:
    def test_every_mask_holds(self):
        q, k, v = heads()
        of_q, of_k = np.asarray([5, 0, 2, 4]), np.asarray([7, 3, 1, 0])
        i, j = np.arange(Q)[:, None], np.arange(K)
        lengths = (i < of_q[:, None, None]) & (j < of_k[:, None, None])
        seen = SEEN & lengths[:, None] & (j <= i) & (j >= i - 2)
        got, lse = jax.dot_product_attention(
            *turned(q, k, v), BIAS, SEEN, scale=0.3, is_causal=True, query_seq_lengths=of_q,
            key_value_seq_lengths=list(map(int, of_k)), local_window_size=(2, 1), return_residual=True,
        )  # fmt: skip
        wanted, of_rows = attnspec.attention_with_lse(q, k, v, mask=seen, bias=BIAS, scale=0.3)
        close(np.swapaxes(got, 1, 2), wanted)
        close(np.swapaxes(lse, 1, 2), of_rows)
        same(got[1], 0)

    def test_one_number_is_a_window_on_both_sides(self):
        x = turned(*heads())
        same(
            jax.dot_product_attention(*x, local_window_size=1), jax.dot_product_attention(*x, local_window_size=(1, 1))
        )

    def test_without_batch_it_is_one_item_of_a_batch(self):
        x = turned(*heads())
        same(jax.dot_product_attention(*(a[2] for a in x), BIAS), jax.dot_product_attention(*x, BIAS)[2])

    @pytest.mark.parametrize(
        ("wrong", "error"),
        [
            ({"implementation": "cudnn"}, OptionError), ({"local_window_size": (1, 2, 3)}, OptionError),
            ({"query_seq_lengths": np.asarray([1, 2])}, ShapeError), ({"key_value_seq_lengths": "7"}, DTypeError),
            ({"mask": np.ones((Q, K))}, MaskError), ({"key_value_seq_lengths": 3}, ShapeError),
        ],
    )  # fmt: skip
    def test_what_means_nothing_is_refused(self, wrong, error):
        with pytest.raises(error):
            jax.dot_product_attention(*turned(*heads()), **wrong)

    @pytest.mark.parametrize("of", [(None, B, B), (B, None, None), (1, B, B), (B, 1, B), (B, B, 1)], ids=str)
    def test_one_batch_for_all_or_for_none(self, of):
        """An item that is not asked for would be thrown away, or one would stand for many."""
        given = [x[0] if n is None else x[:n] for n, x in zip(of, turned(*heads()), strict=True)]
        with pytest.raises(ShapeError, match="the same B"):
            jax.dot_product_attention(*given)


class TestKeras:
    def test_mask_bias_causal_and_cap_all_hold(self):
        q, k, v = heads()
        got = keras.dot_product_attention(*turned(q, k, v), BIAS, SEEN, 0.3, True, None, 2.0)
        seen = SEEN & np.tril(np.ones((Q, K), bool))
        close(np.swapaxes(got, 1, 2), attnspec.attention(q, k, v, bias=BIAS, mask=seen, scale=0.3, softcap=2.0))

    def test_mixed_dtypes_are_computed_in_the_widest(self):
        q, k, v = turned(*heads())
        for of_k, wanted in (("float32", "float32"), ("float64", "float64"), ("float16", "float16")):
            got = keras.dot_product_attention(q.astype("float16"), k.astype(of_k), v.astype(of_k))
            assert got.dtype == wanted

    def test_a_kernel_of_the_framework_cannot_be_insisted_on(self):
        with pytest.raises(OptionError, match="flash_attention"):
            keras.dot_product_attention(*turned(*heads()), flash_attention=True)
        with pytest.raises(ShapeError, match=r"\(B, rows, heads, width\)"):
            keras.dot_product_attention(*(x[0] for x in turned(*heads())))


class TestMlx:
    def test_causal_ends_at_the_last_key(self):
        q, k, v = heads()
        seen = np.tril(np.ones((Q, K), bool), K - Q)
        close(mlx.scaled_dot_product_attention(q, k, v, scale=0.3, mask="causal"),
              attnspec.attention(q, k, v, scale=0.3, mask=seen))  # fmt: skip

    @pytest.mark.parametrize(("mask", "option"), [(SEEN, "mask"), (BIAS, "bias")], ids=["mask", "bias"])
    def test_booleans_select_floats_are_added_and_sinks_are_sinks(self, mask, option):
        q, k, v = heads()
        sinks = draw(H)
        same(mlx.scaled_dot_product_attention(q, k, v, scale=0.3, mask=mask, sinks=sinks),
             attnspec.attention(q, k, v, scale=0.3, sink=sinks, **{option: mask}))  # fmt: skip

    def test_there_is_no_default_of_the_scale(self):
        with pytest.raises(OptionError, match="scale=None"):
            mlx.scaled_dot_product_attention(*heads(), scale=None)

    @pytest.mark.parametrize("name", ["q", "k", "v", "mask", "sinks"])
    def test_the_arrays_of_mlx_are_shown_the_way_round(self, name):
        theirs = type("array", (), {"__module__": "mlx.core", "shape": (), "ndim": 0, "dtype": "mlx.core.float32"})()
        given = dict(zip("qkv", heads(), strict=True)) | {name: theirs}
        with pytest.raises(DTypeError, match=rf"^{name} is an array of MLX.*numpy\.asarray.*mlx\.core\.array"):
            mlx.scaled_dot_product_attention(**given, scale=1.0)

    def test_another_name_of_a_mask_is_refused(self):
        with pytest.raises(OptionError, match="'full'"):
            mlx.scaled_dot_product_attention(*heads(), scale=1.0, mask="full")
