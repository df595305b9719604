"""Attention by its definition: plain loops over Python numbers, sharing no code with attnspec.

Sums are `math.fsum` over float64, which is exact enough to judge float32 and half types; float64 is judged against
mpmath at 40 digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import mpmath
import numpy as np

from . import oracle_random
from .masks import Array, Place, entry, fit
from .trials import Call


@dataclass(frozen=True, eq=False)
class Exact:
    """The answer and what its error bound is made of. Axes (..., H, Q, K), (..., H, Q) and (..., H, Q, E).

    scores are -inf where invisible; `linear` is the score before softcap, `magnitude` |scale| * sum |q| |k|;
    `factors` is what dropout multiplies the weights by, `top` the greatest logit of a row, the sink among them,
    `values` v with one head for each query head, `width` D.
    """

    out: Array
    lse: Array
    weights: Array
    scores: Array
    linear: Array
    magnitude: Array
    factors: Array
    visible: Array
    top: Array
    values: Array
    bias: Array
    width: int
    softcapped: bool
    single: bool

    @property
    def answer(self) -> dict[str, Array]:
        """out, lse and weights with the axes that the call has: rank 2 has no head axis."""
        return {name: self.shaped(getattr(self, name)) for name in ("out", "lse", "weights")}

    def shaped(self, x: Array) -> Array:
        """Drop the head axis that rank 2 input was given."""
        return x[0] if self.single else x


@dataclass(frozen=True)
class _Numbers:
    number: Callable[[Any], Any]
    total: Callable[[Iterable[Any]], Any]
    exp: Callable[[Any], Any]
    log: Callable[[Any], Any]
    tanh: Callable[[Any], Any]


_FLOAT = _Numbers(float, math.fsum, math.exp, math.log, math.tanh)
_PRECISE = _Numbers(lambda x: mpmath.mpf(float(x)), mpmath.fsum, mpmath.exp, mpmath.log, mpmath.tanh)


_known: dict[tuple[object, ...], tuple[Call, Exact]] = {}
_MOST_KNOWN = 4096


def attention(call: Call) -> Exact:
    """Everything that the specification says about the answer to a call; computed once for the same arrays."""
    key = tuple(
        value if isinstance(value := getattr(call, f.name), float | int | str | None) else id(value)
        for f in fields(call)
        if f.name not in ("want", "layout", "implementation", "dout", "dlse")
    )
    if key not in _known:
        if len(_known) >= _MOST_KNOWN:
            del _known[next(iter(_known))]
        with mpmath.workdps(40):
            # The call is kept, so that the identities of its arrays stay taken.
            _known[key] = call, _attention(call, _PRECISE if call.dtype == "float64" else _FLOAT)
    return _known[key][1]


def _attention(call: Call, numbers: _Numbers) -> Exact:
    single = call.q.ndim == 2
    q, k, v = (a[None] if a.ndim == 2 else a for a in (call.q, call.k, call.v))
    (H, Q, D), (G, K), E = q.shape[-3:], k.shape[-3:-1], v.shape[-1]
    lead = np.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    q, k, v = (np.broadcast_to(a, lead + a.shape[-3:]) for a in (q, k, v))
    pairs, rows = (*lead, H, Q, K), (*lead, H, Q)
    scale = numbers.number(call.scale) if call.scale is not None else numbers.number(max(D, 1)) ** -0.5
    factors = _factors(call, pairs)
    positions = [x if x is None else np.asarray(x) for x in (call.q_positions, call.k_positions)]
    linear, magnitude, bias, weights = (np.zeros(pairs) for _ in range(4))
    scores, visible = np.full(pairs, -np.inf), np.zeros(pairs, bool)
    lse, top, out = np.full(rows, -np.inf), np.full(rows, -np.inf), np.zeros((*rows, E))
    for at in np.ndindex(*rows):
        *batch, h, _ = at
        g = (*batch, h // (H // G))
        exact: dict[int, Any] = {}
        bad = False
        for j in _seen(call, positions, at, Q, K):
            b = float(call.bias[fit((*at, j), call.bias.shape)]) if call.bias is not None else 0.0
            if b == -math.inf:
                continue
            visible[(*at, j)] = True
            a, c = q[at], k[(*g, j)]
            if not (np.isfinite(a).all() and np.isfinite(c).all() and math.isfinite(b)):
                bad = True
                continue
            parts = [numbers.number(x) * numbers.number(y) for x, y in zip(a, c, strict=True)]
            s = numbers.total(parts) * scale
            linear[(*at, j)], bias[(*at, j)] = s, b
            magnitude[(*at, j)] = numbers.total(abs(x) for x in parts) * abs(scale)
            if call.softcap is not None:
                cap = numbers.number(call.softcap)
                s = cap * numbers.tanh(s / cap)
            exact[j] = s + numbers.number(b)
            scores[(*at, j)] = exact[j]
        sink = _sink(call, at, single)
        if bad:
            lse[at] = math.nan
            weights[at] = math.nan
            out[at] = math.nan
            continue
        logits = [*exact.values(), *([] if sink is None else [numbers.number(sink)])]
        if not logits:
            continue
        m = max(logits)
        total = numbers.total(numbers.exp(s - m) for s in logits)
        top[at], lse[at] = m, m + numbers.log(total)
        p = {j: numbers.exp(s - m) / total for j, s in exact.items()}
        for j, weight in p.items():
            weights[(*at, j)] = weight
        for e in range(E):
            column = {j: float(v[(*g, j, e)]) for j in p}
            if all(map(math.isfinite, column.values())):
                terms = (p[j] * numbers.number(factors[(*at, j)]) * numbers.number(column[j]) for j in p)
                out[(*at, e)] = numbers.total(terms)
        if not np.isfinite(v[g][visible[at]]).all():
            out[at] = math.nan
    values = np.repeat(v, H // G if G else 1, axis=-3)
    softcapped = call.softcap is not None
    return Exact(
        out, lse, weights, scores, linear, magnitude, factors, visible, top, values, bias, D, softcapped, single
    )  # fmt: skip


def _seen(call: Call, positions: list[Array | None], at: tuple[int, ...], queries: int, keys: int) -> Iterator[int]:
    """The keys that the mask shows to one query."""
    *lead, head, row = at
    of_queries, of_keys = positions
    query = row if of_queries is None else entry(of_queries, (*lead, row))
    for column in range(keys):
        key = column if of_keys is None else entry(of_keys, (*lead, column))
        place = Place(tuple(lead), head, row, column, query, key, queries, keys)
        if call.mask is None or call.mask.visible(place):
            yield column


def _sink(call: Call, at: tuple[int, ...], single: bool) -> float | None:
    if call.sink is None:
        return None
    sink = np.asarray(call.sink)
    return float(sink if single else sink[fit(at[:-1], sink.shape)])


def _factors(call: Call, shape: tuple[int, ...]) -> Array:
    """What dropout multiplies each weight by: 0, or 1 / (1 - rate)."""
    if call.dropout is None or call.dropout.rate == 0:
        return np.ones(shape)
    rate = call.dropout.rate
    if rate == 1:
        return np.zeros(shape)
    keep = oracle_random.bernoulli(oracle_random.key(call.dropout.seed), 1 - rate, shape)
    return np.where(keep, 1 / (1 - rate), 0.0)
