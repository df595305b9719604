"""MASK: rules made of lists, of arrays, and cut into tiles are the masks that they describe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attnspec
from attnspec.shapes import Span

from .masks import Array
from .problems import constant


def shows(backend: Any, heads: tuple[int, ...], rule: Any, seen: Array) -> None:
    """The rule shows these keys (..., Q, K) to the heads (..., H).

    Equal scores: exp(lse) is the number of keys seen, and the output, times it, how many of them have a 1 in a column
    of v. Float32 is off by (K + 4) (1 + log K) K 2^-24 in the one and (2 K + 4) K 2^-24 in the other, 0.13 and 0.04 for
    525 keys, so the nearest integers are exact.
    """
    Q, K = seen.shape[-2:]
    bits = np.random.default_rng(0).integers(0, 2, (K, 8))
    q, k = (backend.asarray(constant(0, *heads, rows, 1)) for rows in (Q, K))
    v = backend.asarray(np.broadcast_to(bits.astype(np.float32), (*heads, K, 8)).copy())
    out, lse = (np.asarray(backend.to_numpy(x)) for x in attnspec.attention_with_lse(q, k, v, mask=rule))
    seen = np.broadcast_to(seen, (*heads, Q, K))
    count = np.round(np.exp(lse))
    np.testing.assert_array_equal(count, seen.sum(-1))
    np.testing.assert_array_equal(np.round(out * count[..., None]), seen.astype(np.int64) @ bits)


@pytest.mark.clause("MASK-3", "MASK-4")
def test_lists_in_rules_are_arrays(backend: Any) -> None:
    """A list has an entry for each item of the batch, or, of ids, for each row."""
    i, j = np.arange(5)[:, None], np.arange(7)
    each = np.array([2, 6])[:, None, None, None]
    ids = np.array([0, 0, 1, 1, 2]), np.array([0, 1, 1, 2, 2, 2, 0])
    shows(backend, (2, 3), attnspec.padding([2, 6]), j < each + 0 * i)
    shows(backend, (2, 3), attnspec.causal([2, 6]), j <= i + each)
    shows(backend, (2, 3), attnspec.window(1, 2, offset=[2, 6]), (j >= i + each - 1) & (j <= i + each + 2))
    together = ids[0][:, None] == ids[1]
    shows(backend, (2, 3), attnspec.segments(*(x.tolist() for x in ids)), together)
    shows(backend, (2, 3), attnspec.padding([2, 6]) & attnspec.causal([2, 6]), (j < each) & (j <= i + each))
    shows(backend, (2, 3), attnspec.padding([2, 6]) & attnspec.window(None, None), j < each + 0 * i)
    either = attnspec.causal([-3, -1]) | ~attnspec.segments(*(x.tolist() for x in ids)) | attnspec.padding([1, 0])
    shorter = np.array([1, 0])[:, None, None, None]
    shows(backend, (2, 3), either, (j <= i + np.array([-3, -1])[:, None, None, None]) | ~together | (j < shorter))


@pytest.mark.clause("MASK-3", "PATH-1")
def test_lists_in_rules_are_arrays_where_a_call_is_cut(backend: Any) -> None:
    """Lists of ids are along the rows, lists of lengths and offsets along the batch, whichever heads are computed."""
    i, j = np.arange(301)[:, None], np.arange(310)
    each = np.array([37, 250])[:, None, None, None]
    ids: tuple[Array, Array] = np.arange(301) // 70, np.arange(310) // 50
    together = ids[0][:, None] == ids[1]
    segments = attnspec.segments(*(x.tolist() for x in ids))
    shows(backend, (2, 3), segments, together)
    shows(backend, (2, 3), segments & attnspec.padding([37, 250]), together & (j < each))
    shows(backend, (2, 3), attnspec.causal([37, 250]) | ~segments, (j <= i + each) | ~together)


@pytest.mark.clause("MASK-3")
def test_one_list_of_ids_serves_queries_and_keys(backend: Any) -> None:
    ids = np.array([7, 7, 9, 8, 9], np.int32)
    for given in (ids.tolist(), backend.asarray(ids)):
        shows(backend, (2, 3), attnspec.segments(given), ids[:, None] == ids)


@pytest.mark.clause("MASK-3", "PATH-1")
def test_rules_cut_into_tiles_are_their_arrays(backend: Any) -> None:
    """Two leading axes, each item with numbers of its own."""
    i, j = np.arange(513)[:, None], np.arange(525)
    numbers = np.array([[3, 519], [200, 10]], np.int32)
    each, made = numbers[..., None, None, None], backend.asarray(numbers)
    q_ids, k_ids = (np.random.default_rng(n).integers(0, 9, (2, 2, rows)) for n, rows in enumerate((513, 525)))
    packed = attnspec.segments(*(backend.asarray(x.astype(np.int32)) for x in (q_ids, k_ids)))
    together, real = (q_ids[..., None, :, None] == k_ids[..., None, None, :]), j < each + 0 * i
    for rule, seen in (
        (packed & ~attnspec.padding(made), together & ~real),
        (packed | attnspec.causal(-500), together | (j <= i - 500)),
        (attnspec.window(20, 0, offset=made), (j >= i + each - 20) & (j <= i + each)),
    ):
        shows(backend, (2, 2, 1), rule, seen)


class EveryFew:
    """A rule of somebody else: head h sees every (h + 2)th key."""

    def tile(self, q: Any, k: Any, /, *, xp: Any, device: Any) -> Any:
        return xp.stack([k.index % (head + 2) == 0 for head in range(3)])[:, None, :]

    def status(self, q: Any, k: Any, /) -> str:
        return "some"


@pytest.mark.clause("MASK-3", "PATH-1")
def test_a_foreign_rule_keeps_its_heads_apart_where_a_call_is_cut(backend: Any) -> None:
    i, j = np.arange(513)[:, None], np.arange(525)
    seen = (j % np.array([2, 3, 4])[:, None, None] == 0) & (j <= i + 3)
    shows(backend, (3,), attnspec.as_mask(EveryFew()) & attnspec.causal(3), seen)


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
