"""Mask rules: the contract, the operators, and the rule behind each function of `masks.py`.

A rule is asked for one tile of queries x keys at a time, so a causal, window, padding or segment mask of any length
costs a few numbers. Arrays inside a rule (offsets, lengths, ids) align with the leading axes before H.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

from . import _compat
from ._compat import Array, Namespace, dtype_name
from .errors import MaskError
from .host import on
from .parts import Block, part_of
from .rule_arrays import Align, Ints, clamped, fits, per_batch
from .shapes import Axes, Shape, Span
from .struct import Struct

Status = Literal["all", "none", "some"]


@runtime_checkable
class Mask(Protocol):
    """The contract of a rule. Whatever has these two methods is a mask; `as_mask` gives it the operators."""

    def tile(self, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> Array:
        """Boolean, broadcastable to (..., H, q.size, k.size), on that device (None: where the framework puts it)."""

    def status(self, q: Span, k: Span, /) -> Status:
        """What is known of the tile from host integers alone; "some" whenever an array is involved."""


class Rule(Struct):
    """The operators, and the check of the arrays that a rule holds against the axes of the call."""

    def __and__(self, other: Mask | Array) -> Rule:
        return And(self, as_mask(other))

    __rand__ = __and__

    def __or__(self, other: Mask | Array) -> Rule:
        return Or(self, as_mask(other))

    __ror__ = __or__

    def __invert__(self) -> Rule:
        return Not(self)

    def __bool__(self) -> bool:
        msg = f"a {type(self).__name__} mask is not true or false: combine masks by &, |, ~, not by and, or, not."
        raise MaskError(msg)

    __array_ufunc__ = None  # NumPy's `array & rule` then asks the rule

    @abstractmethod
    def tile(self, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> Array:
        """See `Mask.tile`."""

    @abstractmethod
    def status(self, q: Span, k: Span, /) -> Status:
        """See `Mask.status`."""

    def arrays(self) -> dict[str, tuple[Array, Shape | None]]:
        """Name -> (array, the letters' lengths after the leading axes; None: it broadcasts to the scores)."""
        return {}

    def part(self, block: Block) -> Rule:
        """The rule for a block of the axes (..., H); itself if nothing in it depends on them."""
        held = {name: part_of(x, block[:-1], len(tail or ())) for name, (x, tail) in self.arrays().items()}
        cut = any(held[name] is not x for name, (x, _) in self.arrays().items())
        return replace(self, **held) if cut else self  # type: ignore[type-var]

    def check(self, axes: Axes) -> None:
        """Raise unless each array fits the call."""
        for name, (x, tail) in self.arrays().items():
            fits(name, x, axes, tail)


def as_mask(mask: Mask | Array) -> Rule:
    """A rule from a boolean array (broadcast from the right to (..., H, Q, K)) or from any object with the contract.

    `rule & array` calls it for you (the rule first: some arrays refuse to be combined with a stranger). Inside
    `torch.compile`, which takes `rule & tensor` and `~rule` for operations of its own, write `rule & as_mask(tensor)`
    and make `~rule` outside.

    Integer and float arrays raise `errors.MaskError`: libraries disagree on whether a 0/1 mask selects or is added.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> seen = ~attnspec.as_mask(np.asarray([True, False]))
    >>> attnspec.attention_weights(np.zeros((1, 1)), np.zeros((2, 1)), mask=seen).tolist()
    [[0.0, 1.0]]
    """
    if isinstance(mask, Rule):
        return mask
    if _compat.is_array(mask):
        if dtype_name(mask) != "bool":
            msg = (
                f"mask has dtype {dtype_name(mask)} and shape {tuple(mask.shape)}; a mask is boolean, True = may "
                "attend. Pass it as `bias=` if it is to be added (0 and -inf), or `mask != 0` if nonzero means visible."
            )
            raise MaskError(msg)
        return ArrayMask(mask)
    if isinstance(mask, Mask) and not isinstance(mask, Struct):
        return Foreign(mask)
    msg = (
        f"mask is of type {type(mask).__name__}; a boolean array or a Mask (causal(), padding(), ...) is needed. "
        "What is added to the scores (alibi(), relative_bias()) is a `bias=`."
    )
    raise MaskError(msg)


@dataclass(frozen=True)
class Window(Rule):
    """`causal` and `window`: bounds on j - i - offset."""

    left: int | None
    right: int | None
    offset: Ints
    align: Align

    def arrays(self) -> dict[str, tuple[Array, Shape | None]]:
        return _held(offset=(self.offset, ()))

    def tile(self, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> Array:
        of_q, of_k = q.index[..., None, :, None], k.index[..., None, None, :]
        low, high = self._bounds(q, k, lambda x: per_batch(x, 3, xp, device))
        if self._is_near(q, k):
            after, before = (None if x is None else of_q + x for x in (low, high))
        else:  # the difference of two positions cannot overflow, the sum of a position and an offset could
            of_k, after, before = of_k - of_q, low, high
        inside = None if before is None else of_k <= before
        if after is not None:
            inside = of_k >= after if inside is None else inside & (of_k >= after)
        return xp.ones((1, 1), dtype=xp.bool, **on(device)) if inside is None else inside

    def status(self, q: Span, k: Span, /) -> Status:
        if q.bounds is None or k.bounds is None or type(self.offset) is not int:
            return "some"
        low, high = self._bounds(q, k, lambda x: x)
        least, most = k.bounds[0] - (q.bounds[1] - 1), k.bounds[1] - 1 - q.bounds[0]
        if (high is not None and least > high) or (low is not None and most < low):
            return "none"
        within = (high is None or most <= high) and (low is None or least >= low)
        return "all" if within else "some"

    def _is_near(self, q: Span, k: Span) -> bool:
        """Whether positions and bounds are known and so small that their sums are positions."""
        if q.bounds is None or k.bounds is None or type(self.offset) is not int:
            return False
        return all(abs(x or 0) < 2**29 for x in (*q.bounds, *self._bounds(q, k, lambda x: x)))

    def _bounds(self, q: Span, k: Span, place: Callable[[Any], Any]) -> tuple[Any, Any]:
        shift = place(clamped(self.offset)) + (k.total - q.total if self.align == "end" else 0)
        low = None if self.left is None else shift - clamped(self.left)
        return low, None if self.right is None else shift + clamped(self.right)


@dataclass(frozen=True)
class Padding(Rule):
    """`padding`: a bound on j."""

    lengths: Ints

    def arrays(self) -> dict[str, tuple[Array, Shape | None]]:
        return _held(lengths=(self.lengths, ()))

    def tile(self, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> Array:
        return k.index[..., None, None, :] < per_batch(clamped(self.lengths), 3, xp, device)

    def status(self, q: Span, k: Span, /) -> Status:
        if k.bounds is None or not isinstance(self.lengths, int | tuple):
            return "some"
        lengths = self.lengths if isinstance(self.lengths, tuple) else (self.lengths,)
        if all(k.bounds[1] <= n for n in lengths):
            return "all"
        return "none" if all(k.bounds[0] >= n for n in lengths) else "some"


@dataclass(frozen=True)
class Segments(Rule):
    """`segments`: equal ids."""

    q_ids: Ints
    k_ids: Ints

    def arrays(self) -> dict[str, tuple[Array, Shape | None]]:
        return {"q_ids": (self.q_ids, (-2,)), "k_ids": (self.k_ids, (-1,))}

    def tile(self, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> Array:
        q_ids = q.of(per_batch(self.q_ids, 0, xp, device), -1)
        k_ids = k.of(per_batch(self.k_ids, 0, xp, device), -1)
        return q_ids[..., None, :, None] == k_ids[..., None, None, :]

    def status(self, q: Span, k: Span, /) -> Status:
        return "some"


@dataclass(frozen=True)
class ArrayMask(Rule):
    """A boolean array, broadcast from the right to (..., H, Q, K)."""

    array: Array

    def arrays(self) -> dict[str, tuple[Array, Shape | None]]:
        return {"mask": (self.array, None)}

    def part(self, block: Block) -> Rule:
        array = part_of(self.array, block, 2)
        return self if array is self.array else ArrayMask(array)

    def tile(self, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> Array:
        return k.of(q.of(self.array, -2), -1)

    def status(self, q: Span, k: Span, /) -> Status:
        return "some"


@dataclass(frozen=True)
class _Pair(Rule):
    """Two rules."""

    a: Rule
    b: Rule

    def part(self, block: Block) -> Rule:
        a, b = self.a.part(block), self.b.part(block)
        return self if a is self.a and b is self.b else type(self)(a, b)

    def check(self, axes: Axes) -> None:
        self.a.check(axes)
        self.b.check(axes)


@dataclass(frozen=True)
class And(_Pair):
    """Visible by both."""

    def tile(self, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> Array:
        if self.a.status(q, k) == "all":
            return self.b.tile(q, k, xp=xp, device=device)
        if self.b.status(q, k) == "all":
            return self.a.tile(q, k, xp=xp, device=device)
        return self.a.tile(q, k, xp=xp, device=device) & self.b.tile(q, k, xp=xp, device=device)

    def status(self, q: Span, k: Span, /) -> Status:
        both = {self.a.status(q, k), self.b.status(q, k)}
        return "none" if "none" in both else "all" if both == {"all"} else "some"


@dataclass(frozen=True)
class Or(_Pair):
    """Visible by either."""

    def tile(self, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> Array:
        return self.a.tile(q, k, xp=xp, device=device) | self.b.tile(q, k, xp=xp, device=device)

    def status(self, q: Span, k: Span, /) -> Status:
        both = {self.a.status(q, k), self.b.status(q, k)}
        return "all" if "all" in both else "none" if both == {"none"} else "some"


@dataclass(frozen=True)
class Not(Rule):
    """Visible where the other is not."""

    a: Rule

    def part(self, block: Block) -> Rule:
        a = self.a.part(block)
        return self if a is self.a else Not(a)

    def check(self, axes: Axes) -> None:
        self.a.check(axes)

    def tile(self, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> Array:
        return ~self.a.tile(q, k, xp=xp, device=device)

    def status(self, q: Span, k: Span, /) -> Status:
        opposite: dict[Status, Status] = {"all": "none", "none": "all", "some": "some"}
        return opposite[self.a.status(q, k)]


@dataclass(frozen=True)
class Foreign(Rule):
    """Somebody else's object that keeps the contract, given the operators."""

    mask: Mask
    block: Block | None = None

    def part(self, block: Block) -> Rule:
        return replace(self, block=block)

    def tile(self, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> Array:
        tile = self.mask.tile(q, k, xp=xp, device=device)
        if dtype_name(tile) != "bool":
            msg = (
                f"{type(self.mask).__name__}.tile gave {dtype_name(tile)}; a mask's tile is boolean, True = may attend."
            )
            raise MaskError(msg)
        return tile if self.block is None else part_of(tile, self.block, 2)

    def status(self, q: Span, k: Span, /) -> Status:
        return self.mask.status(q, k)


def _held(**rules: tuple[Ints, Shape]) -> dict[str, tuple[Array, Shape | None]]:
    return {name: held for name, held in rules.items() if type(held[0]) is not int}
