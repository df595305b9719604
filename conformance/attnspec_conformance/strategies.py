"""Problems drawn by Hypothesis: shapes, options and a seed; NumPy fills the arrays from the seed."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from . import masks
from .masks import Array
from .problems import normal, problem, some_mask
from .trials import Call


def repeatable(backend: Any) -> settings:
    """The same examples every time; fewer where each option or shape that is new may cost a compilation."""
    few = "jit" in backend.capabilities
    return settings(derandomize=True, deadline=None, database=None, max_examples=6 if few else 15)


# Few shapes, many options.
SHAPES: tuple[dict[str, Any], ...] = (
    {"H": 6, "G": 3},
    {"lead": (), "H": 6, "G": 2, "Q": 1},
    {"lead": (3, 2), "H": 2, "K": 3, "E": 1},
)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Any legal call: every option, alone and together with every other."""
    call = problem(draw(st.integers(0, 2**20)), **draw(st.sampled_from(SHAPES)))
    options: dict[str, Any] = {
        "mask": draw(st.none() | rules(call)),
        "scale": draw(st.none() | st.sampled_from((0.0, -0.5, 0.25, 1.0))),
        "softcap": draw(st.none() | st.sampled_from((0.5, 3.0))),
        "want": draw(st.sampled_from(("lse", "weights"))),
    }
    if draw(st.booleans()):
        options["bias"] = _bias(draw, call)
    if draw(st.booleans()):
        options["sink"] = normal(draw(st.integers(0, 99)), call.q.shape[-3])
    if options["want"] == "lse" and draw(st.booleans()):
        options["dropout"] = masks.Dropout(draw(st.sampled_from((0.25, 0.5, 1.0))), draw(st.integers(0, 2**63)))
    return call.but(**options)


def rules(call: Call) -> st.SearchStrategy[masks.Mask]:
    """Masks of every kind and their compositions."""
    lead, (H, Q), K = call.q.shape[:-3], call.q.shape[-3:-1], call.k.shape[-2]
    seeds = st.integers(0, 2**20)
    offsets = st.integers(-3, 4) | st.builds(lambda seed: _integers(seed, lead, -3, 4), seeds)
    aligns = st.sampled_from(("start", "end"))
    spans = st.none() | st.integers(0, 4)
    single = (
        st.builds(masks.Causal, offsets, aligns)
        | st.builds(masks.Window, spans, spans, offsets, aligns)
        | st.builds(lambda seed: masks.Padding(_integers(seed, lead, 0, K + 1)), seeds)
        | st.builds(
            lambda seed: masks.Segments(_integers(seed, (*lead, Q), 0, 3), _integers(seed + 1, (*lead, K), 0, 3)),
            seeds,
        )
        | st.builds(lambda seed: some_mask(seed, *lead, H, Q, K), seeds)
        | st.builds(lambda seed: some_mask(seed, Q, K, share=0.3), seeds)
    )
    return st.recursive(
        single,
        lambda inner: (
            st.builds(masks.Both, inner, inner)
            | st.builds(masks.Either, inner, inner)
            | st.builds(masks.Inverse, inner)
        ),
        max_leaves=3,
    )


def _integers(seed: int, shape: tuple[int, ...], low: int, high: int) -> Array:
    return np.random.default_rng(seed).integers(low, high, shape).astype(np.int32)


def _bias(draw: st.DrawFn, call: Call) -> Array:
    seed = draw(st.integers(0, 2**20))
    bias = normal(seed, call.q.shape[-3], call.q.shape[-2], call.k.shape[-2], size=2.0)
    hidden = np.random.default_rng(seed).random(bias.shape) < draw(st.sampled_from((0.0, 0.5)))
    return np.where(hidden, np.float32(-np.inf), bias)
