"""REPRO-1: a call in steps with a cache, in parts of the keys, with padded heads, or a row of it alone, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attnspec
from attnspec import reproducible
from attnspec.errors import OptionError, ShapeError

from .masks import Array
from .problems import normal


@pytest.mark.clause("REPRO-1")
@pytest.mark.parametrize("cache_type", [attnspec.Cache, reproducible.Cache])
def test_decoding_is_the_one_shot_call_to_the_bit(backend: Any, cache_type: Any) -> None:
    params = reproducible.MultiHeadParams.init(
        attnspec.random.key(3), model_width=8, heads=4, kv_heads=2, like=backend.like
    )
    x = backend.asarray(normal(2, 3, 9, 8))
    whole = reproducible.multi_head_attention(params, x, mask=attnspec.causal())
    cache, rows = cache_type.of(params, capacity=11, lead=(3,)), []
    for start, stop in ((0, 6), (6, 7), (7, 9)):
        y, cache = reproducible.multi_head_attention_with_cache(params, x[:, start:stop, :], cache)
        assert type(cache) is cache_type
        rows.append(backend.to_numpy(y))
    assert cache.length == 9
    np.testing.assert_array_equal(np.concatenate(rows, axis=1), backend.to_numpy(whole))


@pytest.mark.clause("REPRO-1")
def test_a_cache_of_float64_has_no_slices_and_works(backend: Any) -> None:
    if "float64" not in backend.capabilities:
        pytest.skip(f"{backend.name} does not declare float64")
    q, k, v = (backend.asarray(normal(n, 2, 3, 4, dtype="float64"), dtype="float64") for n in range(3))
    cache = reproducible.Cache.empty(kv_heads=2, capacity=5, key_width=4, dtype="float64", like=q).append(k, v)
    got = reproducible.attention(q, *cache.rows(), mask=cache.mask())
    np.testing.assert_array_equal(backend.to_numpy(got), backend.to_numpy(reproducible.attention(q, k, v)))


@pytest.mark.needs("autodiff")
@pytest.mark.clause("REPRO-1")
def test_a_cache_with_slices_is_not_differentiated(backend: Any) -> None:
    q, k, v = (backend.asarray(normal(n, 2, 3, 4)) for n in range(3))
    cache = reproducible.Cache.empty(kv_heads=2, capacity=3, key_width=4, like=q).append(k, v)
    with pytest.raises(OptionError, match="slices"):
        backend.vjp(lambda q: reproducible.attention(q, *cache.rows()), q)[1](q)


@pytest.mark.clause("REPRO-1")
def test_slices_of_keys_are_not_taken_for_those_of_values(backend: Any) -> None:
    q, k, v = (backend.asarray(normal(n, 2, 4, 8)) for n in range(3))
    cache = reproducible.Cache.empty(kv_heads=2, capacity=4, key_width=8, like=q).append(k, v)
    keys, values = cache.rows()
    for rows, plain in (
        ((keys, keys), (k, k)),
        ((values, keys), (v, k)),
        ((keys[:1, ...], values[:1, ...]), (k[:1, ...], v[:1, ...])),
    ):
        given = q[: plain[0].shape[0], ...]
        got, wanted = (backend.to_numpy(reproducible.attention(given, *x)) for x in (rows, plain))
        np.testing.assert_array_equal(got, wanted)
    params = reproducible.MultiHeadParams.init(attnspec.random.key(0), model_width=8, heads=2, like=q)
    longer = reproducible.Cache.of(params, capacity=9)
    with pytest.raises(OptionError, match="slices"):
        reproducible.vjp(lambda p: reproducible.multi_head_attention_with_cache(p, q[0, ...], longer)[0], params)
    # The default mode reads the rows and leaves the slices to grow.
    _, grown = attnspec.multi_head_attention_with_cache(params, q[0, ...], longer)
    assert type(grown) is reproducible.Cache


@pytest.mark.clause("REPRO-1")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parts_merge_to_the_bits_of_the_whole_in_any_grouping(backend: Any, dtype: str) -> None:
    if dtype not in {"float32", *backend.capabilities}:
        pytest.skip(f"{backend.name} does not declare {dtype}")
    q, k, v = (backend.asarray(normal(n, 4, rows, 8), dtype=dtype) for n, rows in enumerate((3, 600, 600)))
    sink = backend.asarray(normal(9, 4), dtype=dtype)
    mask = attnspec.causal(590) & ~attnspec.causal(40)
    out, lse = reproducible.attention_with_lse(q, k, v, mask=mask, sink=sink)

    def part(start: int, stop: int) -> Any:
        return reproducible.partial(
            q, k[:, start:stop, :], v[:, start:stop, :], mask=mask, sink=None if start else sink,
            q_positions=range(3), k_positions=range(start, stop),
        )  # fmt: skip

    a, b, c = part(0, 256), part(256, 512), part(512, 600)
    for parts in ([a, b, c], [reproducible.merge([a, b]), c], [a, reproducible.merge([b, c])], [part(0, 512), c]):
        for x, y in zip(reproducible.finish(reproducible.merge(parts)), (out, lse), strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(backend.to_numpy(x), backend.to_numpy(y))


@pytest.mark.clause("REPRO-1")
def test_parts_that_would_give_other_bits_are_refused(backend: Any) -> None:
    q, k, v = (backend.asarray(normal(n, 2, rows, 4)) for n, rows in enumerate((3, 300, 300)))
    parts = [reproducible.partial(q, x[:, :100, :], y[:, :100, :]) for x, y in ((k, v), (v, k))]
    with pytest.raises(ShapeError, match="100 keys"):
        reproducible.merge(parts)
    with pytest.raises(OptionError, match="gradient"):
        reproducible.vjp(lambda q: reproducible.partial(q, k, v).out, q)


@pytest.mark.clause("REPRO-1")
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_zeros_that_pad_the_heads_and_rows_alone_change_no_bit(backend: Any, dtype: str) -> None:
    if dtype not in {"float32", *backend.capabilities}:
        pytest.skip(f"{backend.name} does not declare {dtype}")
    q, k, v = (normal(n, 2, rows, 24, dtype=dtype) for n, rows in enumerate((3, 40, 40)))
    padded = [np.concatenate([x, np.zeros((*x.shape[:-1], 3000), x.dtype)], axis=-1) for x in (q, k)]

    def answer(*arrays: Array) -> Array:
        given = (backend.asarray(x, dtype=dtype) for x in arrays)
        with reproducible.before_rounding():
            return np.asarray(backend.to_numpy(reproducible.attention(*given, scale=0.25)))

    whole = answer(q, k, v)
    np.testing.assert_array_equal(answer(*padded, v), whole)
    np.testing.assert_array_equal(answer(q[:1, 1:2], k[:1], v[:1]), whole[:1, 1:2])
