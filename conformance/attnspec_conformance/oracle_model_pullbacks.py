"""Layers, stacks, and what stands at the ends of a model: results and pullbacks, as in `oracle_layer_pullbacks`.

Gradients are named as the parameters are: "attention.wq", "layers.0.norm_attention.gamma", "x".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mpmath
import numpy as np

from . import oracle_random
from .bounds import LEAST, UNIT
from .masks import Array, Dropout
from .oracle_layer_pullbacks import Gradients, drop, feed_forward, multi_head, norm
from .oracle_layers import Value, add
from .trials import Call
from .values import Pull, moved, scaled, size, times, total

Tree = Mapping[str, Any]


def folded(dropout: Dropout | None, n: int) -> Dropout | None:
    """With the key for part n."""
    if dropout is None:
        return None
    high, low = oracle_random.fold_in(oracle_random.key(dropout.seed), n)
    return Dropout(dropout.rate, high << 32 | low)


def normed(params: Tree, x: Value, u: float) -> tuple[Value, Pull]:
    """The norm that the parameters describe."""
    return norm(x, params["gamma"], params["beta"], params["eps"], u, params["kind"])


def layer(
    params: Tree, x: Value, call: Call, u: float, residual: Dropout | None = None, rotary: bool = False
) -> tuple[Value, Pull]:
    """A Transformer layer in the order that the parameters name."""
    pre, names = params["order"] == "pre", ("norm_attention", "norm_feed_forward")
    before, pull_before = normed(params[names[0]], x, u) if pre else (x, None)
    attended, pull_attended = multi_head(params["attention"], before, None, call, u, rotary)["y"]
    kept, pull_kept = drop(attended, folded(residual, 0), u)
    h, pull_h = (add(x, kept, u), None) if pre else normed(params[names[0]], add(x, kept, u), u)
    between, pull_between = normed(params[names[1]], h, u) if pre else (h, None)
    activation = params["feed_forward"]["activation"]
    fed, pull_fed = feed_forward(params["feed_forward"], between, activation, u)
    last, pull_last = drop(fed, folded(residual, 1), u)
    y, pull_y = (add(h, last, u), None) if pre else normed(params[names[1]], add(h, last, u), u)

    def pull(g: Value) -> Gradients:
        found: Gradients = {}

        def through(pull: Pull | None, name: str, g: Value) -> Value:
            if pull is None:
                return g
            part = pull(g)
            found.update({f"{name}.{n}": value for n, value in part.items() if n not in ("x", "eps", "rate")})
            return part["x"]

        g = through(pull_y, names[1], g)
        of_fed = through(pull_fed, "feed_forward", through(pull_last, "", g))
        g = add(g, through(pull_between, names[1], of_fed), u)
        g = through(pull_h, names[0], g)
        of_attended = through(pull_attended, "attention", through(pull_kept, "", g))
        of_x = add(g, through(pull_before, names[0], of_attended), u)
        return {**found, "x": of_x}

    return y, pull


def stack(params: Tree, x: Value, call: Call, u: float) -> tuple[Value, Pull]:
    """The layers one after another, each with a key of its own for the dropout of its weights, and the last norm."""
    pulls: list[tuple[str, Pull]] = []
    for n, one in enumerate(params["layers"]):
        x, pull_layer = layer(one, x, call.but(dropout=folded(call.dropout, n)), u)
        pulls.append((f"layers.{n}", pull_layer))
    if params["norm"] is not None:
        x, pull_norm = normed(params["norm"], x, u)
        pulls.append(("norm", pull_norm))

    def pull(g: Value) -> Gradients:
        found: Gradients = {}
        for name, back in reversed(pulls):
            part = back(g)
            g = part["x"]
            found |= {f"{name}.{n}": value for n, value in part.items() if n not in ("x", "eps")}
        return {**found, "x": g}

    return x, pull


def embed(table: Array, ids: Array, u: float) -> tuple[Value, Pull]:
    """Rows of the table; a row that was taken n times gets a sum of n cotangents."""

    def pull(g: Value) -> Gradients:
        flat = moved(g, lambda a: a.reshape(-1, a.shape[-1]))
        taken = np.ravel(ids) == np.arange(len(table))[:, None]
        count = taken.sum(-1, keepdims=True)
        return {"table": Value(taken @ flat.exact, taken @ flat.error + count * u * (taken @ size(flat)))}

    return Value.given(np.asarray(table)[ids]), pull


def mean_pool(x: Value, lengths: Array, u: float) -> tuple[Value, Pull]:
    """The mean of the first rows; 0 of none."""
    count = np.asarray(lengths)[..., None, None]
    real = (np.arange(x.exact.shape[-2])[:, None] < count) / np.maximum(count, 1)
    y = moved(total(scaled(x, real, u, 2), (-2,), u), lambda a: a[..., 0, :])
    return y, lambda g: {"x": scaled(moved(g, lambda a: a[..., None, :]), real, u, 2)}


def cross_entropy(logits: Array, labels: Array, mask: Array | None, dtype: str) -> tuple[Value, Pull]:
    """log(sum exp(logits)) - logits_label in mpmath, 0 where the mask is False.

    The logarithm of a sum of C exponentials errs by (C + 4) u of 1 and of its own size, the sum with the greatest
    logit by that of both; a probability p = exp(logit - lse) grows by that and by the rounding of the difference.
    """
    u, C = UNIT[dtype], logits.shape[-1]
    seen = np.ones(labels.shape, bool) if mask is None else np.broadcast_to(mask, labels.shape)
    loss, error = np.zeros(labels.shape), np.zeros(labels.shape)
    p, p_error, chosen = np.zeros(logits.shape), np.zeros(logits.shape), np.zeros(logits.shape)
    with mpmath.workdps(40):
        for at in map(tuple, np.argwhere(seen)):
            row = [mpmath.mpf(float(z)) for z in logits[at]]
            lse = mpmath.log(mpmath.fsum(map(mpmath.exp, row)))
            loss[at] = lse - row[labels[at]]
            top, log = float(abs(max(row))), float(lse - max(row))
            of_lse = (C + 4) * u * (1 + log) + 2 * u * (top + log)
            error[at] = of_lse + u * abs(loss[at])
            distance = np.array([float(z - lse) for z in row])
            p[at] = [float(mpmath.exp(z - lse)) for z in row]
            p_error[at] = p[at] * (np.expm1(of_lse + 2 * u * np.abs(distance)) + 6 * u) + LEAST[dtype]
            chosen[(*at, labels[at])] = 1

    def pull(g: Value) -> Gradients:
        difference = Value(p - chosen, p_error + u * np.abs(p - chosen))
        return {"logits": times(moved(g, lambda a: a[..., None]), difference, u)}

    return Value(loss, error), pull


def merge(parts: Sequence[tuple[Array, Array]], u: float) -> tuple[Value, Value, Any]:
    """out = sum_p w_p out_p, w_p = exp(lse_p - lse): dout_p = w_p g, dlse_p = w_p (g . out_p - g . out + h).

    With P parts a share errs by (P + 8) u and by what the difference to the greatest loses, twice. That difference
    also has a derivative, whose terms are those of all parts and cancel but for 8 u of their magnitudes.
    """
    outs, lses = (np.stack([np.asarray(part[n], np.float64) for part in parts]) for n in (0, 1))
    top = np.max(lses, axis=0)
    shift = np.where(np.isfinite(top), top, 0.0)
    shares = np.exp(lses - shift)
    sum_of_shares = shares.sum(0)
    w = shares / np.where(sum_of_shares == 0, 1.0, sum_of_shares)
    distance = np.where(np.isfinite(lses), np.abs(lses - shift), 0.0)
    weights = Value(w, w * (2 * np.max(distance, axis=0) + 2 * distance + len(parts) + 8) * u)
    with np.errstate(divide="ignore"):
        lse = shift + np.log(sum_of_shares)
    of_lse = np.where(np.isfinite(lse), (len(parts) + 4) * u * (1 + np.abs(lse - shift)) + 2 * u * np.abs(shift), 0.0)
    out = moved(total(times(moved(weights, lambda a: a[..., None]), Value.given(outs), u), (0,), u), lambda a: a[0])

    def pull(g: Value, h: Value) -> tuple[Value, Value]:
        """Of all outputs and all lse, (P, ...)."""
        along = moved(total(times(g, Value.given(outs), u), (-1,), u), lambda a: a[..., 0])
        of_out = moved(total(times(g, out, u), (-1,), u), lambda a: a[..., 0])
        inner = add(add(along, Value(-of_out.exact, of_out.error), u), h, u)
        found = times(weights, inner, u)
        sizes = (w * (np.einsum("...e,p...e->p...", np.abs(g.exact), np.abs(outs)) + np.abs(h.exact))).sum(0)
        of_outs = times(moved(weights, lambda a: a[..., None]), g, u)
        spread = np.where(np.isfinite(lses), (outs.shape[-1] + 8) * u * sizes, 0.0)
        return of_outs, Value(found.exact, found.error + spread)

    return out, Value(lse, of_lse), pull
