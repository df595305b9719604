"""Attention over chunks: what is true of any chunks, in both modes."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from attnspec_conformance.laws import LAWS
from attnspec_conformance.subjects import BackendSubject, judge
from attnspec_conformance.trials import Law
from conftest import (  # type: ignore[import-not-found]
    B,
    D,
    E,
    G,
    H,
    InSmallChunks,
    K,
    Q,
    call,
    chunked,
    in_chunks,
    normal,
)

import attnspec
from attnspec import reproducible
from attnspec.backend import choose
from attnspec.errors import KernelError, ShapeError

RNG = np.random.default_rng(0)
Q_IDS, K_IDS = (np.sort(RNG.integers(0, 4, (B, n))).astype(np.int32) for n in (Q, K))
SEEN = RNG.random((B, 1, Q, K)) < 0.6
ADDED = normal(5, H, Q, K)
PLACES = np.cumsum(RNG.integers(0, 3, Q)).astype(np.int32)

RNG_KEY = attnspec.random.key(7)


def folded(of: Any) -> Any:
    """A key whose words are arrays."""
    return attnspec.random.fold_in(RNG_KEY, of(np.asarray(3, np.int32)))


# Each gives the same options in Dask's arrays and in NumPy's; what it is given makes an array of the one or the other.
OPTIONS: dict[str, Any] = {
    "nothing": lambda of: {},
    "causal": lambda of: {"mask": attnspec.causal(300)},
    "a later causal": lambda of: {"mask": attnspec.causal(align="end")},
    "hidden first rows": lambda of: {"mask": attnspec.causal(-30)},
    "nothing is seen": lambda of: {"mask": attnspec.causal(-Q)},
    "window": lambda of: {"mask": attnspec.window(40, 9, offset=250)},
    "padding": lambda of: {"mask": attnspec.padding([K - 80, 0])},
    "padding of an array": lambda of: {"mask": attnspec.padding(of(np.asarray([K - 80, 3], np.int32)))},
    "segments": lambda of: {"mask": attnspec.segments(of(Q_IDS), of(K_IDS)) & attnspec.causal(align="end")},
    "array mask": lambda of: {"mask": ~attnspec.as_mask(of(SEEN)) | attnspec.causal()},
    "biases": lambda of: {"bias": attnspec.as_bias(of(ADDED)) + attnspec.alibi(H, align="end"), "softcap": 3.0},
    "a table": lambda of: {"bias": attnspec.relative_bias(of(normal(6, H, 41))), "scale": -0.7},
    "a sink": lambda of: {"sink": of(normal(7, H)), "mask": attnspec.window(20, 0)},
    "an array for the scale": lambda of: {"scale": of(np.asarray(0.4, np.float32))},
    "ranges": lambda of: {"mask": attnspec.causal(), "q_positions": range(500, 500 + Q), "k_positions": range(K)},
    "positions": lambda of: {"mask": attnspec.causal(100), "bias": attnspec.alibi(H), "q_positions": of(PLACES)},
    "dropout": lambda of: {"mask": attnspec.causal(300), "dropout": attnspec.Dropout(0.4, RNG_KEY)},
    "dropout of arrays": lambda of: {"dropout": attnspec.Dropout(of(np.asarray(0.4, np.float32)), folded(of))},
    "dropout of a part": lambda of: {
        "dropout": attnspec.Dropout(0.4, RNG_KEY, whole=(5, 9, 4 * Q, 2 * K), at=(3, 2, of(PLACES), 7))
    },
    "everything dropped": lambda of: {"dropout": attnspec.Dropout(1.0, RNG_KEY)},
}  # fmt: skip


def options(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return OPTIONS[name](lambda x: da.from_array(x, chunks=37)), OPTIONS[name](lambda x: x)


@pytest.mark.parametrize("name", OPTIONS)
def test_reproducible_mode_has_the_bits_of_the_undivided_call(name: str, nothing_is_computed: None) -> None:
    arrays = call()
    for_dask, for_numpy = options(name)
    found = reproducible.attention_with_lse(*in_chunks(arrays), **for_dask)
    wanted = reproducible.attention_with_lse(*arrays, **for_numpy)
    assert [x.numblocks for x in found] == [(2, 2, 2, 1), (2, 2, 2)]
    for x, y in zip(dask.compute(*found, scheduler="synchronous"), wanted, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", OPTIONS)
def test_default_mode_is_the_undivided_call_but_for_rounding(name: str, nothing_is_computed: None) -> None:
    arrays = call("float64")
    for_dask, for_numpy = options(name)
    found = attnspec.attention_with_lse(*in_chunks(arrays, keys=130), implementation="native", **for_dask)
    wanted = attnspec.attention_with_lse(*arrays, **for_numpy)
    # Sums of so many terms, of numbers below 2**5, rounded in another order.
    slack = 2.0**-53 * (K + D) * 2.0**5
    for x, y in zip(dask.compute(*found, scheduler="synchronous"), wanted, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(np.isneginf(x), np.isneginf(y))
        some = ~np.isneginf(y)
        assert np.max(np.abs(x[some] - y[some]), initial=0.0) <= slack


def test_ids_of_segments_may_be_lists() -> None:
    chunks = in_chunks(call())
    as_lists, as_arrays = (
        reproducible.attention(*chunks, mask=attnspec.segments(*map(made, (Q_IDS[0], K_IDS[0]))))
        for made in (np.ndarray.tolist, da.from_array)
    )
    np.testing.assert_array_equal(as_lists.compute(), as_arrays.compute())


@pytest.mark.parametrize("split_every", [2, 3])
def test_any_tree_of_merges_has_the_same_answer(split_every: int) -> None:
    arrays = call("float64", Q=3)
    wanted = attnspec.attention(*arrays, mask=attnspec.padding(K - 50))
    exact = reproducible.attention(*arrays, mask=attnspec.padding(K - 50))
    chunks = in_chunks(arrays, keys=90, queries=2)
    with dask.config.set(split_every=split_every):
        found = attnspec.attention(*chunks, mask=attnspec.padding(K - 50))
        same = reproducible.attention(*chunks, mask=attnspec.padding(K - 50))
    assert np.max(np.abs(found.compute() - wanted)) <= 2.0**-53 * (K + D) * 2.0**5
    np.testing.assert_array_equal(same.compute(), exact)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("keys", [600, 256, 100, (1, 255, 300, 44), (0, 512, 0, 88)])
def test_chunks_of_any_length_give_the_same_bits(dtype: str, keys: Any) -> None:
    q, k, v = call(dtype, Q=3)
    rows = (q.shape[:-2], k.shape[:-2])
    chunks = (da.from_array(q), *(da.from_array(x, chunks=(*rows[1], keys, x.shape[-1])) for x in (k, v)))
    found = dask.compute(*reproducible.attention_with_lse(*chunks))
    for x, y in zip(found, reproducible.attention_with_lse(q, k, v), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def test_values_may_be_chunked_unlike_keys_and_along_their_width() -> None:
    q, k, v = call(Q=3)
    chunks = chunked(q, 2, 3), chunked(k, 200, 3), chunked(v, 77, 2)
    found = reproducible.attention(*chunks)
    np.testing.assert_array_equal(found.compute(), reproducible.attention(q, k, v))


def test_leading_axes_broadcast() -> None:
    q, k, v = call(Q=3, K=40)
    q = np.stack([q, -q])  # (2, B, H, Q, D)
    chunks = chunked(q, 1, 1, H, 3, D), chunked(k[:1], 1, G, 20, D), chunked(v, 1, G, 20, E)
    found = reproducible.attention(*chunks)
    assert found.numblocks == (2, 2, 1, 1, 1)
    np.testing.assert_array_equal(found.compute(), reproducible.attention(q, k[:1], v))


@pytest.mark.parametrize("axes", [{"K": 0}, {"Q": 0}, {"B": 0}, {"D": 0}, {"E": 0}])
def test_axes_may_be_empty(axes: dict[str, int]) -> None:
    arrays = call(**({"Q": 3, "K": 7} | axes))
    chunks = [da.from_array(x) for x in arrays]
    wanted = reproducible.attention_with_lse(*arrays)
    for module in (attnspec, reproducible):
        found = module.attention_with_lse(*chunks)
        assert [x.shape for x in found] == [x.compute().shape for x in found] == [y.shape for y in wanted]
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(x, y)


def test_heads_without_a_batch_have_neither_axis() -> None:
    q, k, v = (x[0, 0] for x in call())
    for module in (attnspec, reproducible):
        out, lse = module.attention_with_lse(chunked(q, 9, D), chunked(k, 256, D), chunked(v, 256, E))
        assert (out.shape, lse.shape) == ((Q, E), (Q,))
    np.testing.assert_array_equal(out, reproducible.attention(q, k, v))


def test_an_array_of_unknown_chunks_is_refused() -> None:
    q, k, _ = in_chunks(call())
    unknown = k[0, 0][k[0, 0, :, 0] > 0]
    for module in (attnspec, reproducible):
        with pytest.raises(ShapeError, match="compute_chunk_sizes"):
            module.attention(q[0, 0], unknown, unknown)
    known = unknown.compute_chunk_sizes()
    assert attnspec.attention(q[0, 0], known, known).compute().shape == (Q, D)


class Somebody:
    """A mask of another class, whose arrays nobody knows."""

    def tile(self, q: Any, k: Any, /, *, xp: Any, device: Any) -> Any:
        return (k.index <= 4)[None, :]

    def status(self, q: Any, k: Any, /) -> str:
        return "some"


def test_a_mask_of_another_class_is_left_to_the_walk_of_the_core() -> None:
    q, k, v = call(Q=3, K=12)
    chunks = chunked(q, 2, D), chunked(k, 5, D), chunked(v, 5, E)
    mask = attnspec.as_mask(Somebody()) & attnspec.causal(3)
    with pytest.raises(KernelError, match="a Foreign, which does not say how it is split"):
        attnspec.attention(*chunks, mask=mask, implementation="native")
    same = attnspec.padding(5) & attnspec.causal(3)
    found = attnspec.attention(*chunks, mask=mask).compute()
    assert np.max(np.abs(found - attnspec.attention(q, k, v, mask=same))) <= 2.0**-24 * (12 + D) * 2.0**5
    exact = reproducible.attention(*chunks, mask=mask).compute()
    np.testing.assert_array_equal(exact, reproducible.attention(q, k, v, mask=same))


JUDGED = [law for law in LAWS.values() if not law.needs]


@pytest.mark.slow
@pytest.mark.parametrize("law", JUDGED, ids=lambda law: law.name)
def test_the_laws_of_attention_hold_for_small_chunks(law: Law) -> None:
    verdicts, unsupported = judge(law, BackendSubject(InSmallChunks(choose("dask"))), 1)
    assert verdicts or unsupported
    assert not [verdict.message for _, verdict in verdicts if not verdict.ok]
