"""The derivatives of Array API functions that stand between the steps of attnspec's own, one line each.

A rule takes the namespace and the function's arguments, and returns its result and a function from the cotangent of
that to those of the operands in their order (None: constant). Broadcast axes are summed by the caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from ._compat import Array, Namespace
from .errors import DTypeError
from .host import beside

Rule = Callable[..., tuple[Array, Callable[[Array], Sequence[Array | None]]]]
RULES: dict[str, Rule] = {}

# Functions whose results no gradient flows through: they are steps, not slopes.
PLAIN = frozenset(
    {
        "all", "any", "argmax", "argmin", "argsort", "ceil", "equal", "floor", "full_like", "greater", "greater_equal",
        "isfinite", "isinf", "isnan", "less", "less_equal", "not_equal", "ones_like", "result_type", "round", "sign",
        "signbit", "trunc", "zeros_like",
    }
)  # fmt: skip


def _elementwise(name: str, slopes: Callable[..., Sequence[Any]]) -> None:
    """Enter a function of numbers: `slopes(xp, result, *operands)` are its partial derivatives."""

    def rule(xp: Namespace, *operands: Any) -> Any:
        result = getattr(xp, name)(*operands)
        return result, lambda g: [g * slope for slope in slopes(xp, result, *operands)]

    RULES[name] = rule


_SLOPES: dict[str, Callable[..., Sequence[Any]]] = {
    "add": lambda xp, y, a, b: (1.0, 1.0),
    "subtract": lambda xp, y, a, b: (1.0, -1.0),
    "multiply": lambda xp, y, a, b: (b, a),
    "divide": lambda xp, y, a, b: (1.0 / b, -y / b),
    "pow": lambda xp, y, a, b: (_power_slope(xp, a, b), _log(xp, a) * y),
    "maximum": lambda xp, y, a, b: _shares(xp, a >= b, b >= a, y),
    "minimum": lambda xp, y, a, b: _shares(xp, a <= b, b <= a, y),
    "negative": lambda xp, y, a: (-1.0,),
    "abs": lambda xp, y, a: (xp.sign(a),),
    "exp": lambda xp, y, a: (y,),
    "expm1": lambda xp, y, a: (y + 1.0,),
    "log": lambda xp, y, a: (1.0 / a,),
    "log1p": lambda xp, y, a: (1.0 / (1.0 + a),),
    "sqrt": lambda xp, y, a: (0.5 / y,),
    "square": lambda xp, y, a: (2.0 * a,),
    "reciprocal": lambda xp, y, a: (-y * y,),
    "tanh": lambda xp, y, a: (1.0 - y * y,),
    "sin": lambda xp, y, a: (xp.cos(a),),
    "cos": lambda xp, y, a: (-xp.sin(a),),
}
for _name, _slopes in _SLOPES.items():
    _elementwise(_name, _slopes)


def _power_slope(xp: Namespace, a: Any, b: Any) -> Any:
    """b a^(b - 1), 0 for b = 0 even at a = 0."""
    if isinstance(b, int | float):
        return b * a ** (b - 1) if b else 0.0
    return xp.where(b == 0, 0.0, b * a ** xp.where(b == 0, 1.0, b - 1))


def _log(xp: Namespace, a: Any) -> Any:
    """log(a) for the slope of a power by its exponent, which a number as a base, or a base of 0, makes a number."""
    return math.log(a) if isinstance(a, int | float) else xp.log(xp.where(a > 0, a, 1.0))


def _shares(xp: Namespace, a: Array, b: Array, y: Array) -> tuple[Array, Array]:
    """1 for the operand that was taken, one half for each of equal ones."""
    a, b = (xp.astype(x, y.dtype) for x in (a, b))
    return a / (a + b), b / (a + b)


def _rule(function: Rule) -> Rule:
    RULES[function.__name__.strip("_")] = function
    return function


@_rule
def where(xp: Namespace, condition: Array, a: Any, b: Any) -> Any:
    return xp.where(condition, a, b), lambda g: (None, xp.where(condition, g, 0.0), xp.where(condition, 0.0, g))


@_rule
def clip(xp: Namespace, x: Array, low: Any = None, high: Any = None) -> Any:
    y = xp.clip(x, low, high)
    return y, lambda g: (xp.where(y == x, g, 0.0), None, None)


@_rule
def matmul(xp: Namespace, a: Array, b: Array) -> Any:
    def back(g: Array) -> Any:
        row, column = a.ndim == 1, b.ndim == 1
        g = g[..., None] if column else g
        g = g[..., None, :] if row else g
        whole_a, whole_b = a[None, :] if row else a, b[:, None] if column else b
        of_a, of_b = g @ xp.matrix_transpose(whole_b), xp.matrix_transpose(whole_a) @ g
        return of_a[..., 0, :] if row else of_a, of_b[..., 0] if column else of_b

    return xp.matmul(a, b), back


@_rule
def sum_(xp: Namespace, x: Array, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    y = xp.sum(x, axis=axis, dtype=dtype, keepdims=keepdims)
    return y, lambda g: (_spread(xp, g, x, axis, keepdims),)


@_rule
def mean(xp: Namespace, x: Array, *, axis: Any = None, keepdims: bool = False) -> Any:
    y = xp.mean(x, axis=axis, keepdims=keepdims)
    n = math.prod(x.shape[a] for a in _axes(x, axis))
    return y, lambda g: (_spread(xp, g, x, axis, keepdims) / n,)


@_rule
def max_(xp: Namespace, x: Array, *, axis: Any = None, keepdims: bool = False) -> Any:
    y = xp.max(x, axis=axis, keepdims=True)

    def back(g: Array) -> Any:
        top = xp.astype(x == y, x.dtype)
        return (_spread(xp, g, x, axis, keepdims) * top / xp.sum(top, axis=axis, keepdims=True),)

    return y if keepdims else xp.squeeze(y, axis=_axes(x, axis)), back


@_rule
def astype(xp: Namespace, x: Array, dtype: Any, *, copy: bool = True) -> Any:
    return xp.astype(x, dtype, copy=copy), lambda g: (g,)


@_rule
def reshape(xp: Namespace, x: Array, shape: Sequence[int]) -> Any:
    return xp.reshape(x, shape), lambda g: (xp.reshape(g, x.shape),)


@_rule
def broadcast_to(xp: Namespace, x: Array, shape: Sequence[int]) -> Any:
    return xp.broadcast_to(x, shape), lambda g: (g,)


@_rule
def permute_dims(xp: Namespace, x: Array, axes: Sequence[int]) -> Any:
    back = sorted(range(x.ndim), key=lambda n: axes[n] % x.ndim)
    return xp.permute_dims(x, axes), lambda g: (xp.permute_dims(g, tuple(back)),)


@_rule
def moveaxis(xp: Namespace, x: Array, source: Any, destination: Any) -> Any:
    return xp.moveaxis(x, source, destination), lambda g: (xp.moveaxis(g, destination, source),)


@_rule
def matrix_transpose(xp: Namespace, x: Array) -> Any:
    return xp.matrix_transpose(x), lambda g: (xp.matrix_transpose(g),)


@_rule
def expand_dims(xp: Namespace, x: Array, *, axis: Any = 0) -> Any:
    return xp.expand_dims(x, axis=axis), lambda g: (xp.reshape(g, x.shape),)


@_rule
def squeeze(xp: Namespace, x: Array, axis: Any) -> Any:
    return xp.squeeze(x, axis=axis), lambda g: (xp.reshape(g, x.shape),)


@_rule
def concat(xp: Namespace, arrays: Sequence[Array], *, axis: int = 0) -> Any:
    def back(g: Array) -> Any:
        ends = [0]
        for x in arrays:
            ends.append(ends[-1] + x.shape[axis])
        return [_cut(g, axis, start, stop) for start, stop in pairwise(ends)]

    return xp.concat(arrays, axis=axis), back


@_rule
def stack(xp: Namespace, arrays: Sequence[Array], *, axis: int = 0) -> Any:
    def back(g: Array) -> Any:
        return [xp.squeeze(_cut(g, axis, n, n + 1), axis=axis) for n in range(len(arrays))]

    return xp.stack(arrays, axis=axis), back


def getitem(xp: Namespace, x: Array, index: Any) -> Any:
    """Integers, slices, None and the ellipsis; the standard cannot add to chosen entries, so each row finds its own."""
    entries = index if isinstance(index, tuple) else (index,)
    if not all(n is None or n is Ellipsis or isinstance(n, int | slice) for n in entries):
        msg = f"x[{index!r}] has no rule under attnspec.vjp; integers, slices, None and ... have."
        raise DTypeError(msg)
    y = x[index]

    def back(g: Array) -> Any:
        real = [n for n in entries if n is not None and n is not Ellipsis]
        dots = next((n for n, e in enumerate(e for e in entries if e is not None) if e is Ellipsis), len(real))
        real[dots:dots] = [slice(None)] * (x.ndim - len(real))
        rows = [slice(e % n, e % n + 1) if isinstance(e, int) else e for e, n in zip(real, x.shape, strict=True)]
        taken = [range(n)[e] for e, n in zip(rows, x.shape, strict=True)]
        g = xp.reshape(g, tuple(len(r) for r in taken))
        for axis, (r, n) in enumerate(zip(taken, x.shape, strict=True)):
            if len(r) != n or r.step != 1:
                g = _placed(xp, g, axis, r, n)
        return (g, None)

    return y, back


def _placed(xp: Namespace, g: Array, axis: int, rows: range, n: int) -> Array:
    """g's rows at those places of an axis of n, zeros elsewhere."""
    if not rows:
        return xp.zeros((*g.shape[:axis], n, *g.shape[axis + 1 :]), dtype=g.dtype, **beside(g))
    found = [rows.index(place) if place in rows else -1 for place in range(n)]
    where_from = xp.asarray([max(f, 0) for f in found], **beside(g))
    there = xp.asarray([f >= 0 for f in found], **beside(g))
    return xp.where(there[(..., *(None,) * (g.ndim - axis - 1))], xp.take(g, where_from, axis=axis), 0.0)


def _cut(x: Array, axis: int, start: int, stop: int) -> Array:
    return x[(*(slice(None),) * (axis % x.ndim), slice(start, stop), ...)]


def _axes(x: Array, axis: Any) -> tuple[int, ...]:
    axes = range(x.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    return tuple(a % x.ndim for a in axes)


def _spread(xp: Namespace, g: Array, x: Array, axis: Any, keepdims: bool) -> Array:
    """The cotangent of a reduction, for each entry that it summed."""
    if not keepdims:
        shape = tuple(1 if n in _axes(x, axis) else size for n, size in enumerate(x.shape))
        g = xp.reshape(g, shape)
    return xp.broadcast_to(g, x.shape)
