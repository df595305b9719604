"""Wrong arithmetic: SHAPE-3, and what it does to sums."""

from __future__ import annotations

import numpy as np
from attnspec_conformance.problems import rounded

from .faultless import Faultless, breaks


def single(x):
    """Rounded to float32."""
    return np.asarray(x, np.float32).astype(np.float64)


def bfloat16(x):
    """Rounded to bfloat16's 8 bits."""
    return rounded(x, "bfloat16").astype(np.float64)


def tf32(x):
    """Rounded to the 11 bits that tensor cores take of a float32."""
    step = 2.0 ** (np.floor(np.log2(np.where(x == 0, 1.0, np.abs(x)))) - 10)
    return np.where(np.isfinite(x), np.round(x / step) * step, x)


@breaks("SHAPE-3")
class Float64InFloat32(Faultless):
    def results(self, call, out, lse, weights, visible):
        return tuple(map(single, (out, lse, weights)))


@breaks("SHAPE-3")
class Float64ProductsInFloat32(Faultless):
    def product(self, call, q, k):
        return single(super().product(call, single(q), single(k)))


@breaks("SHAPE-3")
class Bfloat16ProductsInFloat32(Faultless):
    """A lowered default precision of matrix products."""

    def product(self, call, q, k):
        return super().product(call, bfloat16(q), bfloat16(k))


@breaks("SHAPE-3")
class Tf32ProductsInFloat32(Faultless):
    def product(self, call, q, k):
        return super().product(call, tf32(q), tf32(k))


@breaks("SHAPE-3")
class Tf32ValuesInFloat32(Faultless):
    def times(self, call, weights, v):
        return super().times(call, tf32(weights), tf32(v))


@breaks("SHAPE-3")
class Bfloat16WeightsInFloat32(Faultless):
    """Autocast: the weights leave softmax in half precision."""

    def times(self, call, weights, v):
        return super().times(call, bfloat16(weights), v)


@breaks("SHAPE-3")
class HalfScores(Faultless):
    """Half inputs whose scores are half too, where nothing overflows."""

    def product(self, call, q, k):
        s = super().product(call, q, k)
        return np.where(np.abs(s) < 6e4, rounded(s, call.dtype).astype(np.float64), s)


@breaks("SHAPE-3")
class HalfOutputRoundedTwice(Faultless):
    """To bfloat16 on the way to float16."""

    def results(self, call, out, lse, weights, visible):
        return (bfloat16(out) if call.dtype == "float16" else out), lse, weights


@breaks("SOFTMAX-1")
class SumSaturatesInHalf(Faultless):
    """A running sum of ones in bfloat16 stops at 256."""

    def normalised(self, call, s):
        weights, lse = super().normalised(call, s)
        most = np.exp(lse - np.max(s, axis=-1, initial=-np.inf))
        stuck = (call.dtype == "bfloat16") & (most > 256)
        return np.where(stuck[..., None], weights * (most / 256)[..., None], weights), lse


@breaks("SHAPE-3")
class LowPrecisionExponential(Faultless):
    """A table of 2^12 powers."""

    def normalised(self, call, s):
        step = 2.0**-12
        return super().normalised(call, np.where(np.isfinite(s), np.round(s / step) * step, s))
