"""What a host (`host.py`) says of arrays that may be written to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ._compat import Array


def _in_turn(function: Callable[[Any], None], tasks: Sequence[Any]) -> None:
    for task in tasks:
        function(task)


def _one() -> int:
    return 1


@dataclass(frozen=True)
class InPlace:
    """What a framework does in the place of an array whose values nobody else holds.

    exp, exp2
        `exp(x, least, visible=None)`: (exp(x) in the place of x; in which rows (..., 1) a visible one was too small to
        be kept, None for none). It is exactly 0 then, and others of the row may be off by as much as that, twice the
        least normal number: products of subnormal numbers take ten times as long as others. What is not visible may be
        anything. `least`: no x is less; None where the caller has not looked. `visible`: broadcasts to x; None:
        everything is. `exp2` the same with 2**x; None: it is not the faster of the two.
    veil, hide
        `hide(x, veil(visible, x))`: x in its place, and exactly 0 where not `visible`, whatever x is there. `visible`
        broadcasts to x; its veil serves many arrays of that dtype.
    extremes
        `extremes(x)`: (the least, the largest) of x, which is not empty, as Python numbers; NaN if there is one in x.
    rotate
        `rotate(x, n, spare)`: x, int32, rotated to the left by n of its bits, in its place; `spare`, an array like it,
        is written to. None: random words are drawn by operations that write nothing.
    each
        `each(function, tasks)`: `function(task)` for every task, some of them at once if there are idle cores.
    workers
        How many of them, at most.
    piece
        `piece(x)`: of so many entries of arrays like x a few fit a core's cache; all of x where there is no such thing.
    is_near
        Whether a value of x is there at once when it is looked at: no other device has to finish first.
    """

    exp: Callable[..., tuple[Array, Array | None]]
    exp2: Callable[..., tuple[Array, Array | None]] | None
    veil: Callable[[Array, Array], Any]
    hide: Callable[[Array, Any], Array]
    extremes: Callable[[Array], tuple[float, float]]
    rotate: Callable[[Array, int, Array], None] | None = None
    each: Callable[[Callable[[Any], None], Sequence[Any]], None] = _in_turn
    workers: Callable[[], int] = _one
    piece: Callable[[Array], int] = lambda x: 2**16
    is_near: Callable[[Array], bool] = lambda x: True
