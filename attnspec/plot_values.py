"""What the pictures are made of: numbers as nested lists, and the names of rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._compat import is_array
from .errors import DTypeError, OptionError, ShapeError
from .shapes import Shape

SLACK = 1e-3  # how far rounding may put a weight outside 0 .. 1

Rows = list[list[float]]


def nested(x: Any) -> Any:
    """Nested lists of Python numbers."""
    if isinstance(x, list | tuple):
        return [nested(part) for part in x]
    if not is_array(x):
        return x
    if not hasattr(x, "tolist"):  # array-api-strict's and Dask's arrays
        if not hasattr(x, "__array__"):
            msg = f"weights are a {type(x).__name__}, which has no `tolist`. Pass `backend.to_numpy(weights)`."
            raise DTypeError(msg)
        x = x.__array__()
    return x.tolist()


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
            if isinstance(value, complex | str) or value < -SLACK or value > 1 + SLACK:
                msg = f"a weight is {value!r}; weights are between 0 and 1. Are these scores, before the softmax?"
                raise OptionError(msg)


def names_of(tokens: Sequence[str] | None, keys: Sequence[str] | None, Q: int, K: int) -> tuple[list[str], list[str]]:
    """Of the rows and of the columns."""
    rows = [str(i) for i in range(Q)] if tokens is None else list(tokens)
    columns = [str(j) for j in range(K)] if keys is None and (tokens is None or Q != K) else list(keys or rows)
    for name, given, needed in (("tokens", rows, Q), ("keys", columns, K)):
        if len(given) != needed:
            msg = f"{name} are {len(given)} names, {given!r}; the weights have {needed}."
            raise OptionError(msg)
    return rows, columns
