"""MASK: rules made of lists, of arrays, and cut into tiles are the masks that they describe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attnspec
from attnspec.shapes import Span

from .masks import Array
from .problems import beyond_a_tile, normal


def same(backend: Any, arrays: list[Any], rule: Any, seen: Array) -> None:
    """The rule gives the bits of the array mask."""
    parts = (attnspec.attention_with_lse(*arrays, mask=mask) for mask in (rule, backend.asarray(seen)))
    for got, wanted in zip(*parts, strict=True):
        np.testing.assert_array_equal(backend.to_numpy(got), backend.to_numpy(wanted))


@pytest.mark.clause("MASK-3", "MASK-4")
def test_lists_in_rules_are_arrays(backend: Any) -> None:
    """A list has an entry for each item of the batch, or, of ids, for each row."""
    arrays = [backend.asarray(normal(n, 2, 3, rows, 4)) for n, rows in enumerate((5, 7, 7))]
    i, j = np.arange(5)[:, None], np.arange(7)
    each = np.array([2, 6])[:, None, None, None]
    ids = np.array([0, 0, 1, 1, 2]), np.array([0, 1, 1, 2, 2, 2, 0])
    same(backend, arrays, attnspec.padding([2, 6]), j < each + 0 * i)
    same(backend, arrays, attnspec.causal([2, 6]), j <= i + each)
    same(backend, arrays, attnspec.window(1, 2, offset=[2, 6]), (j >= i + each - 1) & (j <= i + each + 2))
    together = ids[0][:, None] == ids[1]
    same(backend, arrays, attnspec.segments(*(x.tolist() for x in ids)), together)
    same(backend, arrays, attnspec.padding([2, 6]) & attnspec.causal([2, 6]), (j < each) & (j <= i + each))
    same(backend, arrays, attnspec.padding([2, 6]) & attnspec.window(None, None), j < each + 0 * i)
    either = attnspec.causal([-3, -1]) | ~attnspec.segments(*(x.tolist() for x in ids)) | attnspec.padding([1, 0])
    shorter = np.array([1, 0])[:, None, None, None]
    same(backend, arrays, either, (j <= i + np.array([-3, -1])[:, None, None, None]) | ~together | (j < shorter))


@pytest.mark.clause("MASK-3")
def test_one_list_of_ids_serves_queries_and_keys(backend: Any) -> None:
    arrays = [backend.asarray(normal(n, 2, 3, 5, 4)) for n in range(3)]
    ids = np.array([7, 7, 9, 8, 9], np.int32)
    for given in (ids.tolist(), backend.asarray(ids)):
        same(backend, arrays, attnspec.segments(given), ids[:, None] == ids)


@pytest.mark.clause("MASK-3", "PATH-1")
def test_rules_cut_into_tiles_are_their_arrays(backend: Any) -> None:
    call = beyond_a_tile()
    arrays = [backend.asarray(np.stack([x, x])) for x in (call.q, call.k, call.v)]
    i, j = np.arange(513)[:, None], np.arange(525)
    each = np.array([3, 519])[:, None, None, None]
    q_ids, k_ids = (np.random.default_rng(n).integers(0, 9, (2, rows)) for n, rows in enumerate((513, 525)))
    made, of_queries, of_keys = (backend.asarray(x.astype(np.int32)) for x in (each.ravel(), q_ids, k_ids))
    packed, padded = attnspec.segments(of_queries, of_keys), attnspec.padding(made)
    together, real = (q_ids[:, None, :, None] == k_ids[:, None, None, :]), j < each + 0 * i
    for rule, seen in (
        (packed & ~padded, together & ~real),
        (packed | attnspec.causal(-500), together | (j <= i - 500)),
        (attnspec.window(20, 0, offset=made), (j >= i + each - 20) & (j <= i + each)),
    ):
        same(backend, arrays, rule, seen)


def span(backend: Any, start: int, size: int, total: int) -> Span:
    """Rows of an axis, at their own positions."""
    return Span(
        start, size, total, backend.asarray(np.arange(start, start + size, dtype=np.int32)), (start, start + size)
    )


@pytest.mark.clause("MASK-3", "MASK-4", "PATH-1")
def test_what_a_rule_says_of_a_tile_without_looking_is_so(backend: Any) -> None:
    """Tiles of which it says "none" are never computed, and those of which it says "all" never masked."""
    causal, window, padding = attnspec.causal(1), attnspec.window(2, 1, align="end"), attnspec.padding([4, 9])
    every = attnspec.window(None, None)
    others = attnspec.padding(6), attnspec.window(None, 3, offset=-2), attnspec.window(2, None)
    single = (causal, window, padding, every, *others)
    pairs = (causal & padding, causal | padding, window & ~causal, window | ~padding, ~(causal | window), ~~padding)
    unknown = attnspec.causal(backend.asarray(np.array(1, np.int32))), attnspec.segments([0] * 8, [0] * 12)
    place: dict[str, Any] = {"xp": backend.xp, "device": None}
    for rows, columns in ((2, 3), (8, 12)):
        for i in range(0, 8, rows):
            for j in range(0, 12, columns):
                q, k = span(backend, i, rows, 8), span(backend, j, columns, 12)
                for rule in (*single, *pairs):
                    seen = np.asarray(backend.to_numpy(rule.tile(q, k, **place)))
                    assert seen.dtype == np.bool_
                    assert np.broadcast_shapes(seen.shape, (2, 1, rows, columns)) == (2, 1, rows, columns)
                    truth = "all" if seen.all() else "some" if seen.any() else "none"
                    said = rule.status(q, k)
                    assert said == truth or (said == "some" and rule in pairs), (rule, i, j, said, truth)
                assert {rule.status(q, k) for rule in unknown} == {"some"}
                assert (every & every).status(q, k) == "all"
                assert (~every | ~every).status(q, k) == "none"
                assert (every & causal).status(q, k) == (~every | causal).status(q, k) == causal.status(q, k)
                assert (causal & unknown[0]).status(q, k) == ("none" if causal.status(q, k) == "none" else "some")
                assert (causal | unknown[0]).status(q, k) == ("all" if causal.status(q, k) == "all" else "some")
