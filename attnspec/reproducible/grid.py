"""Numbers on grids: powers of two, and the one rule that everything in this package keeps.

**An inexact product never feeds an addition.** Sums, differences, quotients and products are rounded alike by every
IEEE float64 arithmetic; what differs is that a compiler may leave out the rounding between a product and a sum (fused
multiply-add), and that sums of many terms are taken in any order. So a product is either exact, because its factors
are short numbers on a grid, or its rounded value goes through a `round`, a comparison or a `where` on itself
(`settled`), which no compiler sees through; and long sums are sums of integers below 2**53, which are exact in any
order. A test runs this package on a namespace that watches for products which are neither.

Everything here takes and returns float64 arrays of the framework itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from .._compat import Array, Namespace, namespace
from ..host import host_of, on

Columns = tuple[tuple[float, ...], ...]

# Smaller results count as 0: some frameworks flush subnormal numbers and some do not, and none is to be met.
TINY = 2.0**-900
LOWEST, HIGHEST = -1022, 1023


def settled(x: Array) -> Array:
    """A product that may be added to: rounded for good, and 0 where it is tiny."""
    xp = namespace(x)
    return xp.where(xp.abs(x) < TINY, 0.0, x)


def power_of_two(n: Array) -> Array:
    """2**n, for integers (in float64, or int64) from LOWEST to HIGHEST."""
    (power,) = looked_up(_powers, "powers of two", namespace(n).astype(n - LOWEST, namespace(n).int64))
    return power


def _powers(name: str) -> Columns:
    return (tuple(2.0**n for n in range(LOWEST, HIGHEST + 1)),)


def exponent(m: Array) -> Array:
    """floor(log2 m) in float64, for m >= 0 that is 0 or normal; LOWEST for 0 and less than 2**LOWEST.

    The framework's logarithm is only a hint: what it is off by is found by exact comparisons.
    """
    xp = namespace(m)
    something = m >= 2.0**LOWEST
    m = xp.where(something, m, 1.0)
    n = xp.clip(xp.floor(xp.log2(m)), LOWEST, HIGHEST)
    power = power_of_two(n)
    n = xp.where(power > m, n - 1.0, xp.where(m * 0.5 >= power, n + 1.0, n))
    return xp.where(something, n, float(LOWEST))


def looked_up(columns: Callable[[str], Columns], name: str, index: Array) -> list[Array]:
    """The numbers of each column of a table at these places; its arrays are kept where they may be."""
    host, xp = host_of(index), namespace(index)
    flat = xp.reshape(index, (-1,))
    found = (_kept if host.concrete(index) else _made)(xp, host.device_of(index), columns, name)
    return [xp.reshape(xp.take(column, flat, axis=0), index.shape) for column in found]


def _made(xp: Namespace, device: Any, columns: Callable[[str], Columns], name: str) -> tuple[Array, ...]:
    return tuple(xp.asarray(column, dtype=xp.float64, **on(device)) for column in columns(name))


_kept = cache(_made)
# `torch.compile` then calls it, instead of recording how the table is computed.
_made._dynamo_marked_constant = True  # type: ignore[attr-defined]
