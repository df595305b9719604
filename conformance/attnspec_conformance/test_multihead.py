"""MULTIHEAD: projections around attention, layers and stacks, decoding with a cache, rotation by position."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import attnspec
from attnspec.errors import CacheError, OptionError, ShapeError

from . import masks, oracle_layers
from .bounds import UNIT
from .judges import near
from .masks import Array
from .oracle_layers import Value
from .problems import constant, normal, some_mask
from .trials import Call

U = UNIT["float32"]
SIZES = {
    "plain": {"M": 12, "C": 12, "H": 4, "G": 4, "D": 3, "E": 3},
    "widths of their own": {"M": 10, "C": 10, "H": 4, "G": 4, "D": 3, "E": 6},
    "grouped": {"M": 10, "C": 10, "H": 6, "G": 3, "D": 2, "E": 5},
    "cross": {"M": 10, "C": 8, "H": 6, "G": 2, "D": 4, "E": 3},
}


def weights_of(sizes: dict[str, int], biases: bool = True) -> dict[str, Array | None]:
    """The arrays of MultiHeadParams, with biases that are not zero."""
    M, C, H, G, D, E = (sizes[letter] for letter in "MCHGDE")
    shapes: dict[str, tuple[int, ...]] = {"wq": (M, H, D), "wk": (C, G, D), "wv": (C, G, E), "wo": (H, E, M)}
    shapes |= {"bq": (H, D), "bk": (G, D), "bv": (G, E), "bo": (M,)}
    made: dict[str, Array | None] = {}
    for n, (name, shape) in enumerate(shapes.items()):
        size = 0.5 if name[0] == "b" else shape[0] ** -0.5
        made[name] = normal(20 + n, *shape, size=size) if biases or name[0] == "w" else None
    return made


def parameters(backend: Any, arrays: dict[str, Array | None]) -> attnspec.MultiHeadParams:
    return attnspec.MultiHeadParams(**{n: None if a is None else backend.asarray(a) for n, a in arrays.items()})


def close(backend: Any, name: str, got: Any, wanted: Value) -> None:
    verdict = near(name, np.asarray(backend.to_numpy(got)).astype(np.float64), wanted.exact, wanted.error)
    assert verdict.ok, verdict.message


def nothing(**options: Any) -> Call:
    """The options of attention, without arrays."""
    return Call(np.zeros((1, 1)), np.zeros((1, 1)), np.zeros((1, 1)), **options)


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


LAYER = {"M": 12, "C": 12, "H": 4, "G": 2, "D": 3, "E": 3}
FEED = {"w_in": normal(40, 12, 20, size=0.3), "w_out": normal(41, 20, 12, size=0.2)}
FEED |= {"b_in": normal(42, 20, size=0.5), "b_out": normal(43, 12, size=0.5)}
NORM = normal(44, 12), normal(45, 12)


def layer(backend: Any, order: Any) -> attnspec.LayerParams:
    """A layer with ReLU, which rounds nothing, and the same norm at both places."""
    feed = attnspec.FeedForwardParams(**{n: backend.asarray(a) for n, a in FEED.items()}, activation="relu")
    norm = attnspec.NormParams(backend.asarray(NORM[0]), backend.asarray(NORM[1]))
    return attnspec.LayerParams(parameters(backend, weights_of(LAYER)), feed, norm, norm, order=order)


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
SPLITS = (
    ((7,), False),
    ((3, 1, 1, 2), False),
    ((2, 0, 5), False),
    ((1, 1, 1, 1, 1, 1, 1), True),
    ((6, 1), True),
    ((3, 4), True),
)


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


@pytest.mark.clause("MULTIHEAD-4", "MULTIHEAD-3")
@pytest.mark.parametrize(("split", "by_array"), SPLITS)
def test_prefill_and_any_split_of_steps_equal_one_causal_call(
    backend: Any, split: tuple[int, ...], by_array: bool
) -> None:
    arrays, x = weights_of(SIZES["grouped"]), normal(1, 2, 7, 10)
    params = parameters(backend, arrays)
    wanted = oracle_layers.multi_head(arrays, Value.given(x), Value.given(x), nothing(mask=masks.Causal()), U)["y"]
    cache, start = attnspec.Cache.of(params, capacity=9, lead=(2,)), 0
    if by_array:
        cache = attnspec.Cache(cache.k, cache.v, backend.asarray(np.zeros(2, np.int32)))
    for rows in split:
        part = backend.asarray(np.ascontiguousarray(x[:, start : start + rows]))
        y, cache = attnspec.multi_head_attention_with_cache(params, part, cache)
        here = np.s_[:, start : start + rows]
        close(backend, "y", y, Value(wanted.exact[here], wanted.error[here]))
        start += rows
    lengths = backend.to_numpy(cache.length) if by_array else cache.length
    np.testing.assert_array_equal(lengths, 7)


@pytest.mark.clause("MULTIHEAD-3")
def test_outputs_and_weights_with_a_cache_are_the_rows_of_one_call(backend: Any) -> None:
    arrays, x = weights_of(SIZES["grouped"]), normal(1, 2, 5, 10)
    params = parameters(backend, arrays)
    wanted = oracle_layers.multi_head(arrays, Value.given(x), Value.given(x), nothing(mask=masks.Causal()), U)
    first, then = (backend.asarray(np.ascontiguousarray(part)) for part in (x[:, :3], x[:, 3:]))
    _, cache = attnspec.multi_head_attention_with_cache(params, first, attnspec.Cache.of(params, capacity=7, lead=(2,)))
    for name, step in (
        ("heads", attnspec.multi_head_outputs_with_cache),
        ("weights", attnspec.multi_head_weights_with_cache),
    ):
        rows, _ = step(params, then, cache)
        close(backend, name, rows, Value(wanted[name].exact[..., 3:, :], wanted[name].error[..., 3:, :]))


@pytest.mark.clause("MULTIHEAD-4")
def test_the_unwritten_rows_of_a_cache_are_never_read(backend: Any) -> None:
    """NL-02: Lightning-AI/litgpt#2248. Poison in the tail; the lengths are arrays, one for each batch."""
    arrays, x = weights_of(SIZES["grouped"]), normal(1, 2, 4, 10)
    params = parameters(backend, arrays)
    empty = attnspec.Cache.of(params, capacity=9, lead=(2,))
    k, v = (backend.asarray(constant(np.nan, *a.shape)) for a in (empty.k, empty.v))
    cache = attnspec.Cache(k, v, backend.asarray(np.zeros(2, np.int32)))
    wanted = oracle_layers.multi_head(arrays, Value.given(x), Value.given(x), nothing(mask=masks.Causal()), U)["y"]
    for start, stop in ((0, 3), (3, 4)):
        part = backend.asarray(np.ascontiguousarray(x[:, start:stop]))
        y, cache = attnspec.multi_head_attention_with_cache(params, part, cache)
        close(backend, "y", y, Value(wanted.exact[:, start:stop], wanted.error[:, start:stop]))
    np.testing.assert_array_equal(backend.to_numpy(cache.length), [4, 4])


