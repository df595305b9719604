"""The guard of reproducible mode: arrays that notice what is not the same on every framework.

`guarded(function, *args)` runs a function on `Watched` arrays of NumPy's numbers, on the paths of a recorded program,
and raises `NotIdenticalError`, which names the rule and the place, if the result depends on anything of these:

* a rounded product that is added to, alone, in a sum or in a mean: a compiler may leave out the rounding (fused
  multiply-add), unless the product was rounded to an integer, cast, or chosen by `where` on its own value;
* a sum over an axis, or a product of matrices, that is not exact in any order;
* a library's exp, log, root, ... otherwise than rounded or compared; and what was only a hint must not decide a bit:
  the function is run with two libraries that err differently;
* a subnormal number: the function is run where they count as 0, too;
* a cast out of range, a cast that some frameworks round twice, half-precision arithmetic;
* a form that XLA is known to rewrite (x / c, x / row, a / b / c, a / (b / c), x c1 c2, x + c1 + c2), where the
  rewritten one gives another number.

What depends on nothing of these may be wrong, but is wrong alike everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import array_api_compat.numpy as xp
import numpy as np

from attnspec._compat import FLOATING, dtype_name
from attnspec.host import host_of, install
from attnspec.struct import arrays_in, with_arrays

from .exact_arrays import LIBRARY, SUBNORMAL, NotIdenticalError, Watched
from .exact_moves import getitem
from .exact_operations import RULES, Elsewhere, elsewhere
from .masks import Array

__all__ = ["NotIdenticalError", "Watched", "guarded"]


def guarded(function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)` under watch, its arrays as NumPy's; arguments and result may be trees."""
    here = _once(function, args, 1, flushes=False)
    if (name := _differing(here, _once(function, args, 2, flushes=True))) is not None:
        flushed = _differing(here, _once(function, args, 1, flushes=True)) is not None
        raise NotIdenticalError(SUBNORMAL if flushed else LIBRARY, f"they decide bits of the result{name}")
    return here


def _differing(one: Any, other: Any) -> str | None:
    """The name of the first array that is not the same in both results."""
    found = arrays_in("", other)
    pairs = {name: (_comparable(x), _comparable(found[name])) for name, x in arrays_in("", one).items()}
    return next((name for name, (x, y) in pairs.items() if not np.array_equal(x, y, equal_nan=True)), None)


def _comparable(x: Array) -> Array:
    """Numbers of any dtype as NumPy's, which bfloat16 is not."""
    return x.astype(np.float64) if dtype_name(x) in FLOATING else x.astype(np.int64)


def _once(function: Callable[..., Any], args: Any, seed: int, *, flushes: bool) -> Any:
    given = {name: Watched(np.asarray(x)) for name, x in arrays_in("", args).items()}
    token = elsewhere.set(Elsewhere(np.random.default_rng(seed), flushes))
    try:
        with host_of(np.zeros(())).scope():
            result = function(*with_arrays("", args, given))
            return with_arrays("", result, {name: x.checked() for name, x in arrays_in("", result).items()})
    finally:
        elsewhere.reset(token)


class _Namespace:
    """The Array API namespace of `Watched` arrays: what has no rule in `exact_operations` is refused."""

    __name__ = "NumPy under watch"

    def __getattr__(self, name: str) -> Any:
        if name in RULES:
            return RULES[name]
        found = getattr(xp, name)
        if callable(found) and not isinstance(found, type) and name not in _QUESTIONS:
            msg = f"{name} has no rule in exact_operations.RULES"
            raise AttributeError(msg)
        return _answered(found) if name in _QUESTIONS else found


# About dtypes, which arrays may stand for.
_QUESTIONS = ("isdtype", "finfo", "iinfo", "result_type", "can_cast", "__array_namespace_info__")


def _answered(question: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: question(*(x.value if isinstance(x, Watched) else x for x in args))


NAMESPACE = _Namespace()


def _method(name: str, swapped: bool = False) -> Callable[..., Any]:
    def method(self: Watched, *others: Any) -> Any:
        if not all(isinstance(x, Watched | bool | int | float) for x in others):
            return NotImplemented
        return RULES[name](*others, self) if swapped else RULES[name](self, *others)

    return method


for _name, _function in {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "pow": "pow", "matmul": "matmul",
    "floordiv": "floor_divide", "mod": "remainder", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
}.items():  # fmt: skip
    setattr(Watched, f"__{_name}__", _method(_function))
    setattr(Watched, f"__r{_name}__", _method(_function, swapped=True))
for _name, _function in {
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal",
    "neg": "negative", "abs": "abs", "invert": "bitwise_invert",
}.items():  # fmt: skip
    setattr(Watched, f"__{_name}__", _method(_function))
for _name, _member in {
    "__getitem__": getitem,
    "__array_namespace__": lambda self, api_version=None: NAMESPACE,
    "mT": property(RULES["matrix_transpose"]),
}.items():
    setattr(Watched, _name, _member)


def _scan(step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, start: int, stop: int) -> tuple[Any, Any]:
    """`Host.scan` as Python's loop over a number that is not known."""
    found = []
    for n in range(start, stop):
        carry, y = step(carry, Watched(np.asarray(n)))
        found.append(y)
    each = [arrays_in("", y) for y in found]
    stacked = {name: RULES["stack"]([ys[name] for ys in each], axis=0) for name in each[0]}
    return carry, with_arrays("", found[0], stacked)


install(
    f"{Watched.__module__}.{Watched.__qualname__}",
    replace(
        host_of(np.zeros(())), concrete=lambda *arrays: False, traced=lambda *arrays: True, scan=_scan,
        device_of=lambda x: None,
    ),
)  # fmt: skip
