"""Gradients over chunks: `attnspec.vjp` records lazily, and goes back by chunks as it came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from attnspec_conformance.attention_cases import CASES
from attnspec_conformance.differentiating import found
from attnspec_conformance.judges import holds
from conftest import D, E, G, H, InSmallChunks, call, chunked, counted, in_chunks, normal  # type: ignore[import-not-found]

import attnspec
from attnspec import reproducible
from attnspec.backend import choose

DROPOUT = attnspec.Dropout(0.4, attnspec.random.key(7))


@pytest.mark.parametrize("name", CASES)
def test_gradients_over_small_chunks_are_those_of_the_formulas(name: str) -> None:
    holds(found(InSmallChunks(choose("dask")), CASES[name]("float64")).against_the_oracle())


def attended(q: Any, k: Any, v: Any, sink: Any, bias: Any) -> Any:
    mask = attnspec.causal(300) & attnspec.padding(K_SEEN)
    return attnspec.attention(q, k, v, mask=mask, bias=bias, sink=sink, dropout=DROPOUT)


K_SEEN = 510
SINK, BIAS = normal(7, H), normal(5, H, 1, 600)


def pulled(vjp: Any, arrays: Sequence[Any], cotangent: Any) -> tuple[Any, ...]:
    """The result, and the gradients."""
    out, back = vjp(attended, *arrays)
    return (out, *back(cotangent))


def test_recording_and_going_back_compute_nothing_and_change_no_bit_of_the_answer(nothing_is_computed: None) -> None:
    q, k, v = in_chunks(call(), keys=90)
    arrays = (q, k, v, da.from_array(SINK), chunked(BIAS, 200))
    out, *gradients = pulled(attnspec.vjp, arrays, q[..., :1] + da.zeros(E, dtype="f4"))
    assert [x.shape for x in gradients] == [x.shape for x in arrays]
    assert [x.dtype for x in gradients] == [x.dtype for x in arrays]
    recorded, plain, *found = dask.compute(out, attended(*arrays), *gradients, scheduler="synchronous")
    np.testing.assert_array_equal(recorded, plain)
    assert all(np.any(x != 0) for x in found)
    # Keys that nobody sees get exactly nothing, also those of chunks that are in no task.
    assert not any(np.any(x[..., K_SEEN:, :]) for x in found[1:3])


def test_gradients_of_reproducible_mode_have_the_bits_of_the_undivided_call(nothing_is_computed: None) -> None:
    q, k, v = call()
    arrays, cotangent = (q, k, v, SINK, BIAS), normal(8, *q.shape[:-1], E)
    chunks = (*in_chunks((q, k, v), keys=90), da.from_array(SINK), chunked(BIAS, 200))
    divided = pulled(reproducible.vjp, chunks, chunked(cotangent, 1, 4, 11, E))
    for x, y in zip(
        dask.compute(*divided, scheduler="synchronous"), pulled(reproducible.vjp, arrays, cotangent), strict=True
    ):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def test_chunks_of_keys_that_are_hidden_are_not_read_for_gradients() -> None:
    q, k, v = call(Q=40, K=400)
    reads: list[int] = []
    chunks = chunked(q, H, 20, D), counted(chunked(k, G, 50, D), reads), chunked(v, G, 50, E)
    _, back = attnspec.vjp(
        lambda *arrays: attnspec.attention(*arrays, mask=attnspec.window(30, 0, offset=120)), *chunks
    )
    of_q, of_k, _ = back(da.ones((*q.shape[:-1], E), dtype="f4"))
    of_q.compute()
    # Queries 0 to 39 see keys 90 to 159, which are of the chunks 1, 2 and 3.
    assert set(reads) == {1, 2, 3}
    reads.clear()
    assert not np.any(of_k[..., 200:, :].compute())
    assert not reads


def test_keys_are_read_again_for_the_walk_back_so_that_nobody_keeps_them() -> None:
    q, k, v = call(Q=40, K=400)
    reads: list[int] = []
    chunks = chunked(q, H, 20, D), counted(chunked(k, G, 50, D), reads), chunked(v, G, 50, E)
    out, back = attnspec.vjp(attnspec.attention, *chunks)
    dask.compute(out, *back(out))
    assert sorted(reads) == sorted(2 * list(range(8)))


@pytest.mark.parametrize("axes", [{"K": 0}, {"Q": 0}, {"B": 0}])
def test_gradients_of_empty_axes_are_zero(axes: dict[str, int]) -> None:
    chunks = [da.from_array(x) for x in call(**({"Q": 3, "K": 7} | axes))]
    for module in (attnspec, reproducible):
        out, back = module.vjp(module.attention, *chunks)
        gradients = dask.compute(*back(da.ones_like(out)))
        assert [x.shape for x in gradients] == [x.shape for x in chunks]
        assert not any(np.any(x) for x in gradients)
