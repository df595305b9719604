"""MULTIHEAD: rotation by position."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attnspec
from attnspec.errors import OptionError

from . import oracle_layers
from .bounds import UNIT, inside
from .judges import near
from .masks import Array
from .problems import constant, normal


def rotation(backend: Any, x: Array, positions: Array, dtype: str = "float32", **options: Any) -> None:
    """Against the definition, within the bound."""
    got = attnspec.rotary(backend.asarray(x, dtype=dtype), backend.asarray(positions), **options)
    width, base = options.get("width") or x.shape[-1], options.get("base", 10000.0)
    u = UNIT[inside(dtype)]
    wanted = oracle_layers.rotary(x, positions, base, width, options.get("interleaved", False), u)
    value = wanted.stored(dtype)
    verdict = near("rotated", np.asarray(backend.to_numpy(got)).astype(np.float64), value.exact, value.error)
    assert verdict.ok, verdict.message


@pytest.mark.clause("MULTIHEAD-1")
def test_rotary_turns_pairs_by_their_position(backend: Any) -> None:
    x, positions = normal(1, 2, 3, 5, 8), np.array([0, 1, 7, 1000, 99999], np.int32)
    for options in ({}, {"interleaved": True}, {"width": 4}, {"base": 500.0}):
        rotation(backend, x, positions, **options)
    np.testing.assert_array_equal(
        backend.to_numpy(attnspec.rotary(backend.asarray(x), backend.asarray(positions)))[..., 0, :], x[..., 0, :]
    )


@pytest.mark.clause("MULTIHEAD-1")
def test_rotary_is_as_accurate_at_a_million_as_at_one(backend: Any) -> None:
    positions = np.array([2**17 + 1, 2**19 + 12345, 2**20, 2**24 - 1], np.int32)
    rotation(backend, constant(1, 1, 1, 4, 8), positions)


@pytest.mark.clause("MULTIHEAD-1")
@pytest.mark.needs("float64")
def test_rotary_keeps_float64(backend: Any) -> None:
    rotation(backend, normal(1, 2, 3, 3, 8, dtype="float64"), np.array([0, 1, 7], np.int32), dtype="float64")


@pytest.mark.clause("MULTIHEAD-1", "ERROR-1")
def test_rotary_refuses_odd_widths_and_float_positions(backend: Any) -> None:
    x = backend.asarray(normal(1, 5, 7))
    with pytest.raises(OptionError, match="7"):
        attnspec.rotary(x, backend.asarray(np.arange(5, dtype=np.int32)))
    with pytest.raises(TypeError, match="float32"):
        attnspec.rotary(x, backend.asarray(np.arange(5, dtype=np.float32)), width=4)
