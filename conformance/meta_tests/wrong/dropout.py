"""Wrong dropout of the weights: DROPOUT."""

from __future__ import annotations

import numpy as np
from attnspec_conformance import oracle_random

from .faultless import Faultless, breaks


@breaks("DROPOUT-1")
class RateOneIsNaN(Faultless):
    def dropped(self, call, weights):
        everything = call.dropout is not None and call.dropout.rate == 1
        return np.full_like(weights, np.nan) if everything else super().dropped(call, weights)


@breaks("DROPOUT-1")
class RateZeroRounds(Faultless):
    """1 - rate plus a small number, to be safe."""

    def times(self, call, weights, v):
        safe = call.dropout is not None and call.dropout.rate == 0
        return super().times(call, weights / (1 + 1e-7) if safe else weights, v)


@breaks("DROPOUT-1")
class AlwaysDrops(Faultless):
    """A hidden training flag, with the rate of the last call."""

    def dropped(self, call, weights):
        return weights * 0.9 if call.dropout is not None and not call.dropout.rate else super().dropped(call, weights)


@breaks("DROPOUT-2")
class DropoutUnscaled(Faultless):
    def kept(self, call, weights, keep):
        return np.where(keep, weights, 0.0)


@breaks("DROPOUT-2")
class DropoutScaledByTheRate(Faultless):
    def kept(self, call, weights, keep):
        return np.where(keep, weights / call.dropout.rate, 0.0)


@breaks("DROPOUT-2")
class DropoutRenormalised(Faultless):
    def kept(self, call, weights, keep):
        kept = np.where(keep, weights, 0.0)
        total = kept.sum(-1, keepdims=True)
        return kept / np.where(total == 0, 1.0, total)


@breaks("DROPOUT-2")
class DropoutBeforeSoftmax(Faultless):
    """A dropped score is 0, not a dropped weight."""

    def masked(self, call, s, visible):
        if call.dropout is not None and 0 < call.dropout.rate < 1:
            s = np.where(self.keep(call, s.shape), s / (1 - call.dropout.rate), 0.0)
        return super().masked(call, s, visible)

    def kept(self, call, weights, keep):
        return weights


@breaks("DROPOUT-2")
class DropoutOfTheOutput(Faultless):
    def dropped(self, call, weights):
        return weights

    def times(self, call, weights, v):
        out = super().times(call, weights, v)
        return Faultless.dropped(self, call, out)


@breaks("DROPOUT-2")
class DropoutSharedByHeads(Faultless):
    def keep(self, call, shape):
        return np.broadcast_to(super().keep(call, (*shape[:-3], 1, *shape[-2:])), shape)


@breaks("DROPOUT-2")
class DropoutSharedByTheBatch(Faultless):
    def keep(self, call, shape):
        return np.broadcast_to(super().keep(call, shape[-3:]), shape)


@breaks("DROPOUT-2")
class DropoutOfWholeKeys(Faultless):
    def keep(self, call, shape):
        return np.broadcast_to(super().keep(call, (*shape[:-2], 1, shape[-1])), shape)


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


@breaks("DROPOUT-3")
class KeepMaskOfKeysByQueries(Faultless):
    """Drawn over (..., H, K, Q) and transposed."""

    def keep(self, call, shape):
        return np.swapaxes(super().keep(call, (*shape[:-2], shape[-1], shape[-2])), -1, -2)


@breaks("DROPOUT-3")
class HighWordOfTheSeedLost(Faultless):
    def keep(self, call, shape):
        words = oracle_random.key(call.dropout.seed & 0xFFFFFFFF)
        return oracle_random.bernoulli(words, 1 - call.dropout.rate, shape)


@breaks("DROPOUT-3")
class KeepMaskOfAnotherGenerator(Faultless):
    def keep(self, call, shape):
        return np.random.default_rng(call.dropout.seed).random(shape) >= call.dropout.rate
