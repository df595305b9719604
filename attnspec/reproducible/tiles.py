"""A tile of scores and values: weights as integers, their sums, and how the sums of chunks of keys are put together.

**Scores** are in units of which an octave, a factor of two in the weight, has a power of two: the reference of a row of
a chunk, its maximum rounded up to a whole octave, is exact at every magnitude, and to change it is exact.

**Weights.** 2**z = P(u)**(2**14), u = ln(2) z / 2**14: one quadratic and 14 squarings, whose products meet nothing but
the next product and one last rounding to an integer below 2**45. With the scores in the right units u needs no product.

**Values.** Where the rows of v have several powers of two, the weights are multiplied by them and rounded once more,
relative to the largest product. Then they are cut to the bits that their products with slices of values leave them.

With `eager`, arrays that nobody else has are overwritten. The bits are the same.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .._compat import Array, Namespace, turned
from ..host import beside
from .grid import exponent, power_of_two, settled
from .slices import POINT, SLICE, scaled, whole

OCTAVE = 2.0**-15  # units of a score
NAT = OCTAVE * 1.4426950408889634

# x**2 + _OFFSET, x = z + _CENTRE in units, is 2 _OFFSET P(u) with P(u) = ((1 + u)**2 + 1) / 2, and u is 0 6.38 octaves
# below the reference. _OFFSET is a little off what Taylor's polynomial has, so that the error over twice that range is
# a quarter of Taylor's: 0.23 units of 2**-24 of the weight. In these units of a score the squarings lead to
# 2**(948.996 + z), so that weights are integers below 2**45 times POINT.
_SQUARINGS, _BITS = 14, 45
_CENTRE, _OFFSET = 0.7215422168374062, 0.5203422357741704
LOG_UNIT = 31.188923181728367  # the natural logarithm of the integer that stands for a weight of 1

# What stands for the reference of a row that has seen nothing: below that of every score.
NOWHERE = -(2.0**1000)

# What stands for a score that is no number, and what tells it from scores.
BROKEN, _BROKEN_FROM = 2.0**980, 2.0**975


class Sums(NamedTuple):
    """Of the rows of a chunk, or of all so far: references in octaves, totals and sums of weights times values."""

    reference: Array
    total: Array
    out: Array


class Values(NamedTuple):
    """Rows of v as `v_slices` has them, and what is known of a call: shortcuts that change no bit."""

    slices: Array
    powers: Array
    flat: bool  # the rows share one power
    near: bool  # no score is masked, or beyond 400 octaves


def chunk(xp: Namespace, t: Array, keep: Array | None, v: Values, *, eager: bool) -> tuple[Sums, Array]:
    """The sums over a chunk of keys, and what their `out` has yet to be multiplied by, a power of two for each row.

    t (..., q, k) with k <= 256, -inf where masked; `keep` is dropout's choice.
    """
    # What is kept is relative to the largest that is kept: beside one that dropout drops it may be nothing.
    kept = None if keep is None else weights(xp, xp.where(keep, t, -math.inf), eager=eager)
    reference, p, total = weights(xp, t, eager=eager, near=v.near)
    of_kept, p, summed = kept or (reference, p, total)
    power = v.powers[..., :1, :]
    if not v.flat:
        p, power = _levelled(xp, p, v.powers, eager=eager)
    p, share = _shortened(xp, p, summed if v.flat else _sum(xp, p), eager=eager)
    if kept is not None:
        power = power * _octaves(xp, of_kept - reference)
    both = xp.matmul(p, v.slices)
    E = both.shape[-1] // 2
    out = both[..., :E] + both[..., E:]
    return Sums(reference, total, out), power * (1.0 / share)


def weights(xp: Namespace, t: Array, *, eager: bool, near: bool = False) -> tuple[Array, Array, Array]:
    """(reference, weights times POINT, total) of the rows of a chunk; the total is NaN if a score is `BROKEN`."""
    top = xp.max(t, axis=-1, keepdims=True)
    empty = top == -math.inf
    reference = xp.ceil(xp.where(empty, 0.0, top) * (1.0 / OCTAVE))
    p = _exponentials(xp, t, reference, eager=eager, near=near)
    return xp.where(empty, NOWHERE, reference), p, xp.where(top > _BROKEN_FROM, math.nan, _sum(xp, p))


def _sum(xp: Namespace, p: Array) -> Array:
    """Of weights, as integers."""
    return xp.matmul(p, xp.full((p.shape[-1], 1), 1.0 / POINT, dtype=p.dtype, **beside(p)))


def _exponentials(xp: Namespace, t: Array, reference: Array, *, eager: bool, near: bool) -> Array:
    """exp of (t - reference), in integers times POINT.

    t - reference + centre is rounded once: for small references reference - centre is exact, and for large ones
    t - reference is, where it matters.
    """
    reference = reference * OCTAVE
    large = xp.abs(reference) > 2.0**24
    if not eager:
        t = t - xp.where(large, reference, 0.0)
        t = t - (xp.where(large, 0.0, reference) - _CENTRE)
        t = xp.where(t > _FLOOR, t, _FLOOR)
        t = settled(t * t) + _OFFSET
        for _ in range(_SQUARINGS):
            t = t * t
        return whole(xp, t, POINT, eager=eager)
    if bool(xp.any(large)):
        t -= xp.where(large, reference, 0.0)
        reference = xp.where(large, 0.0, reference)
    t -= reference - _CENTRE
    if not near:
        t = xp.maximum(t, xp.asarray(_FLOOR, dtype=t.dtype, **beside(t)))
    t **= 2  # t * t, with one array to read
    t += _OFFSET
    for _ in range(_SQUARINGS):
        t **= 2
    return whole(xp, t, POINT, eager=eager)


_FLOOR = _CENTRE - 128.0 * OCTAVE  # so far below the reference every weight is 0


def _levelled(xp: Namespace, p: Array, powers: Array, *, eager: bool) -> tuple[Array, Array]:
    """The weights times the powers of two of their keys, as integers below 2**_BITS times a power of two.

    That power is one of those that `v_slices` makes, and the very one of the keys if they have but one: the largest
    weight is at least 2**(_BITS - 2), then. What is masked weighs nothing and has no say in it.
    """
    p = p * (turned(powers) * 2.0**-300)
    e = exponent(xp.max(p, axis=-1, keepdims=True)) + (300.0 - math.log2(POINT))
    e = xp.where(e < -450.0, -450.0, e)  # of rows without weights
    e = 4.0 * xp.floor((e - (_BITS - 1)) * 0.25) + 3.0
    return whole(xp, p * power_of_two(300.0 - e), POINT, eager=eager), power_of_two(e)


def _shortened(xp: Namespace, p: Array, total: Array, *, eager: bool) -> tuple[Array, Array]:
    """The weights as integers whose sum is at most 2**31, and the power of two that makes them so.

    A total from 2**n on, less a slack for what rounding adds (1/2 for each key), is divided by 2**(n - 30). So weights
    have 31 bits relative to their sum over a chunk, and their products with the 22 bits of a slice add up below 2**53.
    """
    n = exponent(total * (1.0 / (1.0 - 2.0**-20)))
    n = xp.where(n < _BITS - 5, _BITS - 5.0, n)  # where a key is visible the largest weight is at least 2**(_BITS - 4)
    share = power_of_two(52.0 - SLICE - n)
    return whole(xp, scaled(p, share, eager=eager), POINT, eager=eager), share


def merged(xp: Namespace, part: Sums, chunks: Sums, power: Array, *, eager: bool) -> Sums:
    """`part` and the chunks along the third axis from the end, added in their order.

    References change by whole octaves, which rounds nothing, so it does not matter how many chunks come at a time. They
    change by many, so that they seldom do.
    """
    top = xp.ceil(xp.max(chunks.reference, axis=-3) * (1.0 / _STEP)) * _STEP
    top = _larger(xp, part.reference, top)
    share = _octaves(xp, chunks.reference - top[..., None, :, :])
    total, out = part.total, part.out
    if not (eager and bool(xp.all(top == part.reference))):
        old = _octaves(xp, part.reference - top)
        total, out = total * old, out * old
    totals, power = chunks.total * share, power * share
    if eager and totals.shape[-3] == 1:
        new = chunks.out
        new *= power
        new = new[..., 0, :, :]
        new += out
        return Sums(top, total + totals[..., 0, :, :], new)
    outs = chunks.out * power
    for n in range(totals.shape[-3]):
        total, out = total + totals[..., n, :, :], out + outs[..., n, :, :]
    return Sums(top, total, out)


_STEP = 64.0


def added(xp: Namespace, one: Sums, other: Sums) -> Sums:
    """The sums over the keys of both."""
    top = _larger(xp, one.reference, other.reference)
    shares = [_octaves(xp, x.reference - top) for x in (one, other)]
    total, out = (x * shares[0] + y * shares[1] for x, y in ((one.total, other.total), (one.out, other.out)))
    return Sums(top, total, out)


def _larger(xp: Namespace, x: Array, y: Array) -> Array:
    """The larger reference; +0 for both zeros, of which `maximum` may take either."""
    x = xp.where(x > y, x, y)
    return xp.where(x == 0.0, 0.0, x)


def _octaves(xp: Namespace, n: Array) -> Array:
    """2**n for n <= 0; below 2**-400 it is 0: no result that such sums take part in is above 2**-126."""
    faint = n < _FAINT
    return xp.where(faint, 0.0, power_of_two(xp.where(faint, 0.0, n)))


_FAINT = -400.0
