"""A faultless attention in NumPy, and ones that each have one fault that somebody might ship."""

from __future__ import annotations

from typing import Any

import numpy as np
from attnspec_conformance import masks, oracle_random
from attnspec_conformance.problems import rounded
from attnspec_conformance.trials import Call, Result

CATALOGUE: dict[str, tuple[Any, tuple[str, ...]]] = {}


def breaks(*clauses):
    """Enter a faulty subject into the catalogue, with the clauses whose laws have to fail it."""

    def enter(cls):
        CATALOGUE[cls.__name__] = cls, clauses
        return cls

    return enter


class Faultless:
    """Attention by the book, one overridable step a line. It computes in float64 and rounds once."""

    capabilities = frozenset({"float64", "float16", "bfloat16", "in_place", "device_argument", "known_shapes"})

    @property
    def name(self):
        return type(self).__name__

    def supports(self, call):
        return None

    def forward(self, call: Call) -> Result:
        with np.errstate(all="ignore"):
            return self.answer(call)

    def answer(self, call):
        single = call.q.ndim == 2
        q, k, v = (
            np.asarray(a, np.float64)[None] if a.ndim == 2 else np.asarray(a, np.float64)
            for a in (call.q, call.k, call.v)
        )
        if refusal := self.refusal(call, q, k, v):
            return Result(error="ShapeError", message=refusal)
        out, lse, weights = self.attend(call, q, k, v)
        parts = {"out": out, "lse": lse, "weights": weights}
        out, lse, weights = (x[0] if single else x for x in parts.values())
        wide = "float64" if call.dtype == "float64" else "float32"
        out, weights = (rounded(x, call.dtype).astype(np.float64) for x in (out, weights))
        lse = lse.astype(wide).astype(np.float64)
        if call.want == "weights":
            return Result(weights=weights, dtype=call.dtype)
        asked = {"lse": lse, "lse_dtype": wide} if call.want == "lse" else {}
        return Result(out=out, dtype=call.dtype, **asked)

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
            shape = call.mask.array.shape
            fits = len(shape) <= len(full) and all(n in (1, m) for n, m in zip(shape[::-1], full[::-1], strict=False))
            return None if fits else f"mask {shape} does not broadcast to {full}"
        return None

    def attend(self, call, q, k, v):
        H, G = q.shape[-3], k.shape[-3]
        lead = np.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
        q, k, v = (np.broadcast_to(a, lead + a.shape[-3:]) for a in (q, k, v))
        k, v = self.repeat(k, H // G if G else 1), self.repeat(v, H // G if G else 1)
        bad_q, bad_k, bad_v = (~np.isfinite(a).all(-1) for a in (q, k, v))
        q, k = (np.where(np.isfinite(a), a, 0.0) for a in (q, k))
        visible = self.visible(call, (*lead, H, q.shape[-2], k.shape[-2]))
        s = self.capped(call, self.product(call, q, k) * self.scale(call, q))
        bad_score = visible & bad_k[..., None, :]
        if call.bias is not None:
            bias = np.broadcast_to(np.asarray(call.bias, np.float64), s.shape)
            visible, s = self.biased(call, visible, s, bias)
            bad_score = visible & (bad_k[..., None, :] | ~np.isfinite(bias))
        s = self.masked(call, s, visible)
        top = self.top(call, s)
        p = np.exp(s - top)
        p = np.where(np.isnan(p), 0.0, p)
        total = p.sum(-1, keepdims=True) + self.sink_share(call, top)
        weights = p / np.where(total == 0, 1.0, total)
        lse = np.where(total == 0, -np.inf, top + np.log(np.where(total == 0, 1.0, total)))[..., 0]
        bad_row = bad_score.any(-1) | (bad_q & visible.any(-1))
        bad_out = bad_row | (visible & bad_v[..., None, :]).any(-1)
        out = self.times(call, self.dropped(call, weights), v)
        return self.results(
            call,
            np.where(bad_out[..., None], np.nan, out),
            np.where(bad_row, np.nan, lse),
            np.where(bad_row[..., None], np.nan, weights),
            visible,
        )

    def repeat(self, x, times):
        return np.repeat(x, times, axis=-3)

    def scale(self, call, q):
        return max(q.shape[-1], 1) ** -0.5 if call.scale is None else call.scale

    def product(self, call, q, k):
        return q @ np.swapaxes(k, -1, -2)

    def capped(self, call, s):
        return s if call.softcap is None else call.softcap * np.tanh(s / call.softcap)

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
        ahead = j - i
        match mask:
            case masks.Dense(array):
                return array
            case masks.Causal(offset, align):
                return ahead <= self.offset(offset, align, Q, K)
            case masks.Window(left, right, offset, align):
                ahead = ahead - self.offset(offset, align, Q, K)
                return self.window(ahead, left, right)
            case masks.Padding(lengths):
                return j < np.asarray(lengths)[..., None, None, None]
            case masks.Segments(q_ids, k_ids):
                return (q_ids[..., :, None] == k_ids[..., None, :])[..., None, :, :]
            case masks.Both(one, other):
                return self.rule(one, call, shape) & self.rule(other, call, shape)
            case masks.Either(one, other):
                return self.rule(one, call, shape) | self.rule(other, call, shape)
            case masks.Inverse(inner):
                return ~self.rule(inner, call, shape)

    def offset(self, offset, align, Q, K):
        return np.asarray(offset)[..., None, None, None] + (K - Q if align == "end" else 0)

    def window(self, ahead, left, right):
        low = True if left is None else ahead >= -left
        return low & (True if right is None else ahead <= right) & np.ones_like(ahead, bool)

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
        return np.where(self.keep(call, weights.shape), weights / (1 - call.dropout.rate), 0.0)

    def times(self, call, weights, v):
        return weights @ np.where(np.isfinite(v), v, 0.0)

    def results(self, call, out, lse, weights, visible):
        return out, lse, weights


@breaks("SCORE-1")
class NoScale(Faultless):
    def scale(self, call, q):
        return 1.0 if call.scale is None else call.scale


@breaks("SCORE-1")
class ScaleOfTheModel(Faultless):
    def scale(self, call, q):
        return (q.shape[-1] * q.shape[-3]) ** -0.5 if call.scale is None else call.scale


@breaks("SCORE-1")
class ScaleOffByOneIn100000(Faultless):
    def scale(self, call, q):
        return super().scale(call, q) * (1 + 1e-5)


@breaks("SCORE-1")
class ZeroScaleTakenForNone(Faultless):
    def scale(self, call, q):
        return call.scale or q.shape[-1] ** -0.5 if q.shape[-1] else 1.0


@breaks("SCORE-2")
class HalfNotWidened(Faultless):
    def product(self, call, q, k):
        return rounded(super().product(call, q, k), call.dtype).astype(np.float64)


@breaks("SCORE-3")
class TiledHeads(Faultless):
    def repeat(self, x, times):
        return np.concatenate([x] * times, axis=-3) if times else x


@breaks("SCORE-4")
class SoftcapIgnored(Faultless):
    def capped(self, call, s):
        return s


@breaks("SCORE-4")
class SoftcapAfterBias(Faultless):
    def capped(self, call, s):
        return s

    def biased(self, call, visible, s, bias):
        visible, s = super().biased(call, visible, s, bias)
        return visible, super().capped(call, s)


@breaks("MASK-3")
class BiasIgnoredBesideAMask(Faultless):
    def biased(self, call, visible, s, bias):
        return (visible, s) if call.mask is not None else super().biased(call, visible, s, bias)


@breaks("SCORE-5")
class LowestNumberTakenForAMask(Faultless):
    def biased(self, call, visible, s, bias):
        return super().biased(call, visible, s, np.where(bias < -1e30, -np.inf, bias))


@breaks("MASK-1")
class InvertedMask(Faultless):
    def visible(self, call, shape):
        return ~super().visible(call, shape) if isinstance(call.mask, masks.Dense) else super().visible(call, shape)


@breaks("MASK-2")
class RankThreeTakenForTheBatch(Faultless):
    def rule(self, mask, call, shape):
        made = super().rule(mask, call, shape)
        taken = isinstance(mask, masks.Dense) and made.ndim == 3 and len(shape) == 4 and made.shape[0] == shape[0]
        return made[:, None] if taken else made


@breaks("MASK-3")
class OrTakenForAnd(Faultless):
    def rule(self, mask, call, shape):
        if isinstance(mask, masks.Both):
            return self.rule(mask.one, call, shape) | self.rule(mask.other, call, shape)
        return super().rule(mask, call, shape)


@breaks("MASK-4")
class CausalOffByOne(Faultless):
    def offset(self, offset, align, Q, K):
        return super().offset(offset, align, Q, K) - 1


@breaks("MASK-4")
class BottomRightForTopLeft(Faultless):
    def offset(self, offset, align, Q, K):
        return super().offset(offset, "end", Q, K)


@breaks("MASK-4")
class WindowWithoutItself(Faultless):
    def window(self, ahead, left, right):
        return super().window(ahead, left if left is None else left - 1, right)


@breaks("MASK-5")
class EmptyRowIsTheMean(Faultless):
    def results(self, call, out, lse, weights, visible):
        empty, K = ~visible.any(-1, keepdims=True), max(visible.shape[-1], 1)
        return np.where(empty, call.v.sum() / (call.v.size or 1), out), lse, np.where(empty, 1 / K, weights)


@breaks("MASK-5")
class EmptyRowIsNaN(Faultless):
    def results(self, call, out, lse, weights, visible):
        empty = ~visible.any(-1, keepdims=True)
        return np.where(empty, np.nan, out), lse, np.where(empty, np.nan, weights)


@breaks("MASK-6a")
class FiniteFill(Faultless):
    def masked(self, call, s, visible):
        return np.where(visible.any(-1, keepdims=True), np.where(visible, s, -1e4), -np.inf)


@breaks("MASK-6a")
class MaskedByAddition(Faultless):
    def masked(self, call, s, visible):
        return np.where(visible.any(-1, keepdims=True), s + np.where(visible, 0.0, -1e9), -np.inf)


@breaks("MASK-6b")
class MaskedNaNLeaks(Faultless):
    def times(self, call, weights, v):
        return weights @ v


@breaks("MASK-7")
class NaNTurnsIntoANumber(Faultless):
    def results(self, call, out, lse, weights, visible):
        return np.nan_to_num(out), np.where(np.isnan(lse), 0.0, lse), np.nan_to_num(weights)


@breaks("MASK-7")
class NaNReachesEveryRow(Faultless):
    def results(self, call, out, lse, weights, visible):
        bad = np.isnan(out).any((-1, -2), keepdims=True) if out.size else np.zeros((1,) * out.ndim, bool)
        return np.where(bad, np.nan, out), lse, weights


@breaks("SOFTMAX-1")
class MaximumNotSubtracted(Faultless):
    def top(self, call, s):
        return np.zeros((*s.shape[:-1], 1))


@breaks("SOFTMAX-2")
class SinkIgnored(Faultless):
    def sink_share(self, call, top):
        return 0.0


@breaks("SOFTMAX-2")
class SinkOutsideTheMaximum(Faultless):
    def sink_share(self, call, top):
        return 0.0 if call.sink is None else np.exp(self.sink(call))


@breaks("SOFTMAX-3")
class LseInBaseTwo(Faultless):
    def results(self, call, out, lse, weights, visible):
        return out, lse / np.log(2.0), weights


@breaks("SOFTMAX-3")
class LseAfterDropout(Faultless):
    def results(self, call, out, lse, weights, visible):
        if call.dropout is not None and call.dropout.rate:
            kept = self.dropped(call, weights).sum(-1)
            lse = np.where(kept > 0, lse + np.log(np.where(kept > 0, kept, 1.0)), lse)
        return out, lse, weights


@breaks("SOFTMAX-4")
class WeightsAveragedOverHeads(Faultless):
    def results(self, call, out, lse, weights, visible):
        return out, lse, np.broadcast_to(weights.mean(-3, keepdims=True), weights.shape)


@breaks("DROPOUT-1")
class RateOneIsNaN(Faultless):
    def dropped(self, call, weights):
        everything = call.dropout is not None and call.dropout.rate == 1
        return np.full_like(weights, np.nan) if everything else super().dropped(call, weights)


@breaks("DROPOUT-2")
class DropoutUnscaled(Faultless):
    def dropped(self, call, weights):
        return super().dropped(call, weights) * (1 - (call.dropout.rate if call.dropout else 0))


@breaks("DROPOUT-2")
class DropoutSharedByHeads(Faultless):
    def keep(self, call, shape):
        one = super().keep(call, (*shape[:-3], 1, *shape[-2:]))
        return np.broadcast_to(one, shape)


@breaks("DROPOUT-3")
class KeepMaskOfEachTile(Faultless):
    def keep(self, call, shape):
        first = super().keep(call, (*shape[:-1], min(shape[-1], 64)))
        return np.concatenate([first] * (shape[-1] // 64 + 1), axis=-1)[..., : shape[-1]]


@breaks("DROPOUT-3")
class KeepsWhereOthersDrop(Faultless):
    def keep(self, call, shape):
        u = oracle_random.uniform(oracle_random.key(call.dropout.seed), shape)
        return u >= call.dropout.rate


@breaks("DROPOUT-3")
class KeepMaskByPosition(Faultless):
    def keep(self, call, shape):
        made = super().keep(call, shape)
        return made if call.k_positions is None else np.roll(made, np.asarray(call.k_positions)[0], axis=-1)


@breaks("MASK-4")
class PositionsIgnored(Faultless):
    def rule(self, mask, call, shape):
        return super().rule(mask, call.but(q_positions=None, k_positions=None), shape)


@breaks("MASK-4")
class PositionsOfTheFirstItem(Faultless):
    def rule(self, mask, call, shape):
        if np.ndim(call.q_positions) == 2:
            call = call.but(q_positions=call.q_positions[0], k_positions=call.k_positions[0])
        return super().rule(mask, call, shape)


@breaks("PATH-1")
class OneKeyLostBehindATile(Faultless):
    def masked(self, call, s, visible):
        s = super().masked(call, s, visible)
        if s.shape[-1] > 512:
            s[..., 512] = -np.inf
        return s


@breaks("PATH-1")
class MaskRowCollapsedWithinATile(Faultless):
    def rule(self, mask, call, shape):
        made = super().rule(mask, call, shape)
        return made[..., :1, :] if isinstance(mask, masks.Dense) and shape[-2] > 512 else made


@breaks("PATH-1")
class AskingForLseChangesTheOutput(Faultless):
    def times(self, call, weights, v):
        out = super().times(call, weights, v)
        return out * (1 + 2.0**-20) if call.want == "lse" else out


@breaks("PATH-2")
class WeightsRoundedUnsaid(Faultless):
    def times(self, call, weights, v):
        return super().times(call, rounded(weights, call.dtype).astype(np.float64), v)


@breaks("SHAPE-1")
class LongerValuesAccepted(Faultless):
    def refusal(self, call, q, k, v):
        K = min(k.shape[-2], v.shape[-2])
        return super().refusal(call, q, k[..., :K, :], v[..., :K, :])

    def attend(self, call, q, k, v):
        K = min(k.shape[-2], v.shape[-2])
        return super().attend(call, q, k[..., :K, :], v[..., :K, :])


@breaks("SHAPE-2")
class NoKeysIsNaN(Faultless):
    def results(self, call, out, lse, weights, visible):
        return (out if visible.shape[-1] else np.full_like(out, np.nan)), lse, weights


@breaks("SHAPE-3")
class Float64InFloat32(Faultless):
    def results(self, call, out, lse, weights, visible):
        return tuple(x.astype(np.float32).astype(np.float64) for x in (out, lse, weights))


@breaks("SHAPE-4")
class WritesIntoItsInputs(Faultless):
    def forward(self, call):
        return Result(**{**vars(super().forward(call)), "untouched": False})


@breaks("SCORE-5")
class BiasAddedBeforeTheScale(Faultless):
    def biased(self, call, visible, s, bias):
        visible, s = super().biased(call, visible, s, bias)
        return visible, np.where(np.isfinite(bias), s - bias + bias * self.scale(call, np.asarray(call.q)), s)
