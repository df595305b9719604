"""What a query may not see, and shows all the same: MASK-5 to MASK-7."""

from __future__ import annotations

import numpy as np
from attnspec_conformance import masks

from .faultless import Faultless, breaks
from .numerics import single


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


@breaks("MASK-5")
class LseOfAnEmptyRowIsZero(Faultless):
    def results(self, call, out, lse, weights, visible):
        return out, np.where(lse == -np.inf, 0.0, lse), weights


@breaks("MASK-5")
class LseOfAnEmptyRowIsTheLowestNumber(Faultless):
    def results(self, call, out, lse, weights, visible):
        return out, np.where(lse == -np.inf, float(np.finfo(np.float32).min), lse), weights


@breaks("MASK-5")
class NaNQueryOfAnEmptyRowShows(Faultless):
    def results(self, call, out, lse, weights, visible):
        bad = np.isnan(call.q).any(-1) if call.q.ndim > 2 else np.isnan(call.q).any(-1)[None]
        return np.where(bad[..., None], np.nan, out), lse, weights


@breaks("MASK-6a")
class FiniteFill(Faultless):
    def masked(self, call, s, visible):
        return np.where(visible.any(-1, keepdims=True), np.where(visible, s, -1e4), -np.inf)


@breaks("MASK-6a")
class LowestNumberAsFill(Faultless):
    """Rows without keys are mended; visible scores that are as low are not."""

    def masked(self, call, s, visible):
        lowest = float(np.finfo(np.float32).min)
        return np.where(visible.any(-1, keepdims=True), np.where(visible, np.maximum(s, lowest), lowest), -np.inf)


@breaks("MASK-6a")
class MaskedByAddition(Faultless):
    def masked(self, call, s, visible):
        return np.where(visible.any(-1, keepdims=True), s + np.where(visible, 0.0, -1e9), -np.inf)


@breaks("MASK-6a")
class MaximumOverHiddenScores(Faultless):
    """A large hidden score pushes every visible weight below the least number."""

    def masked(self, call, s, visible):
        self.highest = np.where(np.isfinite(s), s, -np.inf).max(-1, keepdims=True, initial=-np.inf)
        return super().masked(call, s, visible)

    def top(self, call, s):
        top = np.maximum(super().top(call, s), self.highest)
        return np.where(np.isinf(top), 0.0, top)


@breaks("MASK-6a", "MASK-6b")
class LargestKeyOfAllPicksTheArithmetic(Faultless):
    """Keys so small that no score overflows need no maximum; one that a query does not see takes that from it."""

    def attend(self, call, q, k, v):
        self.small = k.size > 0 and np.abs(k).max() < 8
        return super().attend(call, q, k, v)

    def normalised(self, call, s):
        Q, K = s.shape[-2:]
        if call.sink is not None or not (64 <= Q <= 256 and 64 <= K <= 256):
            return super().normalised(call, s)
        top = 0.0 if self.small else self.top(call, s)
        p = single(np.exp(single(s - top)))
        total = p.sum(-1, keepdims=True)
        with np.errstate(divide="ignore"):
            return p / np.where(total == 0, 1.0, total), (top + np.log(total))[..., 0]


@breaks("MASK-6b")
class MaskedNaNLeaks(Faultless):
    """0 times the NaN of a hidden value."""

    def times(self, call, weights, v):
        return weights @ v


@breaks("MASK-6b")
class MaskedKeysLeak(Faultless):
    """-inf is added to the NaN of a hidden key's score."""

    def clean_keys(self, call, k):
        return k

    def masked(self, call, s, visible):
        return s + np.where(visible, 0.0, -np.inf)

    def normalised(self, call, s):
        weights, lse = super().normalised(call, np.where(np.isnan(s), -np.inf, s))
        broken = np.isnan(s).any(-1)
        return np.where(broken[..., None], np.nan, weights), np.where(broken, np.nan, lse)


@breaks("MASK-6b")
class TailBehindTheLengthLeaks(Faultless):
    """Values are cleaned where a mask is an array, and read as they are where it is a length."""

    def times(self, call, weights, v):
        return weights @ v if isinstance(call.mask, masks.Padding) else super().times(call, weights, v)


@breaks("MASK-7")
class NaNTurnsIntoANumber(Faultless):
    def results(self, call, out, lse, weights, visible):
        return np.nan_to_num(out), np.where(np.isnan(lse), 0.0, lse), np.nan_to_num(weights)


@breaks("MASK-7")
class NaNReachesEveryRow(Faultless):
    def results(self, call, out, lse, weights, visible):
        bad = np.isnan(out).any((-1, -2), keepdims=True) if out.size else np.zeros((1,) * out.ndim, bool)
        return np.where(bad, np.nan, out), lse, weights


@breaks("MASK-7")
class NaNInOneColumnOnly(Faultless):
    """A NaN of v spoils its own column, not the row."""

    def results(self, call, out, lse, weights, visible):
        columns = (~np.isfinite(np.asarray(call.v, np.float64))).any(-2, keepdims=True)
        by_value = np.isnan(out) & ~np.isnan(lse)[..., None]
        if call.v.ndim > 2 and columns.shape[:-2] != out.shape[:-2]:
            return out, lse, weights
        return np.where(by_value & ~np.broadcast_to(columns, out.shape), 0.0, out), lse, weights


@breaks("MASK-7")
class InfiniteKeyIsAZero(Faultless):
    """A visible infinite key has weight 0."""

    def attend(self, call, q, k, v):
        hidden = np.isinf(k).any(-1, keepdims=True)
        return super().attend(call, q, np.where(hidden, 0.0, k), v)
