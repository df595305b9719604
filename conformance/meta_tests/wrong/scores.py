"""Wrong scores: SCORE."""

from __future__ import annotations

import numpy as np
from attnspec_conformance.problems import rounded

from .faultless import Faultless, breaks


@breaks("SCORE-1")
class NoScale(Faultless):
    def scale(self, call, q):
        return 1.0 if call.scale is None else call.scale


@breaks("SCORE-1")
class ScaleOfTheModel(Faultless):
    def scale(self, call, q):
        return (q.shape[-1] * q.shape[-3]) ** -0.5 if call.scale is None else call.scale


@breaks("SCORE-1")
class ScaleSquared(Faultless):
    def scale(self, call, q):
        return super().scale(call, q) ** 2


@breaks("SCORE-1")
class ScaleOffByOneIn100000(Faultless):
    def scale(self, call, q):
        return super().scale(call, q) * (1 + 1e-5)


@breaks("SCORE-1")
class ZeroScaleTakenForNone(Faultless):
    def scale(self, call, q):
        return call.scale or (q.shape[-1] or 1) ** -0.5


@breaks("SCORE-1")
class ScaleTakenForPositive(Faultless):
    """Its root is split between q and k."""

    def scale(self, call, q):
        return abs(super().scale(call, q))


@breaks("SHAPE-2")
class ScaleOfWidthZeroIsInfinite(Faultless):
    def scale(self, call, q):
        return super().scale(call, q) if q.shape[-1] else np.inf


@breaks("SCORE-2")
class HalfNotWidened(Faultless):
    def product(self, call, q, k):
        return rounded(super().product(call, q, k), call.dtype).astype(np.float64)


@breaks("SCORE-3")
class TiledHeads(Faultless):
    def repeat(self, x, times):
        return np.concatenate([x] * times, axis=-3) if times else x


@breaks("SCORE-3")
class TiledHeadsOfValues(Faultless):
    def repeat_values(self, v, times):
        return np.concatenate([v] * times, axis=-3) if times else v


@breaks("SCORE-3")
class EveryHeadReadsTheFirst(Faultless):
    """Multi-query where grouped heads are meant."""

    def repeat(self, x, times):
        return x if times == 1 else np.repeat(x[..., :1, :, :], times * x.shape[-3], axis=-3)


@breaks("SCORE-4")
class SoftcapIgnored(Faultless):
    def capped(self, call, s):
        return s


@breaks("SCORE-4")
class SoftcapBeforeTheScale(Faultless):
    def scaled(self, call, q, s):
        return super().capped(call, s) * self.scale(call, q)

    def capped(self, call, s):
        return s


@breaks("SCORE-4")
class SoftcapAfterBias(Faultless):
    def capped(self, call, s):
        return s

    def biased(self, call, visible, s, bias):
        visible, s = super().biased(call, visible, s, bias)
        return visible, super().capped(call, s)


@breaks("SCORE-4")
class SoftcapAfterTheMask(Faultless):
    """c * tanh(-inf / c) is -c: a number."""

    def masked(self, call, s, visible):
        made = super().masked(call, s, visible)
        return made if call.softcap is None else np.where(visible.any(-1, keepdims=True), self.capped(call, made), made)


@breaks("SCORE-4")
class SoftcapNotScaledBack(Faultless):
    def capped(self, call, s):
        return s if call.softcap is None else np.tanh(s / call.softcap)


@breaks("SCORE-5")
class BiasAddedBeforeTheScale(Faultless):
    def biased(self, call, visible, s, bias):
        visible, s = super().biased(call, visible, s, bias)
        return visible, np.where(np.isfinite(bias), s - bias + bias * self.scale(call, np.asarray(call.q)), s)


@breaks("SCORE-5")
class BiasSubtracted(Faultless):
    def biased(self, call, visible, s, bias):
        return super().biased(call, visible, s, np.where(np.isfinite(bias), -bias, bias))


@breaks("SCORE-5")
class BiasOfTheFirstHeadForAll(Faultless):
    def bias(self, call, shape):
        bias = super().bias(call, shape)
        return bias[..., :1, :, :] if bias.ndim > 2 else bias


@breaks("SCORE-5")
class BiasOfTheFirstItemForAll(Faultless):
    def bias(self, call, shape):
        bias = super().bias(call, shape)
        return bias[:1] if bias.ndim > 3 else bias


@breaks("SCORE-5")
class LowestNumberTakenForAMask(Faultless):
    def biased(self, call, visible, s, bias):
        return super().biased(call, visible, s, np.where(bias < -1e30, -np.inf, bias))


@breaks("SCORE-5")
class MinusInfinityTakenForALargeNumber(Faultless):
    """A row without keys is then the mean."""

    def biased(self, call, visible, s, bias):
        return super().biased(call, visible, s, np.where(bias == -np.inf, -1e9, bias))


@breaks("SCORE-5")
class BiasRoundedToTheInput(Faultless):
    def bias(self, call, shape):
        return rounded(call.bias, call.dtype).astype(np.float64)


@breaks("SCORE-5")
class WiderBiasWidensTheOutput(Faultless):
    def answer(self, call):
        wide = call.bias_dtype == "float64" and call.dtype == "float32"
        return super().answer(call.but(dtype="float64") if wide else call)


@breaks("MASK-3")
class BiasIgnoredBesideAMask(Faultless):
    def biased(self, call, visible, s, bias):
        return (visible, s) if call.mask is not None else super().biased(call, visible, s, bias)


@breaks("MASK-3")
class MaskIgnoredBesideABias(Faultless):
    def visible(self, call, shape):
        return super().visible(call if call.bias is None else call.but(mask=None), shape)
