"""Masks and biases as plain data: what is asked, for a subject to put into its own words.

`visible` is the meaning, one pair of a query and a key at a time; it is what the oracle reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

Array: TypeAlias = Any
Align = Literal["start", "end"]


class Place(NamedTuple):
    """One pair of a query and a key: where it is in the arrays, and where in the whole sequence."""

    lead: tuple[int, ...]
    head: int
    row: int
    column: int
    query: int
    key: int
    queries: int
    keys: int


@dataclass(frozen=True, eq=False)
class Dense:
    """A boolean array that broadcasts from the right to (..., H, Q, K)."""

    array: Array

    def visible(self, at: Place) -> bool:
        index = (*at.lead, at.head, at.row, at.column)
        return bool(self.array[fit(index, self.array.shape)])


@dataclass(frozen=True, eq=False)
class Causal:
    """Key j is visible to query i iff j <= i + offset."""

    offset: int | Array = 0
    align: Align = "start"

    def visible(self, at: Place) -> bool:
        return at.key <= at.query + _offset(self.offset, self.align, at)


@dataclass(frozen=True, eq=False)
class Window:
    """Key j is visible to query i iff i + offset - left <= j <= i + offset + right."""

    left: int | None
    right: int | None
    offset: int | Array = 0
    align: Align = "start"

    def visible(self, at: Place) -> bool:
        distance = at.key - at.query - _offset(self.offset, self.align, at)
        return (self.left is None or distance >= -self.left) and (self.right is None or distance <= self.right)


@dataclass(frozen=True, eq=False)
class Padding:
    """Key j is visible iff j < lengths, one length for each batch."""

    lengths: Array

    def visible(self, at: Place) -> bool:
        return at.key < entry(self.lengths, at.lead)


@dataclass(frozen=True, eq=False)
class Segments:
    """A key is visible to the queries that have its id: ids (..., Q) and (..., K)."""

    q_ids: Array
    k_ids: Array

    def visible(self, at: Place) -> bool:
        return entry(self.q_ids, (*at.lead, at.row)) == entry(self.k_ids, (*at.lead, at.column))


@dataclass(frozen=True, eq=False)
class Both:
    """Visible to both."""

    one: Mask
    other: Mask

    def visible(self, at: Place) -> bool:
        return self.one.visible(at) and self.other.visible(at)


@dataclass(frozen=True, eq=False)
class Either:
    """Visible to one of them."""

    one: Mask
    other: Mask

    def visible(self, at: Place) -> bool:
        return self.one.visible(at) or self.other.visible(at)


@dataclass(frozen=True, eq=False)
class Inverse:
    """Visible where the mask is not."""

    mask: Mask

    def visible(self, at: Place) -> bool:
        return not self.mask.visible(at)


Mask: TypeAlias = Dense | Causal | Window | Padding | Segments | Both | Either | Inverse


@dataclass(frozen=True)
class Dropout:
    """Dropout of the weights: the rate and the seed of the random key."""

    rate: float
    seed: int


def pairs(mask: Mask, shape: tuple[int, ...], q_positions: Any = None, k_positions: Any = None) -> Array:
    """The mask as a boolean array that broadcasts to `shape` (..., H, Q, K), for subjects that take no rules.

    A dense mask that does not broadcast comes back as it is, so that the subject can refuse it.
    """
    Q, K = shape[-2:]
    i = np.asarray(range(Q) if q_positions is None else q_positions)[..., None, :, None]
    j = np.asarray(range(K) if k_positions is None else k_positions)[..., None, None, :]

    def of(mask: Mask) -> Array:
        match mask:
            case Dense(array):
                return array
            case Causal(offset, align):
                return j - i - _shift(offset, align, Q, K) <= 0
            case Window(left, right, offset, align):
                ahead = j - i - _shift(offset, align, Q, K)
                return (True if left is None else ahead >= -left) & (True if right is None else ahead <= right)
            case Padding(lengths):
                return j < np.asarray(lengths)[..., None, None, None]
            case Segments(q_ids, k_ids):
                return np.asarray(q_ids)[..., None, :, None] == np.asarray(k_ids)[..., None, None, :]
            case Both(one, other):
                return of(one) & of(other)
            case Either(one, other):
                return of(one) | of(other)
            case Inverse(inner):
                return ~of(inner)

    return np.asarray(of(mask), bool)


def _shift(offset: int | Array, align: Align, queries: int, keys: int) -> Array:
    return np.asarray(offset)[..., None, None, None] + (keys - queries if align == "end" else 0)


def fit(index: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index into an array that broadcasts from the right: trailing axes, those of size 1 held at 0."""
    tail = index[len(index) - len(shape) :]
    return tuple(0 if size == 1 else i for i, size in zip(tail, shape, strict=True))


def entry(values: Any, index: tuple[int, ...]) -> int:
    """The integer of an array (or plain number) that broadcasts over the axes of `index`."""
    array = np.asarray(values)
    return int(array[fit(index, array.shape)])


def _offset(offset: int | Array, align: Align, at: Place) -> int:
    return entry(offset, at.lead) + (at.keys - at.queries if align == "end" else 0)
