"""Wrong ways to divide a call among workers: SHARD."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from attnspec_conformance import masks
from attnspec_conformance.problems import rounded
from attnspec_conformance.trials import Result

from .faultless import Faultless, breaks


class Divided(Faultless):
    """Divides the keys where it is told to divide them: each shard by the book, merged by their lse."""

    every_shard_has_the_sink = False

    def answer(self, call):
        shards = call.shards
        if shards is None or shards.along not in ("sequence", "keys"):
            return super().answer(call)
        size = call.k.shape[-2] // shards.n
        parts = [self.part(call, slice(n * size, (n + 1) * size)) for n in range(shards.n)]
        out, lse = self.merged(*(np.stack(x) for x in zip(*parts, strict=True)))
        wide = "float64" if call.dtype == "float64" else "float32"
        out, lse = (rounded(x, kind).astype(np.float64) for x, kind in ((out, call.dtype), (lse, wide)))
        return Result(out=out, dtype=call.dtype, lse=lse, lse_dtype=wide)

    def part(self, call, rows):
        """(out, lse) of some of the keys."""
        shape, self.rows, self.keys = (*call.q.shape[:-1], call.k.shape[-2]), rows, call.k.shape[-2]
        self.places = np.arange(self.keys) if call.k_positions is None else call.k_positions
        bias = call.bias
        own = call.but(
            k=call.k[..., rows, :], v=call.v[..., rows, :], want="lse", dtype="float64", shards=None,
            mask=None if call.mask is None else masks.Dense(self.seen(call, shape)[..., rows]),
            bias=bias if bias is None or bias.shape[-1] == 1 else bias[..., rows],
            sink=call.sink if rows.start == 0 or self.every_shard_has_the_sink else None,
            q_positions=None, k_positions=None,
        )  # fmt: skip
        result = super().answer(own)
        return result.out, result.lse

    def seen(self, call, shape):
        return np.broadcast_to(masks.pairs(call.mask, shape, call.q_positions, call.k_positions), shape)

    def keep(self, call, shape):
        return super().keep(call, (*shape[:-1], self.keys))[..., self.rows]

    def merged(self, outs, lses):
        top = np.max(lses, axis=0)
        shares = np.exp(lses - np.where(np.isinf(top), 0.0, top))
        total = np.sum(shares, axis=0)
        some = np.where(total == 0, 1.0, total)
        out = np.sum(np.where(shares[..., None] == 0, 0.0, shares[..., None] * outs), axis=0) / some[..., None]
        return out, np.where(total == 0, -np.inf, top + np.log(some))

    def pulled(self, call):
        return super().pulled(call.but(shards=None))


@breaks("SHARD-1")
class ShardsCountAlike(Divided):
    """The mean of their outputs."""

    def merged(self, outs, lses):
        return np.mean(outs, axis=0), super().merged(outs, lses)[1]


@breaks("SHARD-1")
class MergedWithoutTheMaximum(Divided):
    def merged(self, outs, lses):
        shares = np.exp(lses)
        total = np.sum(shares, axis=0)
        return np.sum(shares[..., None] * outs, axis=0) / total[..., None], np.log(total)


@breaks("SHARD-2")
class EveryShardCountsItsKeysFromZero(Divided):
    def seen(self, call, shape):
        size, K = self.rows.stop - self.rows.start, shape[-1]
        local = call.but(k_positions=np.arange(K) % size)
        return super().seen(local, shape)


@breaks("SHARD-2")
class EveryShardHasTheSink(Divided):
    every_shard_has_the_sink = True


@breaks("SHARD-2", "DROPOUT-3")
class EveryShardDropsTheSame(Divided):
    def keep(self, call, shape):
        return Faultless.keep(self, call, shape)


@breaks("SHARD-2")
class ShardsDropByPosition(Divided):
    def keep(self, call, shape):
        return Faultless.keep(self, call, (*shape[:-1], self.keys))[..., self.places[self.rows]]


@breaks("SHARD-3")
class WhatShardsHoldIsMultipliedByZero(Divided):
    """A key that is hidden from a row adds nothing to it, times its value."""

    def part(self, call, rows):
        out, lse = super().part(call, rows)
        return out + 0.0 * np.sum(call.v[..., rows, :], axis=(-2, -3))[..., None, None, :], lse


@breaks("SHARD-3")
class RowsThatSeeNoShardAreNaN(Divided):
    """exp(-inf - -inf)."""

    def merged(self, outs, lses):
        out, lse = super().merged(outs, lses)
        return np.where((lse == -np.inf)[..., None], np.nan, out), lse


@breaks("SHARD-3")
class EmptyShardsGiveTheMeanTimesZero(Divided):
    def part(self, call, rows):
        out, lse = super().part(call, rows)
        return np.where(
            (lse == -np.inf)[..., None], np.mean(call.v[..., rows, :], axis=(-2, -3))[..., None, None, :], out
        ), lse

    def merged(self, outs, lses):
        out, lse = super().merged(outs, lses)
        return out + np.sum(0.0 * outs, axis=0), lse


@breaks("SHARD-4")
class GradientsOfTheLastShardAreLost(Divided):
    """Its neighbour never asked for them."""

    def pulled(self, call):
        result, shards = super().pulled(call), call.shards
        if shards is None or shards.along not in ("sequence", "keys") or shards.n == 1:
            return result
        own = np.arange(call.k.shape[-2])[:, None] < call.k.shape[-2] // shards.n * (shards.n - 1)
        return replace(result, dk=np.where(own, result.dk, 0.0), dv=np.where(own, result.dv, 0.0))


@breaks("SHARD-5")
class ShardsAreRoundedBeforeTheyAreMerged(Divided):
    def part(self, call, rows):
        return tuple(x.astype(np.float32).astype(np.float64) for x in super().part(call, rows))
