"""MULTIHEAD: projections around attention, layers and stacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attnspec
from attnspec.errors import OptionError, ShapeError

from . import masks, oracle_layers
from .layer_cases import FEED, LAYER, NORM, SIZES, U, close, layer, nothing, parameters, weights_of
from .masks import Array
from .oracle_layers import Value
from .problems import constant, normal, some_mask


@pytest.mark.clause("MULTIHEAD-1", "MULTIHEAD-3")
@pytest.mark.parametrize("name", SIZES)
def test_multi_head_attention_is_its_definition(backend: Any, name: str) -> None:
    arrays = weights_of(SIZES[name], biases=name != "grouped")
    x = normal(1, 2, 5, SIZES[name]["M"])
    context = normal(2, 2, 7, SIZES[name]["C"]) if name == "cross" else None
    params, made = parameters(backend, arrays), backend.asarray(x)
    other = None if context is None else backend.asarray(context)
    wanted = oracle_layers.multi_head(
        arrays, Value.given(x), Value.given(x if context is None else context), nothing(), U
    )
    close(backend, "y", attnspec.multi_head_attention(params, made, other), wanted["y"])
    close(backend, "heads", attnspec.multi_head_outputs(params, made, other), wanted["heads"])
    close(backend, "weights", attnspec.multi_head_weights(params, made, other), wanted["weights"])


@pytest.mark.clause("MULTIHEAD-3")
def test_every_option_of_attention_reaches_the_heads(backend: Any) -> None:
    arrays, seen, bias = weights_of(SIZES["grouped"]), some_mask(3, 6, 5, 5), normal(4, 6, 5, 5)
    sink, x = normal(5, 6), normal(1, 2, 5, 10)
    call = nothing(mask=masks.Both(masks.Causal(1), seen), bias=bias, scale=0.4, softcap=2.0, sink=sink)
    options = {
        "mask": attnspec.causal(1) & backend.asarray(seen.array),
        "bias": backend.asarray(bias),
        "scale": 0.4,
        "softcap": 2.0,
        "sink": backend.asarray(sink),
    }
    params, made = parameters(backend, arrays), backend.asarray(x)
    wanted = oracle_layers.multi_head(arrays, Value.given(x), Value.given(x), call, U)
    close(backend, "weights", attnspec.multi_head_weights(params, made, **options), wanted["weights"])
    close(backend, "y", attnspec.multi_head_attention(params, made, **options), wanted["y"])
    dropped = call.but(dropout=masks.Dropout(0.25, 7))
    wanted = oracle_layers.multi_head(arrays, Value.given(x), Value.given(x), dropped, U)
    drop = attnspec.Dropout(0.25, attnspec.random.key(7))
    close(backend, "y", attnspec.multi_head_attention(params, made, dropout=drop, **options), wanted["y"])


@pytest.mark.clause("MULTIHEAD-1")
def test_the_scale_is_of_the_head_width(backend: Any) -> None:
    """HD-03: karpathy/ng-video-lecture#6. One head of width 4 out of a model of width 16, known weights."""
    eye: Array = np.eye(16, dtype=np.float32).reshape(16, 4, 4)
    wv = constant(0, 16, 4, 4)
    wv[0, :, 0] = 1
    biases: dict[str, Array | None] = {f"b{letter}": None for letter in "qkvo"}
    arrays = {"wq": eye, "wk": eye, "wv": wv, "wo": constant(0, 4, 4, 16)} | biases
    x = constant(0, 2, 16)
    x[0] = 1
    wanted = oracle_layers.multi_head(arrays, Value.given(x), Value.given(x), nothing(), U)["heads"]
    heads = attnspec.multi_head_outputs(parameters(backend, arrays), backend.asarray(x))
    close(backend, "heads", heads, wanted)
    close(backend, "head", heads[2, 0, :1], Value(np.array([0.8807970779778823]), wanted.error[2, 0, :1]))


