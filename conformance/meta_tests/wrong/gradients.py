"""Wrong derivatives with respect to q, k and v."""

from __future__ import annotations

import numpy as np
from attnspec_conformance import masks

from .faultless import Faultless, breaks
from .numerics import bfloat16, single


@breaks("SCORE-1")
class GradientWithoutTheScale(Faultless):
    def of_product(self, call, tape, ds):
        dq, dk = super().of_product(call, tape, ds)
        return dq / self.scale(call, tape.q), dk


@breaks("SCORE-1")
class GradientOfKeysWithTheScaleTwice(Faultless):
    def of_product(self, call, tape, ds):
        dq, dk = super().of_product(call, tape, ds)
        return dq, dk * self.scale(call, tape.q)


@breaks("SCORE-1")
class GradientOfTheExponentialAlone(Faultless):
    """The sum in the denominator is taken for a constant."""

    def delta(self, weights, dp):
        return 0.0


@breaks("SCORE-1")
class GradientWithTheWrongSign(Faultless):
    def of_product(self, call, tape, ds):
        dq, dk = super().of_product(call, tape, ds)
        return -dq, dk


@breaks("SCORE-3")
class GradientOfTheFirstHeadOfAGroup(Faultless):
    def of_group(self, x, G):
        return x.reshape(*x.shape[:-3], G, x.shape[-3] // max(G, 1), *x.shape[-2:])[..., 0, :, :]


@breaks("SCORE-3")
class GradientAveragedOverAGroup(Faultless):
    def of_group(self, x, G):
        return super().of_group(x, G) / (x.shape[-3] // max(G, 1))


@breaks("SCORE-3")
class GradientOfTiledHeads(Faultless):
    def of_group(self, x, G):
        return x.reshape(*x.shape[:-3], x.shape[-3] // max(G, 1), G, *x.shape[-2:]).sum(-4)


@breaks("SCORE-4")
class GradientForgetsTheSink(Faultless):
    def saved_weights(self, call, tape):
        total = tape.weights.sum(-1, keepdims=True)
        return tape.weights / np.where(total == 0, 1.0, total)


@breaks("SCORE-4")
class GradientForgetsTheBias(Faultless):
    def saved_weights(self, call, tape):
        if call.bias is None:
            return tape.weights
        bias = np.broadcast_to(np.asarray(call.bias, np.float64), tape.s.shape)
        return self.normalised(call, np.where(tape.visible, tape.s - bias, -np.inf))[0]


@breaks("SHAPE-3")
class GradientsOfFloat64InFloat32(Faultless):
    def gradients(self, call, tape):
        return map(single, super().gradients(call, tape))


@breaks("DROPOUT-2")
class GradientForgetsDropout(Faultless):
    def factors(self, call, tape):
        return np.ones_like(tape.weights)


@breaks("DROPOUT-2")
class GradientDrawsDropoutAgain(Faultless):
    def factors(self, call, tape):
        if call.dropout is not None:
            call = call.but(dropout=masks.Dropout(call.dropout.rate, call.dropout.seed + 1))
        return super().factors(call, tape)


@breaks("SOFTMAX-3")
class GradientOfLseIgnored(Faultless):
    def of_lse(self, call):
        return 0.0


@breaks("SOFTMAX-3")
class GradientOfLseSubtracted(Faultless):
    def of_lse(self, call):
        return -super().of_lse(call)


@breaks("MASK-5")
class GradientOfAnEmptyRowIsNaN(Faultless):
    def of_scores(self, call, tape, weights, dp):
        return np.where(tape.visible.any(-1, keepdims=True), super().of_scores(call, tape, weights, dp), np.nan)


@breaks("MASK-6c")
class GradientMultipliesHiddenValuesByZero(Faultless):
    def of_weights(self, g, tape):
        return g @ np.swapaxes(tape.v, -1, -2)


@breaks("MASK-6c")
class GradientOfHiddenWeightsOverflows(Faultless):
    """The product with a hidden value of 3e38 is infinite in float32, and 0 times it NaN."""

    def of_weights(self, g, tape):
        return single(g @ np.swapaxes(np.where(np.isfinite(tape.v), tape.v, 0.0), -1, -2))


@breaks("MASK-6c")
class GradientLeaksToHiddenKeys(Faultless):
    def saved_weights(self, call, tape):
        return np.where(tape.visible, tape.weights, 1e-9)


@breaks("MASK-7")
class GradientOfNaNIsZero(Faultless):
    def spoilt(self, x, rows):
        return x


@breaks("MASK-7")
class GradientOfNaNReachesEveryRow(Faultless):
    def spoilt(self, x, rows):
        return super().spoilt(x, np.broadcast_to(rows.any(-1, keepdims=True), rows.shape))


@breaks("SCORE-1")
class GradientWithALoweredPrecision(Faultless):
    """The products of the backward pass in bfloat16, whatever the inputs are."""

    def of_product(self, call, tape, ds):
        q, k = bfloat16(tape.q), bfloat16(tape.k)
        return super().of_product(call, tape._replace(q=q, k=k), bfloat16(ds))
