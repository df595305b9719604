"""The numbers that a host hands on, judged by the oracle within the computed bound."""

from __future__ import annotations

from typing import Any

import numpy as np
from attnspec_conformance import bounds, judges, oracle
from attnspec_conformance.trials import Call, Verdict


def judged(call: Call, out: Any) -> Verdict:
    """Whether `out` (..., H, Q, E) is the answer to the call, in its dtype."""
    out = np.asarray(out)
    assert out.dtype == call.dtype
    exact = oracle.attention(call)
    return judges.near("out", out, exact.answer["out"], bounds.out(exact, call.dtype))


def draw(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    """Normal numbers, the same for the same shape and seed."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)
