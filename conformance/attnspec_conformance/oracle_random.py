"""Threefry-2x32 with 20 rounds (Salmon et al., SC11, the Random123 library), in JAX's layout.

Words are Python integers, or arrays of uint64, of which only the low 32 bits are used.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .masks import Array

Words = tuple[Any, Any]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_LOW = 0xFFFFFFFF


def threefry(key: Words, counter: Words) -> Words:
    """Two words from a key and a counter of two words each."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA)
    a, b = (counter[0] + schedule[0]) & _LOW, (counter[1] + schedule[1]) & _LOW
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            a = (a + b) & _LOW
            b = ((b << rotation | b >> (32 - rotation)) & _LOW) ^ a
        a = (a + schedule[(group + 1) % 3]) & _LOW
        b = (b + schedule[(group + 2) % 3] + group + 1) & _LOW
    return a, b


def key(seed: int) -> Words:
    """The key of a seed of up to 64 bits."""
    return seed >> 32 & _LOW, seed & _LOW


def fold_in(rng: Words, data: int) -> Words:
    """A key for each number."""
    return threefry(rng, (0, data & _LOW))


def split(rng: Words, count: int) -> list[Words]:
    """`count` independent keys."""
    return [threefry(rng, (0, n)) for n in range(count)]


def bits(rng: Words, shape: tuple[int, ...], width: int = 32) -> Array:
    """Random unsigned integers: entry n in C order reads the counter (high, low) of n."""
    n: Array = np.arange(np.prod(shape, dtype=int), dtype=np.uint64)
    a, b = threefry(rng, (n >> 32, n & _LOW))
    drawn = a << 32 | b if width == 64 else (a ^ b) & ((1 << width) - 1)
    return drawn.astype(f"uint{width}").reshape(shape)


def uniform(rng: Words, shape: tuple[int, ...]) -> Array:
    """float32 in [0, 1): the 23 high bits of each word."""
    return ((bits(rng, shape) >> np.uint32(9)).astype(np.float64) / 2.0**23).astype(np.float32)


def bernoulli(rng: Words, probability: float, shape: tuple[int, ...]) -> Array:
    """True with the given probability: uniform < float32(probability)."""
    return uniform(rng, shape) < np.float32(probability)
