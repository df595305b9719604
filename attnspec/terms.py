"""Bias terms: the contract, the operator, and the term behind each function of `bias.py`."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

from . import _compat
from ._compat import FLOATING, Array, Namespace, dtype_name, widened
from .derivative import summed_to
from .errors import DTypeError
from .parts import Block, part_of
from .rule_arrays import fits
from .rules import Status
from .shapes import Axes, Shape, Span
from .struct import Struct


class Spread(NamedTuple):
    """How an array of a term lies along the scores (..., H, Q, K)."""

    by_query: bool  # a row for each query
    by_key: bool  # an entry for each key
    trailing: int  # its axes after (..., H)


class Line(NamedTuple):
    """A tile as of_queries + slopes * of_keys: a line along the keys for each query, nowhere above 0."""

    of_queries: Array  # (H, q, 1)
    slopes: Array  # (H, 1, 1)
    of_keys: Array  # (k, 1)
    fall: float  # of the steepest of them, along all keys


@runtime_checkable
class Bias(Protocol):
    """The contract of a bias rule: a float tile, and whether it may hold -inf."""

    def tile(self, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> Array:
        """Floating, broadcastable to (..., H, q.size, k.size), on that device (None: where the framework puts it)."""

    def status(self, q: Span, k: Span, /) -> Status:
        """ "all": no -inf in the tile; "none": nothing but -inf; "some": not known without looking."""


class Term(Struct):
    """The operator, and the check of the arrays that a term holds against the axes of the call."""

    def __add__(self, other: Bias | Array) -> Term:
        return Sum(self, as_bias(other))

    __radd__ = __add__

    def __bool__(self) -> bool:
        msg = f"a {type(self).__name__} bias is not true or false: add biases by +."
        raise DTypeError(msg)

    __array_ufunc__ = None  # NumPy's `array + term` then asks the term

    @abstractmethod
    def tile(self, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> Array:
        """See `Bias.tile`."""

    @abstractmethod
    def status(self, q: Span, k: Span, /) -> Status:
        """See `Bias.status`."""

    def bounds(self, q: Span, k: Span, /) -> tuple[float, float]:
        """(least, most) of the tile, as far as they are known without it; where both are finite, no entry is -inf."""
        return -math.inf, math.inf

    @property
    def steepest(self) -> float:
        """By how much a tile falls from one key to the next, at most, as far as that is known; infinity else."""
        return math.inf

    def times(self, factor: float) -> Term | None:
        """The term with entries so many times as large, if that is made without another pass over them."""
        return None

    def lines(self, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> Callable[[Term], Line] | None:
        """From parts of the term to their tiles as lines, if these are such and that is known without them."""
        return None

    @abstractmethod
    def part(self, block: Block) -> Term:
        """The term for a block of the axes (..., H); itself if nothing in it depends on them."""

    def tiles(self, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> Callable[[Term], Array]:
        """From parts of the term to their tiles; what the parts share is made once."""
        return lambda part: part.tile(q, k, xp=xp, device=device)

    @property
    def differentiable(self) -> bool:
        """Whether `pull` knows the gradient of every array in it."""
        return True

    def spread(self) -> dict[str, Spread]:
        """How each floating array lies along the scores, by its name in the term."""
        return {}

    def pull(self, g: Array, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> dict[str, Array]:
        """What a tile adds to the gradients of those arrays, given that of its scores, g (..., H, q.size, k.size).

        (..., q.size or 1, k.size or 1) for arrays that spread, else in the shape of the array.
        """
        return {}

    def check(self, axes: Axes) -> None:
        """Raise unless each array fits the call."""

    def computed_in(self, dtype: str) -> Term:
        """The term for scores of that dtype; what is made from Python numbers is made in it."""
        return self


def as_bias(bias: Bias | Array) -> Term:
    """A term from a floating array (broadcast from the right to (..., H, Q, K)) or any object with the contract.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> bias = attnspec.as_bias(np.asarray([0.0, -np.inf])) + attnspec.alibi(1)
    >>> attnspec.attention_weights(np.zeros((1, 1)), np.zeros((2, 1)), bias=bias).tolist()
    [[1.0, 0.0]]
    """
    if isinstance(bias, Term):
        return bias
    if _compat.is_array(bias):
        floating_array("bias", bias)
        return ArrayBias(bias)
    if isinstance(bias, Bias) and not isinstance(bias, Struct):
        return Foreign(bias)
    msg = (
        f"bias is of type {type(bias).__name__}; a floating array or a Bias (alibi(), relative_bias()) is needed. "
        "What selects keys (causal(), padding()) is a `mask=`."
    )
    raise DTypeError(msg)


@dataclass(frozen=True)
class ArrayBias(Term):
    """A floating array, broadcast from the right to (..., H, Q, K)."""

    array: Array

    def check(self, axes: Axes) -> None:
        fits("bias", self.array, axes, None)

    def tile(self, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> Array:
        return k.of(q.of(self.array, -2), -1)

    def status(self, q: Span, k: Span, /) -> Status:
        return "some"

    def part(self, block: Block) -> Term:
        array = part_of(self.array, block, 2)
        return self if array is self.array else ArrayBias(array)

    def spread(self) -> dict[str, Spread]:
        _, by_query, by_key = self._shape()
        return {"array": Spread(by_query, by_key, min(2, self.array.ndim))}

    def pull(self, g: Array, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> dict[str, Array]:
        lead, by_query, by_key = self._shape()
        return {"array": summed_to(g, (*lead, q.size if by_query else 1, k.size if by_key else 1))}

    def _shape(self) -> tuple[Shape, bool, bool]:
        """The axes before the last two, and whether it has a row for each query and an entry for each key."""
        shape = (1,) * (2 - self.array.ndim) + tuple(self.array.shape)
        return shape[:-2], shape[-2] != 1, shape[-1] != 1


@dataclass(frozen=True)
class Sum(Term):
    """Both terms."""

    a: Term
    b: Term

    def check(self, axes: Axes) -> None:
        self.a.check(axes)
        self.b.check(axes)

    def computed_in(self, dtype: str) -> Term:
        return Sum(self.a.computed_in(dtype), self.b.computed_in(dtype))

    def tile(self, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> Array:
        return self.tiles(q, k, xp=xp, device=device)(self)

    def tiles(self, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> Callable[[Any], Array]:
        of_a, of_b = (x.tiles(q, k, xp=xp, device=device) for x in (self.a, self.b))
        return lambda part: self._sum(xp, of_a(part.a), of_b(part.b))

    @staticmethod
    def _sum(xp: Namespace, a: Array, b: Array) -> Array:
        a, b = widened(a), widened(b)
        wider = xp.result_type(a.dtype, b.dtype)
        total = xp.astype(a, wider, copy=False) + xp.astype(b, wider, copy=False)
        # Two finite numbers stay a number: their overflow to -inf would mask the pair (SCORE-5).
        largest = float(xp.finfo(wider).max)
        return xp.where(xp.isfinite(a) & xp.isfinite(b), xp.clip(total, -largest, largest), total)

    def status(self, q: Span, k: Span, /) -> Status:
        both = {self.a.status(q, k), self.b.status(q, k)}
        return "none" if "none" in both else "all" if both == {"all"} else "some"

    def bounds(self, q: Span, k: Span, /) -> tuple[float, float]:
        (least, most), (less, more) = self.a.bounds(q, k), self.b.bounds(q, k)
        return least + less, most + more

    @property
    def steepest(self) -> float:
        return self.a.steepest + self.b.steepest

    def part(self, block: Block) -> Term:
        a, b = self.a.part(block), self.b.part(block)
        return self if a is self.a and b is self.b else Sum(a, b)

    @property
    def differentiable(self) -> bool:
        return self.a.differentiable and self.b.differentiable

    def spread(self) -> dict[str, Spread]:
        return {f"{name}.{x}": by for name, term in self._terms() for x, by in term.spread().items()}

    def pull(self, g: Array, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> dict[str, Array]:
        pulled = {name: term.pull(g, q, k, xp=xp, device=device) for name, term in self._terms()}
        return {f"{name}.{x}": gradient for name, gradients in pulled.items() for x, gradient in gradients.items()}

    def _terms(self) -> tuple[tuple[str, Term], ...]:
        return ("a", self.a), ("b", self.b)


@dataclass(frozen=True)
class Foreign(Term):
    """Somebody else's object that keeps the contract, given the operator."""

    bias: Bias
    block: Block | None = None

    def part(self, block: Block) -> Term:
        return replace(self, block=block)

    def tile(self, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> Array:
        tile = self.bias.tile(q, k, xp=xp, device=device)
        floating_array(f"the tile of {type(self.bias).__name__}", tile)
        return tile if self.block is None else part_of(tile, self.block, 2)

    def status(self, q: Span, k: Span, /) -> Status:
        return self.bias.status(q, k)

    @property
    def differentiable(self) -> bool:
        return False


def floating_array(name: str, x: Array) -> None:
    if not _compat.is_array(x) or dtype_name(x) not in FLOATING:
        got = f"dtype {dtype_name(x)}" if _compat.is_array(x) else f"type {type(x).__name__}"
        msg = f"{name} has {got}; a floating array is needed. A boolean array that selects keys is a `mask=`."
        raise DTypeError(msg)
