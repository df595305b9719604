"""What the pictures are made of: numbers and masks as nested lists, and the names of rows and columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate, product
from operator import index
from typing import Any
from unicodedata import east_asian_width

from ._compat import Array, is_array, namespace
from .backend import choose
from .errors import DTypeError, OptionError, ShapeError
from .host import beside
from .masks import Mask, as_mask
from .shapes import Shape, Span, broadcasts_to
from .struct import arrays_in

SLACK = 1e-3  # how far rounding may put a weight outside 0 .. 1
LONGEST = 2.2  # inches of a name, some 25 letters
EM = 0.125  # inches: the width of a wide letter in the pictures' 9 points
WIDE = frozenset("mwMW@%—…")
# Controls, the ends of lines, and what XML has no place for.
UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")

Rows = list[list[float]]


def nested(x: Any, name: str = "weights are") -> Any:
    """Nested lists of Python numbers."""
    if isinstance(x, list | tuple):
        return [nested(part, name) for part in x]
    if not is_array(x):
        return x
    if not hasattr(x, "tolist"):  # array-api-strict's and Dask's arrays
        if not hasattr(x, "__array__"):
            msg = f"{name} a {type(x).__name__}, which has no `tolist`. Pass `backend.to_numpy` of it."
            raise DTypeError(msg)
        x = x.__array__()
    try:
        return x.tolist()
    except Exception as error:  # of whatever kind a framework has for it
        msg = f"{name} a {type(x).__name__} whose numbers cannot be read here. Draw outside of `jit`, `vmap`, `grad` "
        msg += "and `compile`, from an array on a device that holds its numbers."
        raise DTypeError(msg) from error


def shape_of(values: Any) -> Shape:
    """The shape of nested lists that are as long as their neighbours."""
    if not isinstance(values, list):
        return ()
    inner = {shape_of(part) for part in values}
    if len(inner) > 1:
        msg = f"weights are nested lists of unequal lengths: {', '.join(map(str, sorted(inner)))} beside each other."
        raise ShapeError(msg)
    return (len(values), *(inner.pop() if inner else ()))


def between_0_and_1(values: Rows) -> None:
    for row in values:
        for value in row:
            if not isinstance(value, int | float) or value < -SLACK or value > 1 + SLACK:
                msg = f"a weight is {value!r}; weights are between 0 and 1. Are these scores, before the softmax?"
                raise OptionError(msg)


def visible_pairs(mask: Mask | Array, Q: int, K: int) -> list[tuple[tuple[int, ...], Rows]]:
    """The pairs of the mask, (place, 0s and 1s) for each place of its leading axes."""
    if Q < 1 or K < 1:
        msg = f"a mask of Q={Q} queries and K={K} keys has no pair to show. Both need to be 1 or more."
        raise ShapeError(msg)
    rule = as_mask(mask)
    held = list(arrays_in("mask", rule).values())
    like = held[0] if held else choose("numpy").asarray(0)
    xp = namespace(like)
    q, k = (Span(0, n, n, xp.arange(n, **beside(like)), (0, n)) for n in (Q, K))
    tile = rule.tile(q, k, xp=xp, device=beside(like).get("device"))
    if not broadcasts_to(tile.shape[-2:], (Q, K)):
        msg = f"the mask is {tuple(tile.shape[-2:])} in its last axes, which does not broadcast to Q={Q}, K={K}."
        raise ShapeError(msg)
    lead = tuple(tile.shape[:-2])
    if 0 in lead:
        msg = f"the mask is {lead} in its leading axes, which leaves nothing to show."
        raise ShapeError(msg)
    pairs = nested(xp.astype(xp.reshape(xp.broadcast_to(tile, (*lead, Q, K)), (-1, Q, K)), xp.float32), "mask is")
    counted = [n for n, length in enumerate(lead) if length > 1]
    places = [tuple(index[n] for n in counted) for index in product(*map(range, lead))]
    return list(zip(places, pairs, strict=True))


def whole(name: str, x: Any) -> int:
    """A whole number as Python's int."""
    with suppress(TypeError):
        if not isinstance(x, bool):
            return index(x)
    msg = f"{name}={x!r}: a whole number is needed."
    raise DTypeError(msg)


def names_of(tokens: Any, keys: Any, Q: int, K: int) -> tuple[list[str], list[str]]:
    """Of the rows and of the columns: words, or numbers of tokens, as they are shown."""
    rows = [str(i) for i in range(Q)] if tokens is None else _names("tokens are", tokens, Q)
    if keys is not None:
        return rows, _names("keys are", keys, K)
    return rows, rows if tokens is not None and Q == K else [str(j) for j in range(K)]


def _names(name: str, given: Any, needed: int) -> list[str]:
    try:
        names = [shown(one) for one in nested(given, name)]
    except TypeError as error:
        if isinstance(error, DTypeError):
            raise
        msg = f"{name} of type {type(given).__name__}; {needed} names are needed, one for each row or column."
        raise DTypeError(msg) from None
    if len(names) != needed:
        msg = f"{name} {len(names)} names, {names!r}; the weights have {needed}."
        raise OptionError(msg)
    return names


def shown(text: Any) -> str:
    r"""A text as one line, its control characters as Python writes them: ESC as \x1b."""
    return UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def titled(text: Any) -> str:
    """A title, which may have several lines; None is none."""
    return "" if text is None else "\n".join(map(shown, str(text).split("\n")))


def shortened(text: str, inches: float = LONGEST) -> str:
    """Each line no wider than that, about; an ellipsis is its end where there was more."""
    return "\n".join(_cut(line, inches) for line in text.split("\n"))


def _cut(line: str, inches: float) -> str:
    if room([line]) <= inches:
        return line
    ends = accumulate(map(_width, f"…{line}"))
    return line[: sum(end <= inches for end in ends) - 1] + "…"


def room(texts: Sequence[str]) -> float:
    """The width of the widest line in inches, about."""
    return max((sum(map(_width, line)) for text in texts for line in text.split("\n")), default=0.0)


def _width(letter: str) -> float:
    return EM if letter in WIDE or east_asian_width(letter) in "WF" else 0.68 * EM
