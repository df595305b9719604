"""Arrays to ask about. Every axis has a size of its own, so that no axis can stand in for another unnoticed.

Random numbers are integers from Threefry's counter, scaled by one correctly rounded product: their bits are the same
on every machine and with every version of NumPy, so that calls written to files are, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import masks, oracle_random
from .masks import Array
from .trials import Call

FLOATS = ("float32", "float64", "float16", "bfloat16")


def rounded(x: Array, dtype: str) -> Array:
    """The nearest numbers that the dtype has, as float64 or, where NumPy has the dtype, in it."""
    if dtype != "bfloat16":
        return np.asarray(x, dtype)
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    even = bits + 0x7FFF + (bits >> 16 & 1)
    return (even & 0xFFFF0000).astype(np.uint32).view(np.float32)


def normal(seed: int, *shape: int, dtype: str = "float32", size: float = 1.0) -> Array:
    """Numbers with mean 0 and deviation `size`, near to normal (eight uniform ones summed), rounded to the dtype."""
    words = oracle_random.bits(_key(seed, 0), (2, *shape), width=64)
    total = sum((words >> np.uint64(shift) & np.uint64(0xFFFF)).astype(np.int64).sum(0) for shift in (0, 16, 32, 48))
    # A sum of eight has the mean 4 * 65535 and the variance 8 * 2**32 / 12.
    return rounded((total - 4 * 65535) * (1.224744871391589 * 2.0**-16) * size, dtype)


def integers(seed: int, *shape: int, low: int, high: int) -> Array:
    """Integers from `low` to `high`, both included."""
    return low + (oracle_random.bits(_key(seed, 1), shape) % np.uint32(high - low + 1)).astype(np.int64)


def _key(seed: int, kind: int) -> oracle_random.Words:
    return oracle_random.fold_in(oracle_random.key(seed), kind)


def problem(
    seed: int = 0,
    lead: tuple[int, ...] = (2,),
    H: int = 6,
    G: int | None = None,
    Q: int = 5,
    K: int = 7,
    D: int = 4,
    E: int = 3,
    dtype: str = "float32",
    size: float = 1.0,
    **options: Any,
) -> Call:
    """A call with normal q, k and v."""
    G = H if G is None else G
    return Call(
        q=normal(seed, *lead, H, Q, D, dtype=dtype, size=size),
        k=normal(seed + 1, *lead, G, K, D, dtype=dtype, size=size),
        v=normal(seed + 2, *lead, G, K, E, dtype=dtype),
        dtype=dtype,
        **options,
    )


def beyond_a_tile(**options: Any) -> Call:
    """More queries and more keys than one tile of any size that caches suggest; odd sizes, so that a rest is left."""
    return problem(2, lead=(), H=1, Q=513, K=525, D=2, E=3, **options)


def small_integers(seed: int, *shape: int, high: int = 4) -> Array:
    """Integers in float32: with a power of two for a scale, every score is exact and the bound is at its tightest."""
    return integers(seed, *shape, low=-high, high=high).astype(np.float32)


def exact_logits(seed: int = 0, Q: int = 5, K: int = 7, **options: Any) -> Call:
    """A problem whose scores have no rounding error: D = 4 and small integers."""
    return Call(
        q=small_integers(seed, 2, 6, Q, 4),
        k=small_integers(seed + 1, 2, 6, K, 4),
        v=normal(seed + 2, 2, 6, K, 3),
        **options,
    )


def some_mask(seed: int, *shape: int, share: float = 0.6) -> masks.Dense:
    """A mask that shows about this share of the pairs."""
    return masks.Dense(integers(seed, *shape, low=0, high=2**16 - 1) < share * 2**16)


def constant(value: float, *shape: int) -> Array:
    """One float32 number everywhere."""
    return np.full(shape, value, np.float32)


def uniform_values(values: list[float], Q: int, **options: Any) -> Call:
    """Equal scores and one column of values: each output is the mean of the values that its query sees."""
    column = np.array(values, np.float32)[:, None]
    return Call(q=constant(0, Q, 1), k=constant(0, len(values), 1), v=column, **options)


def zigzag(length: int, n: int) -> Array:
    """Where rows stand when the i-th of n workers has pieces i and 2 n - 1 - i of 2 n, as a balanced causal ring."""
    pieces: Array = np.arange(length, dtype=np.int32).reshape(2 * n, -1)
    return np.concatenate([pieces[[i, 2 * n - 1 - i]].ravel() for i in range(n)])
