"""Wrong normalisations: SOFTMAX."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .faultless import Faultless, breaks


@breaks("SOFTMAX-1")
class MaximumNotSubtracted(Faultless):
    def top(self, call, s):
        return np.zeros((*s.shape[:-1], 1))


@breaks("SOFTMAX-1")
class MinimumSubtracted(Faultless):
    def top(self, call, s):
        least = np.min(np.where(s == -np.inf, np.inf, s), axis=-1, keepdims=True, initial=np.inf)
        return np.where(np.isinf(least), 0.0, least)


@breaks("SOFTMAX-1")
class OneMaximumForAllRows(Faultless):
    """A row far below the greatest of the head has nothing left."""

    def top(self, call, s):
        top = super().top(call, s)
        return np.broadcast_to(top.max(axis=-2, keepdims=True, initial=-np.inf), top.shape) if top.size else top


@breaks("SOFTMAX-1")
class ScoresClipped(Faultless):
    """To what exp of a half-precision number can hold."""

    def masked(self, call, s, visible):
        return super().masked(call, np.clip(s, -11.0, 11.0), visible)


@breaks("SOFTMAX-1")
class InfiniteScoreIsTheLargestNumber(Faultless):
    def biased(self, call, visible, s, bias):
        return super().biased(call, visible, s, np.nan_to_num(bias, posinf=3e38, neginf=-np.inf))

    def bias(self, call, shape):
        return np.nan_to_num(super().bias(call, shape), posinf=3e38, neginf=-np.inf)


@breaks("SOFTMAX-4")
class SoftmaxOverQueries(Faultless):
    def normalised(self, call, s):
        weights, lse = super().normalised(call, s)
        p = np.exp(np.where(np.isfinite(lse)[..., None], np.log(weights) + lse[..., None], -np.inf))
        total = p.sum(-2, keepdims=True)
        return p / np.where(total == 0, 1.0, total), lse


@breaks("SOFTMAX-4")
class SoftmaxOverHeads(Faultless):
    def normalised(self, call, s):
        weights, lse = super().normalised(call, s)
        p = np.exp(np.where(np.isfinite(lse)[..., None], np.log(weights) + lse[..., None], -np.inf))
        total = p.sum(-3, keepdims=True)
        return p / np.where(total == 0, 1.0, total), lse


@breaks("SOFTMAX-1")
class OneAddedToTheDenominator(Faultless):
    """Softmax plus one, where nobody asked for a sink."""

    def sink_share(self, call, top):
        return super().sink_share(call, top) + np.exp(-np.abs(top))


@breaks("SOFTMAX-2")
class SinkInTheMaximumOnly(Faultless):
    def sink_share(self, call, top):
        return 0.0


@breaks("SOFTMAX-2")
class SinkCountedTwice(Faultless):
    def sink_share(self, call, top):
        return 2 * super().sink_share(call, top)


@breaks("SOFTMAX-2")
class SinkCountedForEveryTile(Faultless):
    """Once for each 4 keys."""

    def normalised(self, call, s):
        self.tiles = -(-s.shape[-1] // 4)
        return super().normalised(call, s)

    def sink_share(self, call, top):
        return max(self.tiles, 1) * super().sink_share(call, top)


@breaks("SOFTMAX-2")
class SinkOutsideTheMaximum(Faultless):
    def sink_share(self, call, top):
        return 0.0 if call.sink is None else np.exp(self.sink(call))


@breaks("SOFTMAX-2")
class SinkOfTheFirstHead(Faultless):
    def sink(self, call):
        return super().sink(call).ravel()[0]


@breaks("SOFTMAX-2")
class SinkSharesTheOutput(Faultless):
    """Its weight goes to the first value."""

    def times(self, call, weights, v):
        rest = 1 - weights.sum(-1, keepdims=True)
        given = call.sink is not None and v.shape[-2]
        return super().times(call, weights, v) + (rest * v[..., :1, :] if given else 0.0)


@breaks("SOFTMAX-2")
class SinkOfAnEmptyRowIsLost(Faultless):
    def results(self, call, out, lse, weights, visible):
        return out, np.where(visible.any(-1), lse, -np.inf), weights


@breaks("SOFTMAX-3")
class LseWithoutTheSink(Faultless):
    def normalised(self, call, s):
        weights, lse = super().normalised(call, s)
        share = weights.sum(-1)
        return weights, np.where(share > 0, lse + np.log(np.where(share > 0, share, 1.0)), lse)


@breaks("SOFTMAX-3")
class LseInBaseTwo(Faultless):
    def results(self, call, out, lse, weights, visible):
        return out, lse / np.log(2.0), weights


@breaks("SOFTMAX-3")
class LseWithoutTheMaximum(Faultless):
    def results(self, call, out, lse, weights, visible):
        top = np.max(np.where(visible, weights, 0.0), axis=-1, initial=0.0)
        return out, np.where(top > 0, -np.log(np.where(top > 0, top, 1.0)), lse), weights


@breaks("SOFTMAX-3")
class LseIsTheSum(Faultless):
    def results(self, call, out, lse, weights, visible):
        return out, np.exp(lse), weights


@breaks("SOFTMAX-3")
class LseAfterDropout(Faultless):
    def results(self, call, out, lse, weights, visible):
        if call.dropout is not None and call.dropout.rate:
            kept = self.dropped(call, weights).sum(-1)
            lse = np.where(kept > 0, lse + np.log(np.where(kept > 0, kept, 1.0)), lse)
        return out, lse, weights


@breaks("SOFTMAX-3")
class LseInHalfPrecision(Faultless):
    def answer(self, call):
        result = super().answer(call)
        half = result.lse is not None and call.dtype == "bfloat16"
        return replace(result, lse_dtype=call.dtype) if half else result


@breaks("SOFTMAX-4")
class WeightsAveragedOverHeads(Faultless):
    def results(self, call, out, lse, weights, visible):
        return out, lse, np.broadcast_to(weights.mean(-3, keepdims=True), weights.shape)


@breaks("SOFTMAX-4")
class WeightsAfterDropout(Faultless):
    def results(self, call, out, lse, weights, visible):
        return out, lse, self.dropped(call, weights)


@breaks("SOFTMAX-4")
class WeightsWithoutTheSinksShare(Faultless):
    def results(self, call, out, lse, weights, visible):
        total = weights.sum(-1, keepdims=True)
        return out, lse, weights / np.where(total == 0, 1.0, total)


@breaks("SOFTMAX-4")
class WeightsBeforeTheMask(Faultless):
    def masked(self, call, s, visible):
        self.all = super().normalised(call, s)[0]
        return super().masked(call, s, visible)

    def results(self, call, out, lse, weights, visible):
        return out, lse, self.all
