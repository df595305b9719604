"""What is right: attention and its gradients in float64 by the plain formula, on some of the rows of a long call.

error = max |result - exact| / max |exact|,   the largest over out (and dq, dk, dv)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..backend import choose
from .bench_problems import Problem

__all__ = ["Exact", "error", "exact"]

ALL = 2**25  # scores: where there are more, so many rows are taken as make this
ROWS = 256  # at a time


class Exact(NamedTuple):
    """Some rows of a result (B, heads, rows, width), spread over the axis, and their indices."""

    rows: Any
    values: Any


def exact(problem: Problem) -> list[Exact]:
    """Of out, or of out, dq, dk and dv; nothing where there is nothing to compare."""
    if problem.case.what in ("dropout", "import"):
        return []
    np = choose("numpy").xp
    size = problem.size
    if problem.case.what == "gradients":
        return _gradients(problem)
    count = min(size.Q, max(1, ALL // (size.B * size.H * size.K)))
    rows = np.unique(np.linspace(0, size.Q - 1, count).astype(int))
    values = np.concatenate([_rows(problem, slice(i, i + 1))[1] for i in rows.tolist()] if count < size.Q else
                            [out for _, out in _blocks(problem)], axis=-2)  # fmt: skip
    return [Exact(rows, values)]


def error(results: Sequence[Any], right: Sequence[Exact]) -> float | None:
    """The largest error of the results (NumPy arrays, whole); infinity where one is not a number."""
    if not right:
        return None
    found = []
    for result, (rows, values) in zip(results, right, strict=True):
        apart = float(abs(result[..., rows, :].astype("float64") - values).max())
        found.append(apart / float(abs(values).max()) if math.isfinite(apart) else math.inf)
    return max(found)


def _rows(problem: Problem, rows: slice) -> tuple[Any, Any]:
    """The weights (B, H, rows, K) and the output of some queries."""
    np = choose("numpy").xp
    k, v = (_for_each_head(problem, x) for x in (problem.k, problem.v))
    s = problem.q[:, :, rows].astype("float64") @ k.mT * problem.size.D**-0.5
    bias, visible = problem.bias(rows), problem.visible(rows)
    if bias is not None:
        s += bias
    if visible is not None:
        s = np.where(visible, s, -np.inf)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    return p, p @ v


def _gradients(problem: Problem) -> list[Exact]:
    np = choose("numpy").xp
    B, H, G, Q, K, D, E = problem.size
    k, v = (_for_each_head(problem, x) for x in (problem.k, problem.v))
    dk, dv = np.zeros((B, H, K, D)), np.zeros((B, H, K, E))
    outs, dqs = [], []
    for rows, (p, out) in ((rows, _rows(problem, rows)) for rows in _slices(Q)):
        q, g = (x[:, :, rows].astype("float64") for x in (problem.q, problem.g))
        ds = p * (g @ v.mT - (g * out).sum(axis=-1, keepdims=True)) * D**-0.5
        outs.append(out)
        dqs.append(ds @ k)
        dk += ds.mT @ q
        dv += p.mT @ g
    dk, dv = (x.reshape(B, G, H // G, K, -1).sum(axis=2) for x in (dk, dv))
    wholes = (np.concatenate(outs, axis=-2), np.concatenate(dqs, axis=-2), dk, dv)
    return [Exact(np.arange(whole.shape[-2]), whole) for whole in wholes]


def _blocks(problem: Problem) -> Iterator[tuple[Any, Any]]:
    return (_rows(problem, rows) for rows in _slices(problem.size.Q))


def _slices(Q: int) -> Iterator[slice]:
    return (slice(start, start + ROWS) for start in range(0, Q, ROWS))


def _for_each_head(problem: Problem, x: Any) -> Any:
    """k or v in float64, each of its heads as often as query heads share it."""
    return x.astype("float64").repeat(problem.size.H // problem.size.G, axis=1)
