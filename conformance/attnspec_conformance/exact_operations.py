"""What operations do to arrays under watch: which results are loose, hints or at fault, and which settle an operand."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import array_api_compat.numpy as xp
import numpy as np

from attnspec._compat import FLOATING, dtype_name

from . import exact_arrays as rules
from .exact_arrays import Watched, fault, lifted, merged
from .exact_moves import broadcast_arrays, moved, places_only, taken, unstack
from .exact_numbers import LOWEST, differ, flushed, ordered_matmul, ordered_sum, rounded_product
from .masks import Array


class Elsewhere(NamedTuple):
    """What differs from one place to another and must not be seen in a result."""

    library: np.random.Generator  # errs by a few units of the last place, in its own way
    flushes: bool  # takes subnormal numbers for 0


elsewhere: ContextVar[Elsewhere] = ContextVar("attnspec_conformance.elsewhere")
_OFF = {"float64": 2.0**-46, "float32": 2.0**-17}


def elementwise(name: str, *operands: Watched) -> Watched:
    """Numbers in the same places. Faults and hints stay."""
    y = _met(np.asarray(getattr(xp, name)(*(_met(x.value) for x in operands))))
    return Watched(
        y, None, merged((x.hint for x in operands), y.shape), merged((x.fault for x in operands), y.shape),
        constant=all(x.constant for x in operands),
    )  # fmt: skip


def _met(x: Array) -> Array:
    """The numbers as an operation meets them, or leaves them."""
    return flushed(x) if elsewhere.get().flushes else x


def _arithmetic(name: str, *operands: Watched) -> Watched:
    y = elementwise(name, *operands)
    return y.at_fault(np.full(y.value.shape, dtype_name(y.value) in ("float16", "bfloat16")), rules.HALF)


def _rewritten(y: Watched, other: Array) -> Watched:
    """y, in whose place a compiler may compute `other`."""
    return y.at_fault(differ(y.value, np.asarray(other)), rules.REWRITTEN)


def _sum_of_two(name: str, a: Any, b: Any) -> Watched:
    x, z = lifted(a, b)
    y = _arithmetic(name, x, z)
    if y.value.dtype.name not in LOWEST:
        return y
    y = y.at_fault((x.loose & ~_absorbed(x, z)) | (z.loose & ~_absorbed(z, x)), rules.PRODUCT_ADDED)
    if name == "add" and x.constant:
        x, z = z, x
    if x.constant or not z.constant:
        return y
    constant = z.value if name == "add" else -z.value
    if x.made is not None and x.made[0] == "add":
        y = _rewritten(y, x.made[1] + (x.made[2] + constant))
    return replace(y, made=("add", x.value, constant))


def _absorbed(product: Watched, other: Watched) -> Array:
    """Where a product is subnormal, whose rounding no other addend would show than one nearly as small."""
    tiny = np.abs(product.value) < 2.0 ** LOWEST[product.value.dtype.name]
    size = np.abs(other.value)
    return tiny & ((size == 0) | (size >= 2.0 ** (LOWEST[product.value.dtype.name] + 60)))


def _product(a: Any, b: Any) -> Watched:
    x, z = lifted(a, b)
    y = _arithmetic("multiply", x, z)
    if y.value.dtype.kind != "f":
        return y
    loose = rounded_product(x.value, z.value, y.value)
    if x.constant:
        x, z = z, x
    if x.constant or not z.constant:
        return replace(y, loose=loose)
    # A compiler drops a factor of 1, and joins a constant factor to another one.
    seen_through = np.abs(z.value) == 1
    if x.made is not None and x.made[0] == "multiply":
        y = _rewritten(y, x.made[1] * (x.made[2] * z.value))
        seen_through = np.ones_like(seen_through)
    return replace(y, loose=loose | (x.loose & seen_through), made=("multiply", x.value, z.value))


def _quotient(a: Any, b: Any) -> Watched:
    """Nothing fuses a quotient with a sum; but there are other ways to divide."""
    x, z = lifted(a, b)
    y = _arithmetic("divide", x, z)
    if not x.constant and (z.constant or z.value.size != y.value.size):
        y = _rewritten(y, x.value * (1 / z.value))
    if x.made is not None and x.made[0] == "divide":
        y = _rewritten(y, x.made[1] / (x.made[2] * z.value))
    if z.made is not None and z.made[0] == "divide":
        y = _rewritten(y, x.value * z.made[2] / z.made[1])
    seen_through = z.constant & (np.abs(z.value) == 1)
    return replace(y, loose=x.loose & seen_through, made=("divide", x.value, z.value))


def _library_function(name: str, *args: Any) -> Watched:
    operands = lifted(*args)
    y = elementwise(name, *operands)
    if y.value.dtype.kind != "f":
        return y
    off = elsewhere.get().library.uniform(-1, 1, y.value.shape) * _OFF.get(dtype_name(y.value), 0.0)
    value = np.asarray(y.value * (1 + off), y.value.dtype)
    return replace(y, value=value, hint=fault(np.ones(value.shape, bool), rules.LIBRARY))


def _comparison(name: str, *args: Any) -> Watched:
    operands = lifted(*args)
    return replace(elementwise(name, *operands), hint=None, sources=frozenset(x.stamp for x in operands))


def _rounding(name: str, x: Watched) -> Watched:
    return replace(elementwise(name, x), hint=None)


def _logical(name: str, *args: Any) -> Watched:
    """A certain False decides an `and`, a certain True an `or`, whatever else there is."""
    operands = lifted(*args)
    y = elementwise(name, *operands)
    if y.value.dtype != bool:
        return y
    decisive = {"logical_and": False, "logical_or": True, "bitwise_and": False, "bitwise_or": True}.get(name)
    certain = [(x.value == decisive) & (x.fault == 0) for x in operands]
    decided = merged(certain, y.value.shape) & (decisive is not None)
    sources = frozenset[int]().union(*(x.sources for x in operands))
    return replace(y, fault=np.where(decided, 0, y.fault), sources=sources)


def _selection(name: str, *args: Any) -> Watched:
    """One of the operands, or its negative: what they are stays with them."""
    operands = lifted(*args)
    y = elementwise(name, *operands)
    loose = merged((x.loose for x in operands), y.value.shape)
    return replace(y, loose=loose, stamp=operands[0].stamp if len(operands) == 1 else y.stamp)


def _where(condition: Watched, a: Any, b: Any) -> Watched:
    """What is chosen. A product of whose own value the choice is made is rounded by then."""
    x, z = lifted(a, b)
    value, *marks = (
        np.asarray(xp.where(condition.value, p, q))
        for p, q in (
            (x.value, z.value), (_loose(x, condition), _loose(z, condition)), (x.hint, z.hint), (x.fault, z.fault),
        )
    )  # fmt: skip
    constant = x.constant and z.constant and condition.constant
    return Watched(value, marks[0], marks[1], np.maximum(marks[2], condition.fault), constant)


def _loose(x: Watched, condition: Watched) -> Array:
    return x.loose & (x.stamp not in condition.sources)


def _clip(x: Watched, low: Any = None, high: Any = None) -> Watched:
    x = x if low is None else _selection("maximum", x, low)
    return x if high is None else _selection("minimum", x, high)


def _astype(x: Watched, dtype: Any, *, copy: bool = True, device: Any = None) -> Watched:
    wanted = np.dtype(dtype)
    if wanted == x.value.dtype:
        return x
    y = Watched(_met(np.asarray(xp.astype(_met(x.value), wanted))), None, None, x.fault, x.constant)
    if dtype_name(x.value) not in FLOATING:
        return y
    if wanted.kind in "iu":
        info = np.iinfo(wanted)
        fits = (x.value >= info.min) & (x.value <= info.max)
        return replace(y, value=np.where(fits, y.value, 0)).at_fault(~fits, rules.RANGE)
    if wanted.kind == "b":
        return y
    if wanted.itemsize > x.value.dtype.itemsize:
        return replace(y, hint=x.hint, loose=x.loose)
    through = x.value.astype(np.float32).astype(wanted)
    twice = differ(y.value.astype(np.float64), through.astype(np.float64))
    return replace(y, hint=x.hint).at_fault(twice, rules.TWICE)


def _axes(x: Watched, axis: Any) -> tuple[int, ...]:
    return tuple(range(x.value.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)


def _along(x: Watched, marks: Array, axis: Any, keepdims: bool) -> Array:
    return np.asarray(np.max(marks, axis=_axes(x, axis), keepdims=keepdims, initial=0), marks.dtype)


def _extremum(name: str, x: Watched, *, axis: Any = None, keepdims: bool = False) -> Watched:
    value = np.asarray(getattr(xp, name)(x.value, axis=axis, keepdims=keepdims))
    loose, hint, fault = (_along(x, mark, axis, keepdims) for mark in (x.loose, x.hint, x.fault))
    return Watched(value, loose, hint, fault, x.constant)


def _quantifier(name: str, x: Watched, *, axis: Any = None, keepdims: bool = False) -> Watched:
    value = np.asarray(getattr(xp, name)(x.value, axis=axis, keepdims=keepdims))
    certain = (x.value == (name == "any")) & (x.fault == 0)
    decided = np.any(certain, axis=_axes(x, axis), keepdims=keepdims)
    return Watched(value, fault=np.where(decided, 0, _along(x, x.fault, axis, keepdims)), constant=x.constant)


def _position(name: str, x: Watched, *, axis: Any = None, keepdims: bool = False) -> Watched:
    value = np.asarray(getattr(xp, name)(x.value, axis=axis, keepdims=keepdims))
    return Watched(value, fault=_along(x, x.fault, axis, keepdims))


def _sum(x: Watched, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Watched:
    if dtype is not None:
        x = _astype(x, dtype)
    value = _met(np.asarray(xp.sum(_met(x.value), axis=axis, keepdims=keepdims)))
    loose, hint, faults = (_along(x, mark, axis, keepdims) for mark in (x.loose, x.hint, x.fault))
    y = Watched(value, None, hint, faults, x.constant)
    if dtype_name(value) not in FLOATING:
        return y
    y = y.at_fault(np.full(value.shape, dtype_name(value) in ("float16", "bfloat16")), rules.HALF)
    if value.dtype.itemsize < 4:
        return y
    ordered = np.reshape(ordered_sum(x.value, _axes(x, axis)), value.shape)
    return y.at_fault(loose, rules.PRODUCT_ADDED).at_fault(ordered, rules.ORDER)


def _mean(x: Watched, *, axis: Any = None, keepdims: bool = False) -> Watched:
    total = _sum(x, axis=axis, keepdims=keepdims)
    return _quotient(total, float(x.value.size / max(1, total.value.size)))


def _matmul(a: Any, b: Any) -> Watched:
    x, z = lifted(a, b)
    if x.value.dtype != z.value.dtype:
        msg = f"matrices of {x.value.dtype} and {z.value.dtype}"
        raise TypeError(msg)
    if x.value.ndim == 1:
        return moved(partial(np.squeeze, axis=-2), _matmul(moved(lambda v: v[None, :], x), z))
    if z.value.ndim == 1:
        return moved(partial(np.squeeze, axis=-1), _matmul(x, moved(lambda v: v[:, None], z)))
    value = _met(np.asarray(xp.matmul(_met(x.value), _met(z.value))))
    hint, faults = (
        np.maximum(np.max(p, axis=-1, keepdims=True, initial=0), np.max(q, axis=-2, keepdims=True, initial=0))
        for p, q in ((x.hint, z.hint), (x.fault, z.fault))
    )
    y = Watched(value, None, hint, faults)
    if value.dtype.name not in _OFF:
        return y.at_fault(np.full(value.shape, dtype_name(value) in FLOATING), rules.HALF)
    return y.at_fault(ordered_matmul(x.value, z.value), rules.MATMUL)


def _tensordot(a: Watched, b: Watched, *, axes: int = 2) -> Watched:
    outer, inner = a.value.shape[: a.value.ndim - axes], b.value.shape[axes:]
    rows = moved(lambda v: np.reshape(v, (*(() if outer == () else (int(np.prod(outer)),)), -1)), a)
    columns = moved(lambda v: np.reshape(v, (-1, *(() if inner == () else (int(np.prod(inner)),)))), b)
    return moved(lambda v: np.reshape(v, (*outer, *inner)), _matmul(rows, columns))


def _vecdot(a: Watched, b: Watched, *, axis: int = -1) -> Watched:
    return _sum(_product(a, b), axis=axis)


def _creation(name: str, *args: Any, **options: Any) -> Watched:
    """An array whose numbers a compiler knows."""
    if args and isinstance(args[0], Watched):
        if name == "asarray":
            return args[0] if options.get("dtype") is None else _astype(args[0], options["dtype"])
        args = (args[0].value, *args[1:])
    return Watched(np.asarray(getattr(xp, name)(*args, **options)), constant=True)


def _rules(rule: Callable[..., Any], names: str) -> dict[str, Callable[..., Any]]:
    return {name: partial(rule, name) for name in names.split()}


RULES: dict[str, Callable[..., Any]] = {
    **_rules(_sum_of_two, "add subtract"),
    "multiply": _product,
    "square": lambda x: _product(x, x),
    "divide": _quotient,
    "reciprocal": lambda x: _quotient(1.0, x),
    **_rules(
        _library_function,
        "exp expm1 log log1p log2 log10 sqrt sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh hypot "
        "logaddexp pow remainder floor_divide",
    ),
    **_rules(_comparison, "less less_equal greater greater_equal equal not_equal isnan isfinite isinf signbit sign"),
    **_rules(_rounding, "floor ceil trunc round"),
    **_rules(
        _logical,
        "logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_invert "
        "bitwise_left_shift bitwise_right_shift",
    ),
    **_rules(_selection, "abs negative positive maximum minimum copysign"),
    "where": _where,
    "clip": _clip,
    "astype": _astype,
    **_rules(_extremum, "max min"),
    **_rules(_quantifier, "any all"),
    **_rules(_position, "argmax argmin"),
    "sum": _sum,
    "mean": _mean,
    "matmul": _matmul,
    "tensordot": _tensordot,
    "vecdot": _vecdot,
    **_rules(
        places_only,
        "reshape permute_dims matrix_transpose moveaxis expand_dims squeeze broadcast_to flip roll repeat tile tril "
        "triu concat stack",
    ),
    **_rules(taken, "take take_along_axis"),
    "unstack": unstack,
    "broadcast_arrays": broadcast_arrays,
    **_rules(_creation, "asarray zeros ones full empty arange linspace eye zeros_like ones_like full_like empty_like"),
}
