"""Wrong masks: MASK-1 to MASK-4."""

from __future__ import annotations

import numpy as np
from attnspec_conformance import masks

from .faultless import Faultless, breaks


@breaks("MASK-1")
class InvertedMask(Faultless):
    def visible(self, call, shape):
        return ~super().visible(call, shape) if isinstance(call.mask, masks.Dense) else super().visible(call, shape)


@breaks("MASK-1")
class MaskAddedAsNumbers(Faultless):
    """True adds 1 to a score, False 0."""

    def masked(self, call, s, visible):
        if not isinstance(call.mask, masks.Dense):
            return super().masked(call, s, visible)
        return s + np.where(visible, 1.0, 0.0)


@breaks("MASK-1")
class ScoresMultipliedByTheMask(Faultless):
    """A hidden score is 0."""

    def masked(self, call, s, visible):
        return np.where(visible.any(-1, keepdims=True), np.where(visible, s, 0.0), -np.inf)


@breaks("MASK-1")
class WeightsMaskedAfterSoftmax(Faultless):
    """Rows no longer sum to 1."""

    def masked(self, call, s, visible):
        self.seen = visible
        return s

    def normalised(self, call, s):
        weights, lse = super().normalised(call, s)
        return np.where(self.seen, weights, 0.0), lse


@breaks("MASK-1")
class LengthsCountTheHiddenKeys(Faultless):
    def padding(self, j, lengths):
        return j >= lengths


@breaks("MASK-2")
class RankThreeTakenForTheBatch(Faultless):
    def dense(self, array, shape):
        taken = array.ndim == 3 and len(shape) == 4 and array.shape[0] == shape[0]
        return array[:, None] if taken else array


@breaks("MASK-2")
class MaskBroadcastFromTheLeft(Faultless):
    """As if (H,) stood for (H, 1, 1)."""

    def dense(self, array, shape):
        fits = array.ndim < len(shape) and all(n in (1, m) for n, m in zip(array.shape, shape, strict=False))
        return array[(..., *(None,) * (len(shape) - array.ndim))] if fits else array


@breaks("MASK-2")
class ShortMaskPaddedWithTrue(Faultless):
    def dense(self, array, shape):
        K, missing = shape[-1], shape[-1] - (array.shape[-1] if array.ndim else 1)
        if array.ndim == 0 or missing <= 0 or array.shape[-1] == 1:
            return array
        return np.concatenate([array, np.ones((*array.shape[:-1], missing), bool)], axis=-1)[..., :K]


@breaks("MASK-2")
class OneMaskForAllHeads(Faultless):
    def dense(self, array, shape):
        return array[..., :1, :, :] if array.ndim > 2 else array


@breaks("MASK-3")
class OrTakenForAnd(Faultless):
    def both(self, one, other):
        return one | other


@breaks("MASK-3")
class AndTakenForOr(Faultless):
    def either(self, one, other):
        return one & other


@breaks("MASK-3")
class TheLastMaskWins(Faultless):
    def both(self, one, other):
        return other


@breaks("MASK-3")
class InverseIgnored(Faultless):
    def inverse(self, made):
        return made


@breaks("MASK-3")
class PaddingHidesQueriesToo(Faultless):
    def rule(self, mask, call, shape):
        made = super().rule(mask, call, shape)
        if isinstance(mask, masks.Padding):
            made = made & (np.arange(shape[-2])[:, None] < np.asarray(mask.lengths)[..., None, None, None])
        return made


@breaks("MASK-3")
class LengthIsTheLastKey(Faultless):
    def padding(self, j, lengths):
        return j <= lengths


@breaks("MASK-3")
class LengthOfTheFirstItemForAll(Faultless):
    def padding(self, j, lengths):
        return super().padding(j, lengths[:1] if lengths.ndim > 3 else lengths)


@breaks("MASK-3")
class CausalOfTheFirstQueryBesideAMaskOfOneRow(Faultless):
    """The triangle has as many rows as the mask that it is combined with."""

    def both(self, one, other):
        triangle = other.ndim < 2 or other.shape[-2] == 1
        return super().both(one[..., :1, :] if triangle and one.shape[-2] > 1 else one, other)


@breaks("MASK-3")
class SegmentZeroTakenForPadding(Faultless):
    def segments(self, q_ids, k_ids):
        return super().segments(q_ids, k_ids) & (q_ids != 0)


@breaks("MASK-3")
class SegmentsSeeEarlierOnes(Faultless):
    def segments(self, q_ids, k_ids):
        return k_ids <= q_ids


@breaks("MASK-4")
class CausalOffByOne(Faultless):
    def causal(self, ahead):
        return ahead < 0


@breaks("MASK-4")
class CausalSeesOneAhead(Faultless):
    def causal(self, ahead):
        return ahead <= 1


@breaks("MASK-4")
class AntiCausal(Faultless):
    def causal(self, ahead):
        return ahead >= 0


@breaks("MASK-4")
class BottomRightForTopLeft(Faultless):
    def offset(self, offset, align, Q, K):
        return super().offset(offset, "end", Q, K)


@breaks("MASK-4")
class TopLeftForBottomRight(Faultless):
    def offset(self, offset, align, Q, K):
        return super().offset(offset, "start", Q, K)


@breaks("MASK-4")
class OffsetSubtracted(Faultless):
    def offset(self, offset, align, Q, K):
        return super().offset(-np.asarray(offset), align, Q, K)


@breaks("MASK-4")
class OffsetOfTheFirstItemForAll(Faultless):
    def offset(self, offset, align, Q, K):
        return super().offset(np.ravel(offset)[0], align, Q, K)


@breaks("MASK-4")
class WindowWithoutItsLastKey(Faultless):
    """A window of w keys where w before are meant."""

    def window(self, ahead, left, right):
        return super().window(ahead, left if left is None else left - 1, right)


@breaks("MASK-4")
class WindowRightExclusive(Faultless):
    def window(self, ahead, left, right):
        return super().window(ahead, left, right if right is None else right - 1)


@breaks("MASK-4")
class WindowWiderByOne(Faultless):
    def window(self, ahead, left, right):
        return super().window(ahead, left if left is None else left + 1, right)


@breaks("MASK-4")
class WindowSidesSwapped(Faultless):
    def window(self, ahead, left, right):
        return super().window(ahead, right, left)


@breaks("MASK-4")
class UnboundedTakenForZero(Faultless):
    def window(self, ahead, left, right):
        return super().window(ahead, left or 0, right or 0)


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
