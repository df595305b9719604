"""What is in the graph: nothing is computed early, nothing hidden is read, and it costs what the formulas say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
import pytest
from attnspec_dask.costs import Axes, memory, moved_bytes, read_bytes
from attnspec_dask.graph import _of_part
from attnspec_dask.namespace import max as largest
from attnspec_dask.namespace import reshape, take_along_axis, zeros
from conftest import D, E, G, H, call, chunked, counted  # type: ignore[import-not-found]

import attnspec
from attnspec import reproducible
from attnspec.host import host_of, load_errors


def test_chunks_of_keys_that_are_hidden_are_not_read() -> None:
    q, k, v = call(Q=40, K=400)
    reads: list[int] = []
    keys = counted(chunked(k, G, 50, D), reads)
    out = attnspec.attention(chunked(q, H, 20, D), keys, chunked(v, G, 50, E), mask=attnspec.window(30, 0, offset=120))
    out.compute()
    # Queries 0 to 39 see keys 90 to 159, which are of the chunks 1, 2 and 3.
    assert sorted(set(reads)) == [1, 2, 3]


def test_only_what_is_asked_for_is_read() -> None:
    q, k, v = call(Q=40, K=400)
    reads: list[int] = []
    keys = counted(chunked(k, G, 50, D), reads)
    out = attnspec.attention(chunked(q, H, 20, D), keys, chunked(v, G, 50, E), mask=attnspec.causal())
    out[..., :10, :].compute()
    assert set(reads) == {0}


def test_plain_functions_build_their_graphs_without_computing(nothing_is_computed: None) -> None:
    x = da.ones((2, 7, 6), chunks=(1, 3, 6), dtype="f4")
    params = attnspec.MultiHeadParams.init(attnspec.random.key(0), model_width=6, heads=2, like=x)
    y = attnspec.multi_head_attention(params, x, mask=attnspec.causal())
    y = attnspec.dropout(attnspec.layer_norm(y), 0.5, attnspec.random.key(1))
    q = x[:, None]
    out, _ = attnspec.attention_with_lse(q, q, q, implementation="portable")
    weights = attnspec.attention_weights(q, q, mask=attnspec.padding([3, 7]))
    assert [a.shape for a in (y, out, weights)] == [(2, 7, 6), (2, 1, 7, 6), (2, 1, 7, 7)]


def test_the_host_is_the_one_of_this_package() -> None:
    x = da.ones(3)
    assert [kernel.name for kernel in host_of(x).kernels] == ["chunks"]
    assert load_errors() == {}


@pytest.mark.parametrize("chunks", [(1, 2, 5, 3), (2, 6, 5, 3), (2, 3, 2, 2)])
def test_heads_may_be_stacked_on_queries(chunks: tuple[int, ...]) -> None:
    x = np.arange(180.0).reshape(2, 6, 5, 3)
    chunked = da.from_array(x, chunks=chunks)
    for shape in ((2, 3, 10, 3), (2, 3, -1, 3), (180,), (4, 45)):
        np.testing.assert_array_equal(reshape(chunked, shape).compute(), x.reshape(shape))
    assert reshape(chunked[:, :0], (0, 7)).compute().shape == (0, 7)


def test_random_bits_are_those_of_numpy_in_any_chunks() -> None:
    rng = attnspec.random.key(7)
    x = da.ones((5, 600), chunks=(2, 100))
    kept = attnspec.dropout(x, 0.5, attnspec.random.fold_in(rng, da.from_array(np.int32(3))))
    wanted = attnspec.dropout(np.ones((5, 600)), 0.5, attnspec.random.fold_in(rng, 3))
    np.testing.assert_array_equal(kept.compute(), wanted)


def test_taking_along_an_axis_is_numpys() -> None:
    x = np.arange(90.0).reshape(3, 6, 5)
    places: Any = np.arange(72).reshape(3, 6, 4) % 5
    found = take_along_axis(da.from_array(x, chunks=(2, 4, 3)), da.from_array(places, chunks=(1, 5, 3)))
    np.testing.assert_array_equal(found.compute(), np.take_along_axis(x, places, axis=-1))


def test_the_largest_of_no_rows_is_of_no_rows() -> None:
    empty = zeros((600, 700, 0, 5), dtype=np.float32)
    assert largest(empty, axis=-1, keepdims=True).compute().shape == (600, 700, 0, 1)


SIZES = Axes(H=4, G=2, Q=1000, K=10_000, D=64, E=32, q_chunk=250, k_chunk=500)


def test_the_formulas_count_the_arrays_that_there_are() -> None:
    q, k, v = (da.zeros((heads, n, w), chunks=(heads, chunk, w), dtype="f4") for heads, n, chunk, w in (
        (4, 1000, 250, 64), (2, 10_000, 500, 64), (2, 10_000, 500, 32),
    ))  # fmt: skip
    assert read_bytes(SIZES) == q.numblocks[-2] * (k.nbytes + v.nbytes)
    assert SIZES.keys == (k[:, :500].nbytes + v[:, :500].nbytes)
    out, lse = attnspec.attention_with_lse(q, k, v)
    rows = lse[:, :250]
    assert SIZES.partial() == out[:, :250].nbytes + 2 * rows.nbytes + 3 * rows.size
    partial = reproducible.partial(*(x[:, :n].compute() for x, n in ((q, 250), (k, 500), (v, 500))))
    arrays = [x for x in vars(partial).values() if hasattr(x, "nbytes")]
    assert SIZES.partial(reproducible=True) == sum(x.nbytes for x in arrays)
    tasks = out.__dask_graph__().values()
    assert sum(getattr(task, "args", ())[:1] == (_of_part,) for task in tasks) == SIZES.tasks == 80


@pytest.mark.parametrize("how", [{}, {"reproducible": True}, {"gradients": True}], ids=str)
def test_memory_does_not_grow_with_queries_times_keys(how: dict[str, bool]) -> None:
    def needed(Q: int, K: int) -> int:
        return memory(replace(SIZES, Q=Q, K=K), **how)

    assert needed(1000, 10**7) < 2 * needed(1000, 10**4)
    assert needed(3000, 10**6) - needed(2000, 10**6) == needed(2000, 10**6) - needed(1000, 10**6)


def test_bytes_are_linear_in_keys_for_a_number_of_chunks() -> None:
    twice = replace(SIZES, K=2 * SIZES.K, k_chunk=2 * SIZES.k_chunk)
    more = moved_bytes(twice) - moved_bytes(SIZES)
    assert more == read_bytes(SIZES)
    assert moved_bytes(twice, gradients=True) - moved_bytes(SIZES, gradients=True) == 3 * more