@pytest.mark.clause("MULTIHEAD-4")
def test_every_item_of_a_batch_decodes_at_its_own_length(backend: Any) -> None:
    """Two rows of the first item are written, none of the second; what lies behind a length is never read."""
    arrays, x, lengths = weights_of(SIZES["grouped"]), normal(1, 2, 5, 10), np.array([2, 0], np.int32)
    params = parameters(backend, arrays)
    wanted = oracle_layers.multi_head(arrays, Value.given(x), Value.given(x), nothing(mask=masks.Causal()), U)["y"]
    first = backend.asarray(np.ascontiguousarray(x[:, :2]))
    _, cache = attnspec.multi_head_attention_with_cache(params, first, attnspec.Cache.of(params, capacity=6, lead=(2,)))
    cache = attnspec.Cache(cache.k, cache.v, backend.asarray(lengths))
    rows = backend.asarray(np.stack([x[item, start : start + 3] for item, start in enumerate(lengths)]))
    y, cache = attnspec.multi_head_attention_with_cache(params, rows, cache)
    for item, start in enumerate(lengths):
        here = np.s_[item, start : start + 3]
        close(backend, "y", y[item, ...], Value(wanted.exact[here], wanted.error[here]))
    np.testing.assert_array_equal(backend.to_numpy(cache.length), [5, 3])


