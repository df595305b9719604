"""How far from the exact answer a correct implementation may be: computed beforehand, never picked.

u is the unit roundoff of the arithmetic inside: 2^-24 for float32 and half types, 2^-53 for float64. A dot
product of n terms, in any order, blocking or with fused operations, errs by at most n u times the sum of the
magnitudes (Higham, "Accuracy and Stability of Numerical Algorithms", section 3.1). With it, for each row:

    E_j = (D + 2) u |scale| sum |q||k| + cap_j + bias_j + u |s_j - top|     error of a score, less that of top
    c_j = p_j (exp(E_j) - 1) + 6u p_j,   C = sum_j c_j                      change of a weight, exp's own error
    |do| <= sum_j c_j |v_j - o| / (1 - C) + (2 n + 4) u sum_j p_j |v_j| + floor
    |dlse| <= -log(1 - C) + rounding of the logarithm and of the sum

because o' - o = sum_j p_j d_j (v_j - o) / (1 + sum_j p_j d_j) for relative changes d_j of the exponentials. A
sink adds its own share to C. Dropout multiplies the numerator alone, so there sum_j c_j f_j |v_j| + C sum_j p_j
f_j |v_j| stands in the first term. n counts the visible keys; floor is what arithmetic that flushes subnormal
numbers loses. Half types add the rounding of the result, and of the weights where a subject says so (PATH-2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .masks import Array
from .oracle import Exact

UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
LEAST = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-24, "bfloat16": 2.0**-126}


@dataclass(frozen=True)
class Slack:
    """Errors that the inputs already have: of the scores (..., H, Q, K) and of v (..., H, K, E)."""

    score: Array | float = 0.0
    value: Array | float = 0.0


NONE = Slack()


def inside(dtype: str) -> str:
    """The dtype of the arithmetic inside."""
    return "float64" if dtype == "float64" else "float32"


def out(exact: Exact, dtype: str, rounds_weights: bool = False, slack: Slack = NONE) -> Array:
    """The bound of the output."""
    u = UNIT[inside(dtype)]
    with np.errstate(all="ignore"):
        change, total = _changes(exact, u, slack)
        p = np.where(exact.visible, exact.weights, 0.0)
        kept, values = p * exact.factors, _finite(exact.values)
        magnitude = _times(kept, np.abs(values))
        if np.all(exact.factors == 1):
            deviation = np.abs(values[..., None, :, :] - _finite(exact.out)[..., :, None, :])
            moved = np.einsum("...ij,...ijc->...ic", change, deviation)
        else:
            moved = _times(change * exact.factors, np.abs(values)) + total[..., None] * magnitude
        n = exact.visible.sum(-1)[..., None]
        bound = _over(moved, total[..., None]) + (2 * n + 4) * u * magnitude
        bound = bound + _times(kept, np.broadcast_to(slack.value, values.shape))
        if rounds_weights:
            bound = bound + UNIT[dtype] * magnitude
        largest = np.max(np.abs(values), axis=-2, initial=1.0)[..., None, :]
        bound = bound + np.where(n > 0, (n + 1) * LEAST[inside(dtype)] * largest, 0.0)
        return exact.shaped(stored(exact.out, bound, dtype))


def lse(exact: Exact, dtype: str, slack: Slack = NONE) -> Array:
    """The bound of the log-sum-exp, which is float32 or wider whatever the dtype."""
    with np.errstate(all="ignore"):
        return exact.shaped(_lse(exact, UNIT[inside(dtype)], slack))


def weights(exact: Exact, dtype: str, slack: Slack = NONE) -> Array:
    """The bound of the weights exp(s - lse)."""
    u = UNIT[inside(dtype)]
    with np.errstate(all="ignore"):
        distance = _seen(exact, np.abs(exact.scores - exact.lse[..., None]))
        error = _score(exact, u, slack) + _lse(exact, u, slack)[..., None] + 2 * u * distance
        change = _grown(exact, error) + 8 * u * exact.weights + LEAST[inside(dtype)]
        return exact.shaped(stored(exact.weights, _seen(exact, change), dtype))


def merged(exact: Exact, dtype: str, count: int) -> tuple[Array, Array]:
    """The bounds of out and lse where `count` parts over disjoint keys were merged, in any grouping.

    Each merge takes a difference, an exponential, a sum and a logarithm of what the parts' own lse are off by already:
    4 count u (1 + |lse|) more. The shares exp(lse_part - lse) are off by twice that in the exponent and by 6 u for
    each of the parts; a share moves the output by no more than the greatest |v| of the keys. Half types round the
    outputs of the parts as well.
    """
    u, half = UNIT[inside(dtype)], UNIT[dtype] if inside(dtype) != dtype else 0.0
    of_lse = lse(exact, dtype) + 4 * count * u * (1 + _finite(np.abs(exact.lse)))
    growth = np.where(exact.visible.any(-1), np.expm1(2 * of_lse) + 6 * count * u, 0.0)[..., None]
    largest = np.max(np.abs(exact.values), axis=-2)[..., None, :]
    return out(exact, dtype) + (growth + half) * largest, of_lse


def dropped(value: Array, rate: float, dtype: str) -> Array:
    """The bound of x / (1 - rate), for the exact quotients.

    Rounding the rate moves 1 - rate by u rate, which is rate / (1 - rate) of it; the difference, the reciprocal and
    the product round once each, the rest of the 4 is what those errors do to each other.
    """
    u = UNIT[inside(dtype)]
    return stored(value, (rate / (1 - rate) + 4) * u * np.abs(value), dtype)


def stored(value: Array, bound: Array, dtype: str) -> Array:
    """Add the rounding of a result to its dtype, where that is a half type; zeros stay exact."""
    if dtype == inside(dtype):
        return bound
    return bound + np.where(bound > 0, UNIT[dtype] * (np.abs(value) + bound) + LEAST[dtype], 0.0)


def _score(exact: Exact, u: float, slack: Slack) -> Array:
    """E_j without the rounding of the difference to top."""
    product = (exact.width + 2) * u * exact.magnitude
    capped = 8 * u * np.abs(exact.scores - exact.bias) + u * np.abs(exact.linear)
    cap = capped if exact.softcapped else 0.0
    bias = np.where(exact.bias == 0, 0.0, u * np.abs(exact.scores) + 2 * u * np.abs(exact.bias))
    return _seen(exact, product + cap + bias + slack.score)


def _changes(exact: Exact, u: float, slack: Slack) -> tuple[Array, Array]:
    """(c_j, C)."""
    distance = _seen(exact, np.abs(exact.scores - exact.top[..., None]))
    change = _grown(exact, _score(exact, u, slack) + u * distance) + 6 * u * _seen(exact, exact.weights)
    share = np.maximum(1 - exact.weights.sum(-1), 0.0)
    sink = np.where(share > 1e-12, (share * 6 + 1) * u, 0.0)
    return change, change.sum(-1) + np.where(exact.visible.any(-1), sink, 0.0)


def _grown(exact: Exact, error: Array) -> Array:
    """p (exp(error) - 1), without the overflow of exp for a weight that is next to nothing."""
    logarithm = exact.scores - exact.lse[..., None]
    return _seen(exact, np.exp(logarithm + error) - np.exp(logarithm))


def _lse(exact: Exact, u: float, slack: Slack) -> Array:
    _, total = _changes(exact, u, slack)
    top, log = _finite(np.abs(exact.top)), _finite(np.abs(exact.lse - exact.top))
    n = exact.visible.sum(-1)
    rounding = (n + 4) * u * (1 + log) + 2 * u * (top + log)
    return np.where(n > 0, np.where(total < 1, -np.log1p(-np.minimum(total, 1)), np.inf) + rounding, 0.0)


def _over(moved: Array, total: Array) -> Array:
    return np.where(moved > 0, moved / np.maximum(1 - total, 0.0), 0.0)


def _times(p: Array, values: Array) -> Array:
    return np.einsum("...ij,...jc->...ic", p, values)


def _seen(exact: Exact, x: Array) -> Array:
    return np.where(exact.visible & np.isfinite(exact.lse)[..., None], x, 0.0)


def _finite(x: Array) -> Array:
    return np.where(np.isfinite(x), x, 0.0)
