"""A faultless attention in NumPy whose steps a wrong one overrides, and the catalogue of the wrong ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from attnspec_conformance import masks, oracle_random
from attnspec_conformance.problems import rounded
from attnspec_conformance.trials import OF_SUBJECTS, Call, Result

CATALOGUE: dict[str, tuple[Any, tuple[str, ...]]] = {}


def breaks(*clauses):
    """Enter a faulty subject into the catalogue, with the clauses whose laws have to fail it."""

    def enter(cls):
        CATALOGUE[cls.__name__] = cls, clauses
        return cls

    return enter


class Faultless:
    """Attention by the book, one overridable step a line. It computes in float64 and rounds once."""

    capabilities = frozenset(
        {"float64", "float16", "bfloat16", "in_place", "device_argument", "known_shapes", "vjp", *OF_SUBJECTS}
    )

    @property
    def name(self):
        return type(self).__name__

    def supports(self, call):
        return None

    def forward(self, call: Call) -> Result:
        return self.untouching(self.answer, call)

    def vjp(self, call: Call) -> Result:
        return self.untouching(self.pulled, call)

    def untouching(self, answer, call):
        arrays = {name: np.array(getattr(call, name)) for name in "qkv"}
        with np.errstate(all="ignore"):
            result = answer(call.but(**arrays))
        untouched = all(np.array_equal(x, getattr(call, name), equal_nan=True) for name, x in arrays.items())
        return replace(result, untouched=untouched)

    def pulled(self, call):
        forward = self.answer(call.but(want="lse"))
        if forward.error is not None:
            return forward
        gradients = (rounded(x, call.dtype).astype(np.float64) for x in self.gradients(call, self.tape))
        return Result(**dict(zip(("dq", "dk", "dv"), gradients, strict=True)), dtype=call.dtype)

    def answer(self, call):
        single = call.q.ndim == 2
        q, k, v = (
            np.asarray(a, np.float64)[None] if a.ndim == 2 else np.asarray(a, np.float64)
            for a in self.operands(call, call.q, call.k, call.v)
        )
        if refusal := self.refusal(call, q, k, v):
            return Result(error="ShapeError", message=refusal)
        out, lse, weights = self.attend(call, q, k, v)
        out, lse, weights = (x[0] if single else x for x in (out, lse, weights))
        wide = "float64" if call.dtype == "float64" else "float32"
        out, weights = (rounded(x, call.dtype).astype(np.float64) for x in (out, weights))
        if call.want == "weights":
            return Result(weights=weights, dtype=call.dtype)
        asked = {"lse": lse.astype(wide).astype(np.float64), "lse_dtype": wide} if call.want == "lse" else {}
        return Result(out=out, dtype=call.dtype, **asked)

    def operands(self, call, q, k, v):
        return q, k, v

    def refusal(self, call, q, k, v):
        (H, Q, D), (G, K, Dk), (Gv, Kv, E) = q.shape[-3:], k.shape[-3:], v.shape[-3:]
        lead = [a.shape[:-3] for a in (q, k, v)]
        text = f"q: H={H}, Q={Q}, D={D}; k: G={G}, K={K}, D={Dk}; v: G={Gv}, K={Kv}, E={E}; leading axes {lead}"
        if Dk != D or Kv != K or Gv != G or (H % G if G else H):
            return text
        try:
            full = (*np.broadcast_shapes(*lead), H, Q, K)
        except ValueError:
            return text
        if isinstance(call.mask, masks.Dense):
            shape = self.dense(call.mask.array, full).shape
            fits = len(shape) <= len(full) and all(n in (1, m) for n, m in zip(shape[::-1], full[::-1], strict=False))
            return None if fits else f"mask {shape} does not broadcast to {full}"
        return None

    def attend(self, call, q, k, v):
        H, G = q.shape[-3], k.shape[-3]
        lead = np.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
        q, k, v = (np.broadcast_to(a, lead + a.shape[-3:]) for a in (q, k, v))
        k, v = self.repeat_keys(k, H // G if G else 1), self.repeat_values(v, H // G if G else 1)
        bad_q, bad_k, bad_v = (~np.isfinite(a).all(-1) for a in (q, k, v))
        q, k = np.where(np.isfinite(q), q, 0.0), self.clean_keys(call, k)
        visible = self.visible(call, (*lead, H, q.shape[-2], k.shape[-2]))
        s = self.capped(call, self.scaled(call, q, self.product(call, q, k)))
        bad_score = visible & bad_k[..., None, :]
        if call.bias is not None:
            bias = np.broadcast_to(self.bias(call, s.shape), s.shape)
            visible, s = self.biased(call, visible, s, bias)
            bad_score = visible & (bad_k[..., None, :] | ~np.isfinite(bias))
        s = self.masked(call, s, visible)
        weights, lse = self.normalised(call, s)
        bad_row = bad_score.any(-1) | (bad_q & visible.any(-1))
        bad_out = bad_row | (visible & bad_v[..., None, :]).any(-1)
        out = self.times(call, self.dropped(call, weights), v)
        self.tape = Tape(q, k, v, s, weights, visible, bad_out)
        return self.results(
            call,
            np.where(bad_out[..., None], np.nan, out),
            np.where(bad_row, np.nan, lse),
            np.where(bad_row[..., None], np.nan, weights),
            visible,
        )

    def repeat(self, x, times):
        return np.repeat(x, times, axis=-3)

    def repeat_keys(self, k, times):
        return self.repeat(k, times)

    def repeat_values(self, v, times):
        return self.repeat(v, times)

    def clean_keys(self, call, k):
        return np.where(np.isfinite(k), k, 0.0)

    def scale(self, call, q):
        return max(q.shape[-1], 1) ** -0.5 if call.scale is None else call.scale

    def product(self, call, q, k):
        return q @ np.swapaxes(k, -1, -2)

    def scaled(self, call, q, s):
        return s * self.scale(call, q)

    def capped(self, call, s):
        return s if call.softcap is None else call.softcap * np.tanh(s / call.softcap)

    def bias(self, call, shape):
        return np.asarray(call.bias, np.float64)

    def biased(self, call, visible, s, bias):
        return visible & (bias != -np.inf), s + np.where(np.isfinite(bias), bias, 0.0)

    def masked(self, call, s, visible):
        return np.where(visible, s, -np.inf)

    def visible(self, call, shape):
        if call.mask is None:
            return np.ones(shape, bool)
        return np.broadcast_to(self.rule(call.mask, call, shape), shape)

    def rule(self, mask, call, shape):
        Q, K = shape[-2:]
        i = np.asarray(range(Q) if call.q_positions is None else call.q_positions)[..., None, :, None]
        j = np.asarray(range(K) if call.k_positions is None else call.k_positions)[..., None, None, :]
        match mask:
            case masks.Dense(array):
                return self.dense(array, shape)
            case masks.Causal(offset, align):
                return self.causal(j - i - self.offset(offset, align, Q, K))
            case masks.Window(left, right, offset, align):
                return self.window(j - i - self.offset(offset, align, Q, K), left, right)
            case masks.Padding(lengths):
                return self.padding(j, np.asarray(lengths)[..., None, None, None])
            case masks.Segments(q_ids, k_ids):
                return self.segments(q_ids[..., None, :, None], k_ids[..., None, None, :])
            case masks.Both(one, other):
                return self.both(self.rule(one, call, shape), self.rule(other, call, shape))
            case masks.Either(one, other):
                return self.either(self.rule(one, call, shape), self.rule(other, call, shape))
            case masks.Inverse(inner):
                return self.inverse(self.rule(inner, call, shape))

    def dense(self, array, shape):
        return array

    def causal(self, ahead):
        return ahead <= 0

    def window(self, ahead, left, right):
        low = True if left is None else ahead >= -left
        return low & (True if right is None else ahead <= right) & np.ones_like(ahead, bool)

    def padding(self, j, lengths):
        return j < lengths

    def segments(self, q_ids, k_ids):
        return q_ids == k_ids

    def both(self, one, other):
        return one & other

    def either(self, one, other):
        return one | other

    def inverse(self, made):
        return ~made

    def offset(self, offset, align, Q, K):
        return np.asarray(offset)[..., None, None, None] + (K - Q if align == "end" else 0)

    def normalised(self, call, s):
        top = self.top(call, s)
        p = np.exp(s - top)
        p = np.where(np.isnan(p), 0.0, p)
        total = p.sum(-1, keepdims=True) + self.sink_share(call, top)
        lse = np.where(total == 0, -np.inf, top + np.log(np.where(total == 0, 1.0, total)))[..., 0]
        return p / np.where(total == 0, 1.0, total), lse

    def top(self, call, s):
        top = np.max(s, axis=-1, keepdims=True, initial=-np.inf)
        if call.sink is not None:
            top = np.maximum(top, self.sink(call))
        return np.where(np.isinf(top), 0.0, top)

    def sink(self, call):
        return np.asarray(call.sink, np.float64)[..., None, None]

    def sink_share(self, call, top):
        return 0.0 if call.sink is None else np.exp(self.sink(call) - top)

    def keep(self, call, shape):
        return oracle_random.bernoulli(oracle_random.key(call.dropout.seed), 1 - call.dropout.rate, shape)

    def dropped(self, call, weights):
        if call.dropout is None or call.dropout.rate == 0:
            return weights
        if call.dropout.rate == 1:
            return np.zeros_like(weights)
        return self.kept(call, weights, self.keep(call, weights.shape))

    def kept(self, call, weights, keep):
        return np.where(keep, weights / (1 - call.dropout.rate), 0.0)

    def times(self, call, weights, v):
        return weights @ np.where(np.isfinite(v), v, 0.0)

    def results(self, call, out, lse, weights, visible):
        return out, lse, weights

    def gradients(self, call, tape):
        g = np.asarray(call.dout, np.float64)
        weights, factors = self.saved_weights(call, tape), self.factors(call, tape)
        dv = np.swapaxes(weights * factors, -1, -2) @ np.where(tape.bad[..., None], 0.0, g)
        ds = self.of_scores(call, tape, weights, factors * self.of_weights(g, tape))
        ds = np.where(tape.bad[..., None], 0.0, ds)
        dq, dk = self.of_product(call, tape, ds)
        G, spoilt = call.k.shape[-3], (tape.visible & tape.bad[..., None]).any(-2)
        dk, dv = (self.of_group(self.spoilt(x, spoilt), G) for x in (dk, dv))
        return self.spoilt(dq, tape.bad), dk, dv

    def saved_weights(self, call, tape):
        return tape.weights

    def factors(self, call, tape):
        return self.dropped(call, np.ones_like(tape.weights))

    def of_weights(self, g, tape):
        v = np.where(np.isfinite(tape.v), tape.v, 0.0)
        return np.where(tape.visible, g @ np.swapaxes(v, -1, -2), 0.0)

    def of_scores(self, call, tape, weights, dp):
        return weights * (dp - self.delta(weights, dp) + self.of_lse(call))

    def delta(self, weights, dp):
        return (weights * dp).sum(-1, keepdims=True)

    def of_lse(self, call):
        return 0.0 if call.dlse is None else np.asarray(call.dlse, np.float64)[..., None]

    def of_product(self, call, tape, ds):
        scale = self.scale(call, tape.q)
        if call.softcap is not None:
            ds = ds * (1 - np.tanh(scale * self.product(call, tape.q, tape.k) / call.softcap) ** 2)
        return scale * (ds @ tape.k), scale * (np.swapaxes(ds, -1, -2) @ tape.q)

    def of_group(self, x, G):
        return x.reshape(*x.shape[:-3], G, x.shape[-3] // max(G, 1), *x.shape[-2:]).sum(-3)

    def spoilt(self, x, rows):
        return np.where(rows[..., None], np.nan, x)


class Tape(NamedTuple):
    """What the derivative reads of the forward pass, with one key head for each query head; `bad` rows are NaN."""

    q: Any
    k: Any
    v: Any
    s: Any
    weights: Any
    visible: Any
    bad: Any