@pytest.mark.clause("MULTIHEAD-4", "ERROR-1")
def test_writing_past_the_end_raises_and_writes_nothing(backend: Any) -> None:
    params = parameters(backend, weights_of(SIZES["grouped"]))
    cache = attnspec.Cache.of(params, capacity=4)
    x = backend.asarray(normal(1, 3, 10))
    _, cache = attnspec.multi_head_attention_with_cache(params, x, cache)
    with pytest.raises(CacheError, match=r"4 rows, 3 .*3 more"):
        attnspec.multi_head_attention_with_cache(params, x, cache)
    assert cache.length == 3


def overflow(backend: Any, wrap: Any) -> Iterator[Any]:
    """Four steps of two rows into a cache of four, with an array of lengths 0 and 2; yields the lengths after each."""
    arrays = weights_of(SIZES["grouped"])
    params = parameters(backend, arrays)
    empty = attnspec.Cache.of(params, capacity=4, lead=(2,))
    x, k, v, length = (
        backend.asarray(normal(1, 2, 2, 10)),
        empty.k,
        empty.v,
        backend.asarray(np.array([0, 2], np.int32)),
    )

    def step(x: Any, k: Any, v: Any, length: Any) -> Any:
        y, longer = attnspec.multi_head_attention_with_cache(params, x, attnspec.Cache(k, v, length))
        return y, longer.k, longer.v, longer.length

    step = wrap(step)
    for bad in ((), (1,), (0, 1), (0, 1)):
        y, k, v, length = step(x, k, v, length)
        whole = np.isnan(backend.to_numpy(y)).all(axis=(1, 2))
        np.testing.assert_array_equal(np.flatnonzero(whole), bad)
        assert np.isfinite(np.delete(backend.to_numpy(y), bad, axis=0)).all()
        yield np.asarray(backend.to_numpy(length)).tolist()


LENGTHS = [[2, 4], [4, -1], [-1, -1], [-1, -1]]


@pytest.mark.clause("MULTIHEAD-4")
@pytest.mark.needs("jit")
def test_where_lengths_are_traced_overflow_is_nan_for_good(backend: Any) -> None:
    assert list(overflow(backend, backend.jit)) == LENGTHS


@pytest.mark.clause("MULTIHEAD-4", "ERROR-1")
def test_overflow_of_array_lengths_raises_where_they_can_be_looked_at(backend: Any) -> None:
    """Elsewhere it is NaN, as under a compiler; nowhere does it overwrite."""
    steps = overflow(backend, lambda step: step)
    assert next(steps) == LENGTHS[0]
    with contextlib.suppress(CacheError):
        assert list(steps) == LENGTHS[1:]


@pytest.mark.clause("MULTIHEAD-4", "MULTIHEAD-2")
@pytest.mark.parametrize("order", ["post", "pre"])
def test_a_layer_decodes_what_it_computes_at_once(backend: Any, order: Any) -> None:
    params, x, causal = layer(backend, order), normal(2, 2, 6, 12), nothing(mask=masks.Causal())
    wanted = oracle_layers.layer(weights_of(LAYER), FEED, NORM, Value.given(x), causal, U)[order]
    cache = attnspec.Cache.of(params.attention, capacity=6, lead=(2,))
    for start, stop in ((0, 4), (4, 5), (5, 6)):
        part = backend.asarray(np.ascontiguousarray(x[:, start:stop]))
        y, cache = attnspec.transformer_layer_with_cache(params, part, cache)
        close(backend, "y", y, Value(wanted.exact[:, start:stop], wanted.error[:, start:stop]))
