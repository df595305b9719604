"""Drawn problems: few shapes and options, so that a compiler meets each once, and any number of fillings.

Numbers come from Threefry's counter and exact scalings: the same in every environment, whatever it makes of floats.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..masks import Array
from ..problems import integers, normal, rounded

Kind = Literal["q", "k", "number", "weight", "gain", "seen", "lengths", "ids", "positions", "words"]
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Operand:
    """An array of a call: what it is for decides what it is filled with. Integers are 0 to `most`."""

    shape: tuple[int, ...]
    kind: Kind
    dtype: str = "float32"
    most: int = 0


@dataclass(frozen=True)
class Configuration:
    """One call: its arrays, and `compute(api, arrays)`, api being attnspec or attnspec.reproducible.

    unknown
        Which entries of the first result have to be NaN, by definition, given NumPy's arrays; None: not compared.
    rounded
        Whether only rounded results are compared: of several calls, that round in between.
    """

    name: str
    operands: Mapping[str, Operand]
    compute: Callable[[Any, Values], Any]
    unknown: Callable[[Values], Array] | None = None
    rounded: bool = False

    @property
    def dtypes(self) -> set[str]:
        """Of its floating arrays."""
        return {x.dtype for x in self.operands.values() if x.kind not in _INTEGERS}


@dataclass(frozen=True)
class Problem:
    """A configuration with its numbers."""

    number: int
    configuration: Configuration
    family: str
    arrays: Mapping[str, Array]

    @property
    def name(self) -> str:
        """As tables and reports call it."""
        return f"{self.number} {self.configuration.name}, {self.family}"


def drawn(seed: int, count: int, configurations: tuple[Configuration, ...]) -> Iterator[Problem]:
    """The seed decides each problem, whatever their number; configurations come in turn, families by chance."""
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        configuration, family = configurations[number % len(configurations)], draw.choice(tuple(FAMILIES))
        arrays = {
            name: filled(operand, family, draw.randrange(2**20)) for name, operand in configuration.operands.items()
        }
        yield Problem(number, configuration, family, arrays)


def filled(operand: Operand, family: str, seed: int) -> Array:
    """The array of an operand; bfloat16 as float32 of numbers that it holds."""
    shape, kind = operand.shape, operand.kind
    if kind == "seen":
        # Some rows see nothing, and some columns nobody sees.
        seen = integers(seed, *shape, low=0, high=9) < 6
        rows, columns = (integers(seed + n, *s, low=0, high=9) > 0 for n, s in ((1, shape[:-1]), (2, shape[-1:])))
        return seen & rows[..., None] & columns
    if kind in _INTEGERS:
        return integers(seed, *shape, low=0, high=operand.most).astype(np.int32)
    if kind == "words":
        return integers(seed, *shape, low=-(2**31), high=2**31 - 2).astype(np.int32)
    if kind == "gain":
        return rounded(1.0 + normal(seed, *shape, size=0.25), operand.dtype)
    if kind == "weight":
        return normal(seed, *shape, dtype=operand.dtype, size=0.375)
    return held(FAMILIES[family](seed, shape, kind), operand.dtype)


_INTEGERS = ("lengths", "ids", "positions")


def held(x: Array, dtype: str) -> Array:
    """The numbers as the dtype holds them; those that are too large for it at its largest."""
    largest = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}.get(dtype)
    if largest is not None:
        x = np.where(np.isfinite(x), np.clip(x, -largest, largest), x)
    return rounded(x, dtype)


def _scaled(x: Array, exponents: Array) -> Array:
    return np.ldexp(x.astype(np.float64), exponents)


def _sharp(seed: int, shape: tuple[int, ...], kind: Kind) -> Array:
    return normal(seed, *shape, dtype="float64", size=16.0 if kind == "q" else 1.0)


def _elements(seed: int, shape: tuple[int, ...], kind: Kind) -> Array:
    return _scaled(normal(seed, *shape, dtype="float64"), integers(seed + 1, *shape, low=-20, high=12))


def _rows(seed: int, shape: tuple[int, ...], kind: Kind) -> Array:
    exponents = integers(seed + 1, *shape[:-1], 1, low=-40, high=20)
    return _scaled(normal(seed, *shape, dtype="float64"), exponents)


def _whole(seed: int, shape: tuple[int, ...], kind: Kind) -> Array:
    mantissa = integers(seed, *shape, low=-(2**24) + 1, high=2**24 - 1)
    return _scaled(mantissa, integers(seed + 1, *shape, low=-149, high=103))


def _ties(seed: int, shape: tuple[int, ...], kind: Kind) -> Array:
    return integers(seed, *shape, low=-3, high=3).astype(np.float64)


def _tiny(seed: int, shape: tuple[int, ...], kind: Kind) -> Array:
    return _scaled(integers(seed, *shape, low=-255, high=255), integers(seed + 1, *shape, low=-149, high=-125))


def _broken(seed: int, shape: tuple[int, ...], kind: Kind) -> Array:
    """One number in 50 is an infinity, NaN or -0."""
    which = integers(seed + 1, *shape, low=0, high=199)
    x = normal(seed, *shape, dtype="float64")
    for n, special in enumerate((np.nan, np.inf, -np.inf, -0.0)):
        x = np.where(which == n, special, x)
    return x


def _equal(seed: int, shape: tuple[int, ...], kind: Kind) -> Array:
    """Numbers of 8 bits; keys in two rows of each three the same."""
    x = rounded(normal(seed, *shape), "bfloat16").astype(np.float64)
    if kind == "k" and len(shape) > 1:
        x = x[..., np.maximum(0, np.arange(shape[-2]) // 3 * 3 - 1), :]
    return x


FAMILIES: dict[str, Callable[[int, tuple[int, ...], Kind], Array]] = {
    "normal": lambda seed, shape, kind: normal(seed, *shape, dtype="float64"),
    "sharp": _sharp,
    "exponents by element": _elements,
    "exponents by row": _rows,
    "whole range": _whole,
    "ties": _ties,
    "subnormal": _tiny,
    "not finite": _broken,
    "equal keys": _equal,
}
