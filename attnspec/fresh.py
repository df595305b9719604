"""Arrays that nobody else holds, written over where they may be.

Each operation on a large array makes another one, and the memory of that costs more than the operation. What is made of
a few rows stays in a core's cache, and takes the place of what was made of the few rows before.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ._compat import Array, namespace
from .host import host_of


def is_free(x: Array, *held: Array | None) -> bool:
    """Whether x may be written over, by what is computed with the other arrays, too."""
    host = host_of(x)
    return host.in_place is not None and host.concrete(*(a for a in (x, *held) if a is not None))


def added(x: Array, y: Array) -> Array:
    """x + y, for an x that nobody else holds and that is as large."""
    if not is_free(x, y):
        return x + y
    x += y
    return x


def by_rows(function: Callable[[Array], Array], x: Array, *, over: bool) -> Array:
    """`function(x)` for a function that makes of each row of x (..., M) a row, whatever the others are; x `is_free`.

    It is given some rows at a time, (n, M). `over`: their results take their place, and may be made there.
    """
    ops = host_of(x).in_place
    assert ops is not None
    xp, rows, width = namespace(x), math.prod(x.shape[:-1]), x.shape[-1]
    many = max(1, ops.piece(x) // max(1, width))
    if rows <= many:
        return function(x)
    flat = xp.reshape(x, (rows, width))
    out = flat if over else xp.empty_like(flat)
    for start in range(0, rows, many):
        stop = min(start + many, rows)
        part = flat[start:stop, :]
        made = function(part)
        if made is not part:
            out[start:stop, :] = made
    return xp.reshape(out, x.shape)
