"""Heads and layers that the components are asked about: their sizes, their arrays, and how near an answer has to be."""

from __future__ import annotations

from typing import Any

import numpy as np

import attnspec

from .bounds import UNIT
from .judges import near
from .masks import Array
from .oracle_layers import Value
from .problems import normal
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


LAYER = {"M": 12, "C": 12, "H": 4, "G": 2, "D": 3, "E": 3}
FEED = {"w_in": normal(40, 12, 20, size=0.3), "w_out": normal(41, 20, 12, size=0.2)}
FEED |= {"b_in": normal(42, 20, size=0.5), "b_out": normal(43, 12, size=0.5)}
NORM = normal(44, 12), normal(45, 12)


def layer(backend: Any, order: Any) -> attnspec.LayerParams:
    """A layer with ReLU, which rounds nothing, and the same norm at both places."""
    feed = attnspec.FeedForwardParams(**{n: backend.asarray(a) for n, a in FEED.items()}, activation="relu")
    norm = attnspec.NormParams(backend.asarray(NORM[0]), backend.asarray(NORM[1]))
    return attnspec.LayerParams(parameters(backend, weights_of(LAYER)), feed, norm, norm, order=order)