@pytest.mark.clause("MULTIHEAD-1", "ERROR-1")
def test_widths_that_do_not_fit_are_refused(backend: Any) -> None:
    params = parameters(backend, weights_of(SIZES["cross"]))
    x, context = backend.asarray(normal(1, 2, 5, 10)), backend.asarray(normal(2, 2, 7, 8))
    with pytest.raises(ShapeError, match=r"context.*\(2, 5, 10\).*8"):
        attnspec.multi_head_attention(params, x)
    with pytest.raises(ShapeError, match=r"x.*\(2, 7, 8\).*10"):
        attnspec.multi_head_attention(params, context, context)
    rng = attnspec.random.key(0)
    with pytest.raises(ShapeError, match=r"10.*4"):
        attnspec.MultiHeadParams.init(rng, model_width=10, heads=4, like=backend.like)
    with pytest.raises(ShapeError, match=r"6.*4"):
        attnspec.MultiHeadParams.init(rng, model_width=12, heads=6, kv_heads=4, like=backend.like)


@pytest.mark.clause("MULTIHEAD-2")
@pytest.mark.parametrize("order", ["post", "pre"])
def test_a_stack_keeps_the_rows_of_its_input_at_any_length(backend: Any, order: Any) -> None:
    """PD-02: pytorch/pytorch#97111. The shape is that of the input, and padded rows do not change the others."""
    params = attnspec.StackParams((layer(backend, order), layer(backend, order)), None)
    x = normal(2, 2, 6, 12)
    for rows in (1, 0):
        made = backend.asarray(np.ascontiguousarray(x[:, :rows]))
        assert tuple(attnspec.transformer_stack(params, made).shape) == (2, rows, 12)
    padded = attnspec.padding(backend.asarray(np.array([3, 3], np.int32)))
    poisoned = x.copy()
    poisoned[:, 3:] = 1e4
    one, other = (
        backend.to_numpy(attnspec.transformer_stack(params, backend.asarray(a), mask=padded)) for a in (x, poisoned)
    )
    np.testing.assert_array_equal(one[:, :3], other[:, :3])
    assert one.shape == (2, 6, 12)


@pytest.mark.clause("MULTIHEAD-2")
def test_fresh_parameters_make_a_stack_of_the_asked_shape(backend: Any) -> None:
    params = attnspec.StackParams.init(
        attnspec.random.key(1), depth=2, order="post", model_width=12, heads=4, hidden_width=12, like=backend.like
    )
    assert len(params.layers) == 2
    assert not np.array_equal(*(backend.to_numpy(p.attention.wq) for p in params.layers))
    x = backend.asarray(normal(2, 2, 6, 12))
    assert tuple(attnspec.transformer_stack(params, x).shape) == (2, 6, 12)
    sizes: dict[str, Any] = {"model_width": 12, "heads": 4, "hidden_width": 12, "order": "middle"}
    with pytest.raises(OptionError, match="middle"):
        attnspec.LayerParams.init(attnspec.random.key(1), **sizes, like=backend.like)


@pytest.mark.clause("MULTIHEAD-2", "NORM-2")
@pytest.mark.parametrize("order", ["post", "pre"])
def test_a_layer_composes_its_parts_in_its_order(backend: Any, order: Any) -> None:
    x = normal(2, 2, 6, 12)
    wanted = oracle_layers.layer(weights_of(LAYER), FEED, NORM, Value.given(x), nothing(), U)[order]
    close(backend, "y", attnspec.transformer_layer(layer(backend, order), backend.asarray(x)), wanted)


# Lengths as Python integers, and as one array entry for each batch.


@pytest.mark.clause("MULTIHEAD-2")
@pytest.mark.parametrize("order", ["post", "pre"])
def test_a_layer_of_many_rows_is_that_of_each_text(backend: Any, order: Any) -> None:
    """More rows than are computed at once where arrays are written to; and nothing of the caller's is."""
    params, x = layer(backend, order), normal(4, 9, 700, 12)
    made = backend.asarray(x)
    whole = backend.to_numpy(attnspec.transformer_layer(params, made))
    np.testing.assert_array_equal(backend.to_numpy(made), x)
    each = [backend.to_numpy(attnspec.transformer_layer(params, backend.asarray(text))) for text in x]
    np.testing.assert_allclose(whole, np.stack(each), rtol=1e-4, atol=1e-5)
