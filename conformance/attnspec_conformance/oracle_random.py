"""Threefry-2x32 with 20 rounds (Salmon et al., SC11, the Random123 library), in JAX's layout.

Words are Python integers, or arrays of uint64, of which only the low 32 bits are used.
"""

from __future__ import annotations

from typing import Any

import mpmath
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


# M. Giles, "Approximating the erfinv function", GPU Computing Gems, 2011: single precision, in w - 2.5 for w < 5 and
# in sqrt(w) - 3 beyond, where w = -log((1 - y) (1 + y)).
_CENTRE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip


def normal(rng: Words, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """The normal quantiles of the uniform numbers y in (-1, 1), and how far from them float32 may be.

    y = 2 n 2^-23 - 1 + 2^-24 has no rounding error. The bound is the distance of Giles' polynomial from erfinv, and
    what float32 loses on the way: w has the rounding of a sum, of a product and of the logarithm, (3 + 2 |w|) u;
    Horner's rule the running error of its steps (Higham, section 5.1); |y|, sqrt(2) and their products 3 u.
    """
    y = 2.0 * uniform(rng, shape).astype(np.float64) - (1 - 2.0**-24)
    exact, allowed = np.zeros(shape), np.zeros(shape)
    for at in np.ndindex(shape):
        root, sign = mpmath.erfinv(y[at]), abs(float(y[at]))
        w = float(-mpmath.log((1 - mpmath.mpf(sign)) * (1 + mpmath.mpf(sign))))
        t, slope = (w - 2.5, 1.0) if w < 5 else (w**0.5 - 3, 0.5 / w**0.5)
        off = slope * (3 + 2 * abs(w)) * _U + 2 * _U * abs(t)
        polynomial, rounding, derivative = _horner(_CENTRE if w < 5 else _TAIL, t)
        fit = abs(polynomial * sign - abs(float(root)))
        exact[at] = mpmath.sqrt(2) * root
        allowed[at] = 2**0.5 * (fit + sign * (abs(derivative) * off + rounding)) + 3 * _U * abs(exact[at])
    return exact, allowed


_U = 2.0**-24


def _horner(coefficients: tuple[float, ...], t: float) -> tuple[float, float, float]:
    """The polynomial, the bound of what Horner's rule loses in float32, and the derivative."""
    value, error, derivative = coefficients[0], 0.0, 0.0
    for c in coefficients[1:]:
        derivative = derivative * t + value
        product = value * t
        value = product + c
        error = error * abs(t) + _U * (abs(product) + abs(value) + abs(c))
    return value, error, derivative
