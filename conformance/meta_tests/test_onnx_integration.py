"""ONNX's operators by attnspec, on NumPy and without onnx. ONNX's own tests of them are in conformance/external."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import attnspec
from attnspec import errors
from attnspec.integrations.onnx import (
    attention_op,
    flex_attention_op,
    layer_normalization_op,
    reference_ops,
    rms_normalization_op,
    rotary_embedding_op,
)

B, H, G, Q, K, D, E = 2, 6, 3, 4, 5, 7, 8
LENGTHS = np.asarray([5, 3])


def made(*shape, dtype="float64"):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


def q_k_v(dtype="float64"):
    return made(B, H, Q, D, dtype=dtype), made(B, G, K, D, dtype=dtype), made(B, G, K, E, dtype=dtype)


def visible():
    """Causal by where the last of so many real keys stands, in numbers."""
    ahead = np.arange(K) - np.arange(Q)[:, None]
    return (ahead <= (LENGTHS - Q)[:, None, None])[:, None] & (np.arange(K) < LENGTHS[:, None])[:, None, None]


@pytest.mark.parametrize("bias", [(K,), (Q, K), (H, Q, K), (B, 1, Q, K)], ids=str)
def test_the_fourth_output_is_what_its_mode_says(bias):
    q, k, v = q_k_v()
    added = made(*bias)
    raw = 0.3 * np.einsum("bhqd,bhkd->bhqk", q, np.repeat(k, H // G, axis=1))
    capped = 2.0 * np.tanh(raw / 2.0)
    inside = np.where(visible(), capped + added, -np.inf)
    weights = np.exp(inside)
    weights = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    for mode, wanted in enumerate((raw, capped, inside, weights)):
        out = attention_op(
            q, k, v, added, nonpad_kv_seqlen=LENGTHS, is_causal=1, scale=0.3, softcap=2.0, qk_matmul_output_mode=mode
        )
        np.testing.assert_allclose(out.qk_matmul_output, wanted, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(out.Y, weights @ np.repeat(v, H // G, axis=1), rtol=1e-12, atol=1e-13)


def test_the_fourth_output_is_none_unless_its_mode_is_given():
    assert attention_op(*q_k_v()).qk_matmul_output is None


@pytest.mark.parametrize("hides", ["attn_mask", "nonpad_kv_seqlen", "window"])
def test_what_is_hidden_cannot_be_observed(hides):
    q, k, v = q_k_v()
    seen = np.broadcast_to((np.arange(K) < 3), (B, 1, Q, K))
    how = {
        "attn_mask": {"attn_mask": seen[..., :3]},
        "nonpad_kv_seqlen": {"nonpad_kv_seqlen": np.asarray([3, 3])},
        "window": {"right_window_size": 0, "attn_mask": np.where(seen, 0.0, -np.inf)},
    }[hides]
    for mode in (2, 3):
        clean = attention_op(q, k, v, **how, qk_matmul_output_mode=mode)
        poisoned = [np.concatenate([x[:, :, :3], np.full_like(x[:, :, 3:], np.nan)], axis=2) for x in (k, v)]
        found = attention_op(q, *poisoned, **how, qk_matmul_output_mode=mode)
        np.testing.assert_array_equal(found.Y, clean.Y)
        np.testing.assert_array_equal(found.qk_matmul_output, clean.qk_matmul_output)


def test_lengths_may_be_listed():
    found = attention_op(*q_k_v(), nonpad_kv_seqlen=LENGTHS.tolist(), is_causal=1)
    np.testing.assert_array_equal(found.Y, attnspec.attention(*q_k_v(), mask=visible()))


def test_negative_scales_and_0_are_scales_and_a_softcap_of_0_is_none():
    q, k, v = q_k_v()
    for scale in (np.float32(-0.7), 0.0):
        wanted = attnspec.attention(q, k, v, scale=float(scale))
        np.testing.assert_array_equal(attention_op(q, k, v, scale=scale).Y, wanted)
    np.testing.assert_array_equal(attention_op(q, k, v, softcap=0.0).Y, attnspec.attention(q, k, v))


def test_a_cache_comes_before_the_new_keys_and_moves_the_queries_behind_it():
    q, k, v = q_k_v()
    past = {"past_key": k[:, :, :2], "past_value": v[:, :, :2]}
    out = attention_op(q, k[:, :, 2:], v[:, :, 2:], **past, is_causal=1, left_window_size=2)
    np.testing.assert_array_equal(out.present_key, k)
    np.testing.assert_array_equal(out.present_value, v)
    np.testing.assert_array_equal(out.Y, attnspec.attention(q, k, v, mask=attnspec.window(2, 0, offset=2)))


def test_heads_side_by_side_are_heads_and_come_back_so():
    q, k, v = q_k_v()
    flat = [x.swapaxes(1, 2).reshape(B, x.shape[2], -1) for x in (q, k, v)]
    out = attention_op(*flat, q_num_heads=H, kv_num_heads=G, is_causal=1)
    wanted = attnspec.attention(q, k, v, mask=attnspec.causal())
    np.testing.assert_array_equal(out.Y, wanted.swapaxes(1, 2).reshape(B, Q, H * E))
    np.testing.assert_array_equal(out.present_key, k)


def test_double_precision_is_computed_in_float64_and_rounded_once():
    q, k, v = q_k_v("float32")
    wide = attnspec.attention(*(x.astype("float64") for x in (q, k, v)))
    out = attention_op(q, k, v, softmax_precision=11)
    np.testing.assert_array_equal(out.Y, wide.astype("float32"))
    assert not np.array_equal(out.Y, attention_op(q, k, v, softmax_precision=10).Y)


def test_values_may_have_a_dtype_of_their_own():
    q, k, v = q_k_v("float32")
    out = attention_op(q.astype("float16"), k.astype("float16"), v)
    assert [x.dtype.name for x in out[:3]] == ["float16", "float16", "float32"]


def test_nothing_is_computed_in_half_precision():
    x = np.full((1, 1, 3, 4), 300.0, "float16")
    for out in (attention_op(x, x, x, qk_matmul_output_mode=3), (flex_attention_op(x, x, x),)):
        np.testing.assert_array_equal(out[0], x)
    rows = made(3, 4) * 1000
    wanted = layer_normalization_op(rows, np.ones(4))
    found = layer_normalization_op(rows.astype("float16"), np.ones(4, "float16"))
    assert found.Mean.dtype == found.InvStdDev.dtype == "float32"
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=3e-3)
    np.testing.assert_allclose(
        rms_normalization_op(rows.astype("float16"), np.ones(4)), rms_normalization_op(rows, np.ones(4)), rtol=3e-3
    )


@pytest.mark.parametrize("axis", [-1, 1, -3])
def test_layer_normalization_is_over_an_axis_and_all_after_it(axis):
    x = made(2, 3, 5)
    axes = tuple(range(axis % 3, 3))
    mean, deviation = x.mean(axes, keepdims=True), np.sqrt(x.var(axes, keepdims=True) + 0.5)
    out = layer_normalization_op(x, gain := made(5), offset := made(1), axis=axis, epsilon=0.5)
    for found, wanted in zip(out, ((x - mean) / deviation * gain + offset, mean, 1 / deviation), strict=True):
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("width", [8, 4])
def test_rotary_embedding_with_the_angles_of_rotary_is_rotary(interleaved, width):
    x, positions = made(B, H, Q, 8), np.asarray([[0, 1, 2, 7], [3, 9, 4, 1]])
    angles = np.arange(10)[:, None] * 10000.0 ** (-2 * np.arange(width // 2) / width)
    wanted = attnspec.rotary(x, positions, width=width, interleaved=bool(interleaved))
    options = {"interleaved": interleaved, "rotary_embedding_dim": width}
    found = rotary_embedding_op(x, np.cos(angles), np.sin(angles), positions, **options)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)
    flat = x.swapaxes(1, 2).reshape(B, Q, H * 8)
    cached = np.cos(angles)[positions], np.sin(angles)[positions]
    found = rotary_embedding_op(flat, *cached, num_heads=H, **options)
    np.testing.assert_array_equal(found, rotary_embedding_op(x, *cached, **options).swapaxes(1, 2).reshape(flat.shape))


def test_a_function_of_the_scores_stands_for_masks_and_biases():
    q, k, v = q_k_v()
    hidden = np.arange(K) - np.arange(Q)[:, None] > 0
    found = flex_attention_op(q, k, v, scale=0.3, score_mod=lambda s: np.where(hidden, -np.inf, s + 0.1))
    np.testing.assert_allclose(found, attnspec.attention(q, k, v, scale=0.3, mask=attnspec.causal()), rtol=1e-12)


FLAT = [made(B, Q, 12), made(B, K, 12), made(B, K, 12)]
LENGTH = {"nonpad_kv_seqlen": np.asarray([1, 2])}


@pytest.mark.parametrize(
    ("inputs", "options", "error", "says"),
    [
        (q_k_v(), {"past_key": made(B, G, 2, D)}, errors.OptionError, "past_key without past_value"),
        (q_k_v(), {"past_value": made(B, G, 2, E)}, errors.OptionError, "past_value without past_key"),
        (q_k_v(), {"past_key": made(B, G, 2, E), "past_value": made(B, G, 2, E)}, errors.ShapeError, "past_key has"),
        (
            q_k_v(),
            {"past_key": made(B, G, 2, D, dtype="float32"), "past_value": made(B, G, 2, E)},
            errors.DTypeError,
            "past_key float32",
        ),
        (
            q_k_v(),
            {"past_key": made(B, G, 2, D), "past_value": made(B, G, 2, E), **LENGTH},
            errors.OptionError,
            "nonpad_kv_seqlen with past_key",
        ),
        (q_k_v(), {"nonpad_kv_seqlen": np.asarray([1])}, errors.ShapeError, r"nonpad_kv_seqlen has shape \(1,\)"),
        (q_k_v(), {"nonpad_kv_seqlen": np.asarray([1.0, 2.0])}, errors.DTypeError, "signed integer"),
        (q_k_v(), {"nonpad_kv_seqlen": [1.0, 2.0]}, errors.DTypeError, "signed integer"),
        (q_k_v(), {"nonpad_kv_seqlen": 3}, errors.ShapeError, "nonpad_kv_seqlen=3"),
        (q_k_v(), {"nonpad_kv_seqlen": np.asarray([K + 1, 2])}, errors.OptionError, "from 0 to K=5"),
        (q_k_v(), {"nonpad_kv_seqlen": np.asarray([1, -1])}, errors.OptionError, "from 0 to K=5"),
        (FLAT, {}, errors.OptionError, "needs q_num_heads, got None"),
        (FLAT, {"q_num_heads": 6}, errors.OptionError, "needs kv_num_heads, got None"),
        (FLAT, {"q_num_heads": 3.0}, errors.OptionError, "needs q_num_heads, got 3.0"),
        (FLAT, {"q_num_heads": 5, "kv_num_heads": 3}, errors.ShapeError, "12 is no multiple of 5"),
        (FLAT, {"q_num_heads": 4, "kv_num_heads": 6}, errors.ShapeError, "equal widths"),
        ((made(B, 4, Q, D), *q_k_v()[1:]), {}, errors.ShapeError, "multiple of key/value heads"),
        (q_k_v(), {"q_num_heads": 2}, errors.OptionError, "has 6 heads, q_num_heads=2"),
        ((FLAT[0], *q_k_v()[1:]), {"q_num_heads": 3}, errors.ShapeError, "all of rank 3, or all of rank 4"),
        ([x[0, 0] for x in q_k_v()], {}, errors.ShapeError, r"\(batch, heads, length, width\)"),
        ([x.astype("int64") for x in q_k_v()], {}, errors.DTypeError, "Q has dtype int64"),
        ([[1.0]] * 3, {}, errors.DTypeError, "Q is a list"),
        (q_k_v(), {"attn_mask": np.ones((Q, K), "int32")}, errors.MaskError, "attn_mask has dtype int32"),
        (q_k_v(), {"attn_mask": [[0.5] * K] * Q}, errors.MaskError, "attn_mask is a list"),
        (q_k_v(), {"attn_mask": np.ones((Q + 1, K), "bool")}, errors.ShapeError, "does not broadcast"),
        (q_k_v(), {"is_causal": 2}, errors.OptionError, "is_causal=2"),
        (q_k_v(), {"left_window_size": -2}, errors.OptionError, "left_window_size=-2"),
        (q_k_v(), {"left_window_size": 1.5}, errors.OptionError, "left_window_size=1.5"),
        (q_k_v(), {"qk_matmul_output_mode": 4}, errors.OptionError, "qk_matmul_output_mode=4"),
        (q_k_v(), {"softmax_precision": 7}, errors.OptionError, "softmax_precision=7"),
        (q_k_v(), {"softcap": -1.0}, errors.OptionError, "softcap=-1"),
        (q_k_v(), {"scale": float("nan")}, errors.OptionError, "scale=nan"),
    ],
)
def test_attention_says_what_it_refuses(inputs, options, error, says):
    with pytest.raises(error, match=says):
        attention_op(*inputs, **options)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: flex_attention_op(*q_k_v(), prob_mod=abs), errors.OptionError, "prob_mod is given"),
        (lambda: flex_attention_op(*FLAT), errors.ShapeError, "are needed"),
        (lambda: layer_normalization_op(made(2, 3), made(3), axis=2), errors.OptionError, "axis=2"),
        (lambda: layer_normalization_op(made(2, 3), made(2, 1)), errors.ShapeError, r"Scale has shape \(2, 1\)"),
        (lambda: layer_normalization_op(made(2, 3), made(3), made(4)), errors.ShapeError, r"B has shape \(4,\)"),
        (lambda: layer_normalization_op(made(2, 3), [1.0] * 3), errors.DTypeError, "Scale is a list"),
        (lambda: layer_normalization_op(made(2, 3), made(3), [0.0] * 3), errors.DTypeError, "B is a list"),
        (lambda: rms_normalization_op(made(2, 3), made(3), stash_type=10), errors.OptionError, "stash_type=10"),
        (lambda: rms_normalization_op(made(2, 3), made(3), epsilon=-1.0), errors.OptionError, "eps=-1"),
        (lambda: rotary_embedding_op(FLAT[0], made(9, 1), made(9, 1)), errors.OptionError, "needs num_heads"),
        (
            lambda: rotary_embedding_op(q_k_v()[2], made(9, 4), made(9, 4)),
            errors.ShapeError,
            r"cos_cache has shape \(9, 4\); \(2, 5, 4\) is needed",
        ),
        (
            lambda: rotary_embedding_op(q_k_v()[2], made(9, 3), made(9, 3), np.zeros((B, K), "int64")),
            errors.ShapeError,
            r"cos_cache has shape \(9, 3\); \('P', 4\)",
        ),
        (
            lambda: rotary_embedding_op(q_k_v()[2], made(9, 4), made(9, 4), np.zeros(K, "int64")),
            errors.ShapeError,
            "position_ids have shape",
        ),
        (
            lambda: rotary_embedding_op(q_k_v()[2], made(9, 4), made(9, 4), [[0] * K] * B),
            errors.DTypeError,
            "position_ids are of type list",
        ),
        (
            lambda: rotary_embedding_op(q_k_v()[2], made(9, 4), made(9, 4), np.zeros((B, K))),
            errors.DTypeError,
            "position_ids are of type float64",
        ),
        *(
            (
                lambda wrong=wrong: rotary_embedding_op(q_k_v()[2], made(9, 4), made(9, 4), np.full((B, K), wrong)),
                errors.OptionError,
                "cos_cache has positions 0 to 8",
            )
            for wrong in (-1, 9)
        ),
        (
            lambda: rotary_embedding_op(q_k_v()[2], made(B, K, 4), made(B, K, 4), rotary_embedding_dim=3),
            errors.OptionError,
            "rotary_embedding_dim=3",
        ),
        (
            lambda: rotary_embedding_op(q_k_v()[2], made(B, K, 4), made(B, K, 4), interleaved=2),
            errors.OptionError,
            "interleaved=2",
        ),
    ],
)
def test_the_others_say_what_they_refuse(call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_the_evaluators_classes_need_onnx_and_say_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.setitem(sys.modules, "onnx.reference.op_run", None)
    with pytest.raises(errors.MissingFrameworkError, match="pip install onnx"):
        reference_ops()
