"""MULTIHEAD: decoding with a cache, by position and length."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import attnspec
from attnspec.errors import CacheError

from . import masks, oracle_layers
from .layer_cases import FEED, LAYER, NORM, SIZES, U, close, layer, nothing, parameters, weights_of
from .oracle_layers import Value
from .problems import constant, normal

SPLITS = (
    ((7,), False),
    ((3, 1, 1, 2), False),
    ((2, 0, 5), False),
    ((1, 1, 1, 1, 1, 1, 1), True),
    ((6, 1), True),
    ((3, 4), True),
)


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
