"""Arrays that know of each number whether every framework gives it, and the errors that say where one would not.

`exactness.py` says what for; `exact_operations.py` computes with them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from .masks import Array

PRODUCT_ADDED = "a rounded product is added to"
ORDER = "a sum depends on its order"
MATMUL = "a product of matrices depends on its order"
LIBRARY = "a library's last bits are in the result"
SUBNORMAL = "subnormal numbers decide the result"
RANGE = "a cast or an index is out of range"
TWICE = "a cast rounds twice on some frameworks"
HALF = "half-precision numbers are computed with"
REWRITTEN = "a compiler may write it otherwise, with another result"


class NotIdenticalError(AssertionError):
    """A result that another framework, compiler or processor need not give; `rule` is one of the texts above."""

    def __init__(self, rule: str, place: str) -> None:
        super().__init__(f"{rule}: {place}")
        self.rule = rule


_stamps = count()


@dataclass(frozen=True, eq=False)
class Watched:
    """An array under watch. `loose`, `hint` and `fault` have its shape.

    loose
        Which numbers are rounded products that a compiler may still add to unrounded (fused multiply-add).
    hint
        Which are made of a library's exp, root, ...: good for nothing but to be rounded or compared. As a fault.
    fault
        Which are not the same everywhere: the number of an error of `FAULTS`, 0 for none.
    constant
        Whether a compiler knows the numbers.
    stamp, sources
        Which array this is, and of which arrays a boolean one was made by comparing.
    made
        How it was made, where XLA looks through to that: ("multiply", x, c), ("add", x, c), ("divide", a, b).
    """

    value: Array
    loose: Array = None
    hint: Array = None
    fault: Array = None
    constant: bool = False
    stamp: int = field(default_factory=_stamps.__next__)
    sources: frozenset[int] = frozenset()
    made: tuple[str, Array, Array] | None = None

    __array_ufunc__ = None  # NumPy's `array + watched` then asks the watched one

    def __post_init__(self) -> None:
        for name, dtype in (("loose", bool), ("hint", np.int32), ("fault", np.int32)):
            mark = getattr(self, name)
            if mark is None:
                mark = np.zeros(self.value.shape, dtype)
            elif mark.shape != self.value.shape:
                mark = np.broadcast_to(mark, self.value.shape)
            object.__setattr__(self, name, mark)

    def at_fault(self, where: Array, rule: str) -> Watched:
        """The same, and at fault in these entries too."""
        return replace(self, fault=np.maximum(self.fault, fault(where, rule)))

    def checked(self) -> Array:
        """The numbers, if every framework gives them."""
        for marks in (self.fault, self.hint):
            if np.any(marks):
                raise FAULTS[int(np.min(marks[marks > 0]))]
        return self.value

    def __getattr__(self, name: str) -> Any:
        if name in ("dtype", "shape", "ndim", "size", "device"):
            return getattr(self.value, name)
        msg = f"arrays under watch have no {name!r}"
        raise AttributeError(msg)

    def __len__(self) -> int:
        return len(self.value)

    def __bool__(self) -> bool:
        msg = "the values of these arrays are not to be looked at: in a recorded program there are none"
        raise TypeError(msg)

    __float__ = __int__ = __index__ = __bool__


# Places are few, so the list stays short.
FAULTS: list[NotIdenticalError] = [NotIdenticalError("no fault", "nowhere")]


def fault(where: Array, rule: str) -> Array:
    """The number of the fault at this place of the code in the entries that have it, 0 in others."""
    if not np.any(where):
        return np.zeros(np.shape(where), np.int32)
    error = NotIdenticalError(rule, _place())
    number = next((n for n, known in enumerate(FAULTS) if str(known) == str(error)), len(FAULTS))
    if number == len(FAULTS):
        FAULTS.append(error)
    return np.where(where, np.int32(number), np.int32(0))


def _place(depth: int = 4) -> str:
    """The innermost lines that are not the guard's own."""
    frame, lines = sys._getframe(), list[str]()
    while frame.f_back is not None and len(lines) < depth:
        file = Path(frame.f_code.co_filename)
        if not (file.parent == Path(__file__).parent and file.name.startswith("exact")):
            lines.append(f"{file.name}:{frame.f_lineno} ({frame.f_code.co_name})")
        frame = frame.f_back
    return " from ".join(lines)


def merged(marks: Iterable[Array], shape: tuple[int, ...]) -> Array:
    """The marks of entries that are made of several."""
    found = reduce(np.maximum, marks)
    return found if found.shape == shape else np.broadcast_to(found, shape)


def lifted(*args: Any) -> list[Watched]:
    """The operands as arrays: Python's numbers in the dtype of the array beside them."""
    dtypes = [x.value.dtype for x in args if isinstance(x, Watched)]
    if not dtypes:
        msg = f"an array beside {args} is needed: Python's numbers alone have no dtype"
        raise TypeError(msg)
    common = np.result_type(*dtypes)
    if common.kind in "iub" and any(isinstance(x, float) for x in args):
        msg = f"a float beside {common}: the standard leaves open what that gives"
        raise TypeError(msg)
    return [x if isinstance(x, Watched) else Watched(np.asarray(x, common), constant=True) for x in args]
