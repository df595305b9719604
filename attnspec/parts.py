"""Parts of a call: blocks of the axes (..., H), and where in an array each of them lies.

Where arrays have values on one device, attention is computed a few heads at a time, so that a tile of scores stays in
a core's cache. Sharded arrays and recorded programs are left whole: a loop over heads there would make every device do
all the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import product
from operator import add
from typing import Any

from ._compat import Array
from .shapes import Axes, Shape

Block = tuple[slice, ...]  # of the axes (..., H)


def part_of(x: Any, block: Block, trailing: int, axes: Axes | None = None) -> Any:
    """The part of an array (..., H, *trailing), of any rank, that belongs to a block of (..., H); itself if all does.

    Axes of length 1 are broadcast and stay. With the axes of the call, x has the key/value heads in place of H. A tuple
    has one axis: of the trailing ones, if there are any, and else the last of the block.
    """
    if isinstance(x, tuple):
        return x if trailing or len(x) == 1 else x[block[-1]]
    places = places_of(x.shape, block, trailing, axes)
    if all(place.stop - place.start == n for place, n in zip(places, x.shape, strict=False)):
        return x
    return x[(*places, *(slice(None),) * min(trailing, x.ndim))]


def places_of(shape: Shape, block: Block, trailing: int, axes: Axes | None = None) -> Block:
    """Where in its leading axes that part lies."""
    if axes is not None:
        r = max(1, axes.H // max(1, axes.G))
        block = (*block[:-1], slice(block[-1].start // r, -(-block[-1].stop // r)))
    own = shape[: max(0, len(shape) - trailing)]
    of_axes = block[len(block) - len(own) :]
    return tuple(slice(0, 1) if n == 1 else place for n, place in zip(own, of_axes, strict=True))


def blocks(axes: Axes, many: int) -> list[Block]:
    """(..., H) in blocks of about so many heads, each of whole groups or of a part of one."""
    r = max(1, axes.H // max(1, axes.G))
    counts: list[int] = []
    for size in reversed((*axes.lead, axes.H)):
        count = max(1, min(size, many))
        if not counts and count != size:
            count = count - count % r if count >= r else next(n for n in range(count, 0, -1) if r % n == 0)
        counts.append(count)
        many //= max(1, size)
    ranges = [
        [slice(start, min(size, start + count)) for start in range(0, max(1, size), count)]
        for size, count in zip((*axes.lead, axes.H), reversed(counts), strict=True)
    ]
    return list(product(*ranges))


def joined(xp: Any, parts: Sequence[tuple[Block, Array]], axis: int = 0) -> Array:
    """The array whose parts lie at those places of its leading axes; parts of the same place are added."""
    if axis == len(parts[0][0]):
        return reduce(add, (x for _, x in parts))
    along: dict[int, list[tuple[Block, Array]]] = {}
    for place, x in parts:
        along.setdefault(place[axis].start, []).append((place, x))
    pieces = [joined(xp, along[start], axis + 1) for start in sorted(along)]
    return pieces[0] if len(pieces) == 1 else xp.concat(pieces, axis=axis)
