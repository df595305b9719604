"""Arrays that nobody else holds, written over where they may be.

Each operation on a large array makes another one, and the memory of that costs more than the operation. What is made of
a few rows stays in a core's cache, and takes the place of what was made of the few rows before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ._compat import Array, is_array, namespace
from .host import host_of


def is_free(x: Array, *held: Array | float | None) -> bool:
    """Whether x may be written over, by what is computed with the other arrays, too."""
    host = host_of(x)
    return host.in_place is not None and host.concrete(x, *(a for a in held if is_array(a)))


def added(x: Array, y: Array) -> Array:
    """x + y, for an x that nobody else holds and that is as large."""
    if not is_free(x, y):
        return x + y
    x += y
    return x


def by_rows(
    function: Callable[..., Array],
    x: Array,
    *others: Array,
    held: Sequence[Array | float | None] = (),
    over: bool = False,
    products: bool = False,
) -> Array:
    """`function(x, *others)`, which makes of each row of these arrays (..., M) one like that of x, and of nothing else.

    Where they, and what is `held` for it to compute with, may be looked at, it is given some rows at a time, (n, M);
    several times at once if there are idle cores.

    over
        Nobody else holds x: results take the place of its rows, and may be made there.
    products
        Of rows and matrices, which take long for few rows.
    """
    if not is_free(x, *others, *held):
        return function(x, *others)
    ops = host_of(x).in_place
    assert ops is not None
    xp, rows, width = namespace(x), math.prod(x.shape[:-1]), x.shape[-1]
    count = -(-rows // max(ops.piece(x) // max(1, width), _PRODUCT if products else 1))
    if count <= 1:
        return function(x, *others)
    flat = [xp.reshape(a, (rows, width)) for a in (x, *others)]
    out = flat[0] if over else xp.empty_like(flat[0])

    def compute(n: int) -> None:
        # As many for each: of a few that are left over a product would be made, and rounded, in another way.
        piece = slice(n * rows // count, (n + 1) * rows // count)
        parts = [a[piece, :] for a in flat]
        made = function(*parts)
        if made is not parts[0] or not over:
            out[piece, :] = made

    ops.each(compute, range(count))
    return xp.reshape(out, x.shape)


# Of so many rows: what a product takes to arrange its matrix does not count beside them.
_PRODUCT = 512
