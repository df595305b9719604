"""Wrong shapes, strides, paths and promises: SHAPE and PATH."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from attnspec_conformance import masks
from attnspec_conformance.problems import rounded
from attnspec_conformance.trials import Result

from .faultless import Faultless, breaks


@breaks("SHAPE-1")
class LongerValuesAccepted(Faultless):
    def operands(self, call, q, k, v):
        K = min(k.shape[-2], v.shape[-2])
        return q, k[..., :K, :], v[..., :K, :]


@breaks("SHAPE-1")
class WiderKeysAccepted(Faultless):
    def operands(self, call, q, k, v):
        D = min(q.shape[-1], k.shape[-1])
        return q[..., :D], k[..., :D], v


@breaks("SHAPE-1")
class HeadsThatDoNotDivideAccepted(Faultless):
    def operands(self, call, q, k, v):
        H, G = (x.shape[-3] if x.ndim > 2 else 1 for x in (q, k))
        return (q, k, v) if H % (G or 1) == 0 else (q, *(x[..., :1, :, :] for x in (k, v)))


@breaks("SHAPE-1")
class RefusalsWithoutNumbers(Faultless):
    def refusal(self, call, q, k, v):
        return "shapes do not match" if super().refusal(call, q, k, v) else None


@breaks("SHAPE-1")
class BatchItemsSeeEachOther(Faultless):
    def operands(self, call, q, k, v):
        return (q, np.roll(k, 1, axis=0), v) if k.ndim > 3 else (q, k, v)


@breaks("SHAPE-2")
class NoKeysIsNaN(Faultless):
    def results(self, call, out, lse, weights, visible):
        return (out if visible.shape[-1] else np.full_like(out, np.nan)), lse, weights


@breaks("SHAPE-2")
class ValuesAsWideAsKeys(Faultless):
    def refusal(self, call, q, k, v):
        return super().refusal(call, q, k, v) or (f"E={v.shape[-1]}" if v.shape[-1] != k.shape[-1] else None)


@breaks("SHAPE-2")
class EmptyAxesRefused(Faultless):
    def refusal(self, call, q, k, v):
        return super().refusal(call, q, k, v) or (None if q.size and k.size and v.size else "an axis is empty")


@breaks("SHAPE-2")
class LeadingAxesNotBroadcast(Faultless):
    def refusal(self, call, q, k, v):
        lead = {x.shape[:-3] for x in (q, k, v)}
        return super().refusal(call, q, k, v) or (f"leading axes {lead}" if len(lead) > 1 else None)


@breaks("SHAPE-2")
class HeadAxisLeftOnRankTwo(Faultless):
    def answer(self, call):
        if call.q.ndim > 2:
            return super().answer(call)
        return super().answer(call.but(q=call.q[None], k=call.k[None], v=call.v[None]))


@breaks("SHAPE-4")
class WritesIntoItsInputs(Faultless):
    """Scales q where it lies."""

    def operands(self, call, q, k, v):
        if q.dtype.kind == "f":
            q *= 0.5
        return 2 * q, k, v


@breaks("SHAPE-4")
class ContiguityAssumed(Faultless):
    """Reads the memory of a transposed array as if its rows lay one behind another."""

    def operands(self, call, q, k, v):
        if call.layout != "transposed":
            return q, k, v
        return tuple(np.swapaxes(x, -1, -2).copy().reshape(x.shape) for x in (q, k, v))


@breaks("SHAPE-4")
class NegativeStridesIgnored(Faultless):
    def operands(self, call, q, k, v):
        return (q, k, np.flip(v)) if call.layout == "reversed" else (q, k, v)


@breaks("SHAPE-4")
class ReadOnlyTakesAnotherPath(Faultless):
    def times(self, call, weights, v):
        out = super().times(call, weights, v)
        return out * (1 + 2.0**-20) if call.layout == "readonly" else out


@breaks("SHAPE-3")
class LyingCapability(Faultless):
    """Declares float64 and gives back float32."""

    def answer(self, call):
        result = super().answer(call)
        if call.dtype != "float64" or result.error:
            return result
        return replace(result, dtype="float32")


@breaks("SHAPE-3")
class LyingCapabilityOfHalf(Faultless):
    """Declares bfloat16 and has no such function."""

    def answer(self, call):
        if call.dtype == "bfloat16":
            return Result(error="DTypeError", message="not implemented for bfloat16")
        return super().answer(call)


@breaks("PATH-1")
class OneKeyLostBehindATile(Faultless):
    def masked(self, call, s, visible):
        s = super().masked(call, s, visible)
        if s.shape[-1] > 512:
            s[..., 512] = -np.inf
        return s


@breaks("PATH-1")
class OneKeyInAThousandLost(Faultless):
    def masked(self, call, s, visible):
        s = super().masked(call, s, visible)
        s[..., 999::1000] = -np.inf
        return s


@breaks("PATH-1")
class MaskRowCollapsedWithinATile(Faultless):
    def dense(self, array, shape):
        return array[..., :1, :] if array.ndim > 1 and shape[-2] > 512 else array


@breaks("PATH-1")
class AskingForLseChangesTheOutput(Faultless):
    def times(self, call, weights, v):
        out = super().times(call, weights, v)
        return out * (1 + 2.0**-20) if call.want == "lse" else out


@breaks("PATH-1")
class PortableIsAnotherFunction(Faultless):
    def scale(self, call, q):
        return super().scale(call, q) * (1.001 if call.implementation == "portable" else 1.0)


@breaks("PATH-1")
class LaterTilesForgetTheMaximum(Faultless):
    """The sums so far are not rescaled when a later tile has a greater score."""

    def normalised(self, call, s):
        if s.shape[-1] <= 512:
            return super().normalised(call, s)
        first, then = np.max(s[..., :512], -1, keepdims=True), np.max(s[..., 512:], -1, keepdims=True)
        lost = np.where(np.isfinite(first) & np.isfinite(then), np.maximum(then - first, 0.0), 0.0)
        return super().normalised(call, np.concatenate([s[..., :512] + lost, s[..., 512:]], -1))


@breaks("PATH-2")
class WeightsRoundedUnsaid(Faultless):
    def times(self, call, weights, v):
        return super().times(call, rounded(weights, call.dtype).astype(np.float64), v)


@breaks("MASK-4", "PATH-1")
class RangesAreNotPositions(Faultless):
    """Positions count where they are arrays, and are ignored where they are ranges."""

    def rule(self, mask, call, shape):
        if isinstance(call.q_positions, range) and not isinstance(mask, masks.Dense):
            call = call.but(q_positions=None, k_positions=None)
        return super().rule(mask, call, shape)
