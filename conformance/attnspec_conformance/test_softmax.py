"""SOFTMAX-5: parts of the keys, merged."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import attnspec
from attnspec.errors import OptionError, ShapeError

from . import bounds, masks, oracle
from .judges import all_of, near
from .problems import constant, normal, problem, some_mask
from .trials import Call

PARTITIONS = ((0, 7), (0, 3, 7), (0, 1, 2, 3, 4, 5, 6, 7), (0, 0, 4, 7, 7))


def parts_of(backend: Any, call: Call, edges: tuple[int, ...]) -> list[Any]:
    """(out, lse) for each stretch of the keys; the sink goes with the first."""
    q, k, v = (backend.asarray(x, dtype=call.dtype) for x in (call.q, call.k, call.v))
    seen = call.mask.array if isinstance(call.mask, masks.Dense) else np.ones((5, 7), bool)
    parts = []
    for n, (start, stop) in enumerate(pairwise(edges)):
        sink = None if call.sink is None or n else backend.asarray(call.sink, dtype=call.dtype)
        parts.append(
            attnspec.attention_with_lse(
                q,
                k[..., start:stop, :],
                v[..., start:stop, :],
                mask=backend.asarray(np.ascontiguousarray(seen[..., start:stop])),
                sink=sink,
            )
        )
    return parts


def compare(backend: Any, call: Call, merged: Any, count: int) -> None:
    """Within the bound of so many merged parts."""
    out, lse = (np.asarray(backend.to_numpy(x)).astype(np.float64) for x in merged)
    exact = oracle.attention(call)
    of_out, of_lse = bounds.merged(exact, call.dtype, count)
    verdict = all_of([near("out", out, exact.out, of_out), near("lse", lse, exact.lse, of_lse)])
    assert verdict.ok, verdict.message


@pytest.mark.clause("SOFTMAX-5")
@pytest.mark.parametrize("edges", PARTITIONS)
def test_any_partition_of_the_keys_merges_to_the_undivided_answer(backend: Any, edges: Any) -> None:
    for options in (
        {},
        {"mask": some_mask(3, 2, 6, 5, 7, share=0.3)},
        {"sink": normal(4, 6)},
        {"mask": masks.Dense(np.zeros((5, 7), bool)), "sink": normal(4, 6)},
    ):
        call = problem(2, want="lse", **options)
        parts = parts_of(backend, call, edges)
        compare(backend, call, attnspec.merge_attention(parts), len(parts))


@pytest.mark.clause("SOFTMAX-5")
def test_the_grouping_of_the_parts_does_not_matter(backend: Any) -> None:
    call = problem(2, mask=some_mask(3, 2, 6, 5, 7, share=0.4), want="lse")
    a, b, c, d = parts_of(backend, call, (0, 1, 3, 4, 7))
    merge = attnspec.merge_attention
    for merged in (
        merge([merge([a, b]), merge([c, d])]),
        merge([merge([merge([a, b]), c]), d]),
        merge([d, b, c, a]),
    ):
        compare(backend, call, merged, 4)


@pytest.mark.clause("SOFTMAX-5")
def test_large_and_small_scores_merge_without_overflow(backend: Any) -> None:
    bias = constant(0, 5, 7)
    bias[:, :3], bias[:, 3:] = 2.0**14, -(2.0**14)
    call = problem(2, bias=bias, want="lse")
    q, k, v = (backend.asarray(x) for x in (call.q, call.k, call.v))
    parts = [
        attnspec.attention_with_lse(
            q, k[..., s, :], v[..., s, :], bias=backend.asarray(np.ascontiguousarray(bias[:, s]))
        )
        for s in (slice(0, 2), slice(2, 5), slice(5, 7))
    ]
    compare(backend, call, attnspec.merge_attention(parts), 3)


@pytest.mark.clause("SOFTMAX-5", "SOFTMAX-1")
def test_an_infinite_part_makes_its_row_nan_without_a_warning(backend: Any) -> None:
    out, lse = (np.array(x) for x in (normal(1, 6, 5, 3), normal(2, 6, 5)))
    lse[2, 3] = np.inf
    parts = [tuple(map(backend.asarray, (out, lse)))] * 2
    merged = [np.asarray(backend.to_numpy(x)) for x in attnspec.merge_attention(parts)]
    wanted = np.isinf(lse)
    np.testing.assert_array_equal(np.isnan(merged[0]), np.repeat(wanted[..., None], 3, axis=-1))
    np.testing.assert_array_equal(np.isnan(merged[1]), wanted)


@pytest.mark.clause("SOFTMAX-5")
@pytest.mark.needs("float16")
def test_parts_in_half_precision_merge_in_float32(backend: Any) -> None:
    call = problem(2, dtype="float16", want="lse")
    parts = parts_of(backend, call, (0, 3, 7))
    out, lse = attnspec.merge_attention(parts)
    assert str(out.dtype).endswith("float16")
    assert str(lse.dtype).endswith("float32")
    compare(backend, call, (out, lse), 2)


@pytest.mark.clause("SOFTMAX-5")
@pytest.mark.needs("float16")
def test_parts_that_all_say_the_same_merge_to_just_that(backend: Any) -> None:
    """Every key has the same value. The shares sum to 1 within float32, far closer than the last place of float16."""
    call, value = problem(2, dtype="float16", want="lse"), normal(3, 1, 40, dtype="float16")
    call = call.but(v=np.ascontiguousarray(np.broadcast_to(value, (2, 6, 7, 40))))
    out, _ = attnspec.merge_attention(parts_of(backend, call, (0, 1, 3, 4, 7)))
    np.testing.assert_array_equal(backend.to_numpy(out), np.broadcast_to(value, (2, 6, 5, 40)))


@pytest.mark.clause("SOFTMAX-5", "ERROR-1")
def test_parts_that_do_not_belong_together_are_refused(backend: Any) -> None:
    one = parts_of(backend, problem(2), (0, 7))[0]
    other = parts_of(backend, problem(2, E=9), (0, 7))[0]
    with pytest.raises(ShapeError, match=r"\b9\b"):
        attnspec.merge_attention([one, other])
    with pytest.raises(OptionError):
        attnspec.merge_attention([])
