"""What NumPy adds to the standard: silence inside, and values that may be looked at."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from importlib.util import find_spec
from typing import Any

import array_api_compat.numpy as xp
import numpy as np

from attnspec._compat import remember
from attnspec.host import Host
from attnspec.overwriting import InPlace

from .pool import allowed, each


def scope() -> AbstractContextManager[None]:
    """Overflow and NaN are values here, defined by the spec, and no reason to warn."""
    return np.errstate(all="ignore")


def concrete(*arrays: object) -> bool:
    """Only NumPy's own arrays: subclasses may record, carry units or masks."""
    return _OWN.issuperset(map(type, arrays))


_OWN = {np.ndarray}


def dtype(xp: Any, name: str) -> Any:
    """bfloat16 is that of ml_dtypes, where it is installed."""
    if name == "bfloat16" and find_spec("ml_dtypes"):
        import ml_dtypes

        return ml_dtypes.bfloat16
    return getattr(xp, name, None)


def veil(visible: Any, like: Any) -> Any:
    """All bits set where visible, as integers of the size of the dtype."""
    ones = visible.view(np.int8) != 0  # the bytes of a view of other numbers may be any
    return np.negative(ones.view(np.int8), dtype=np.dtype(f"i{like.itemsize}"))


def hide(x: Any, veil: Any) -> Any:
    """By the bits: a product would leave NaN, and `where` takes ten times as long."""
    bits = x.view(veil.dtype)
    np.bitwise_and(bits, veil, out=bits)
    return x


def extremes(x: Any) -> tuple[float, float]:
    """Where they are is found sooner than what they are, among a few numbers, and as soon among many."""
    return x.item(x.argmin()), x.item(x.argmax())


def rotate(x: Any, n: int, spare: Any) -> None:
    """To the right as unsigned integers, whose shift brings no copies of the sign."""
    bits = x.view(np.uint32)
    np.left_shift(x, _PLACES[n], spare)
    np.right_shift(bits, _UNSIGNED[32 - n], bits)
    np.bitwise_or(x, spare, x)


# Python's integers are made into arrays at every call.
_PLACES, _UNSIGNED = ([np.asarray(n, dtype) for n in range(32)] for dtype in (np.int32, np.uint32))


def _has_fast_exp2() -> bool:
    """Whether NumPy computes exp2 by wide vectors on this machine; where it does not, exp is the faster of the two."""
    info = np.lib.introspect.opt_func_info(func_name="^exp2$", signature="float32")
    return all("baseline" not in targets["current"] for of in info.values() for targets in of.values())


def _exponential(function: np.ufunc, unit: float) -> Callable[..., tuple[Any, Any]]:
    """exp of scores in that unit, as `attnspec.overwriting.InPlace` wants it."""

    def exp(x: Any, least: float | None, visible: Any = None) -> tuple[Any, Any]:
        edge = _least_exponent(x.dtype) * unit
        if (x.min() if least is None else least) >= edge:
            return function(x, out=x), None
        sunk = x < edge
        rows = (sunk if visible is None else sunk & visible).any(axis=-1, keepdims=True)
        function(np.maximum(x, edge, out=x), out=x)
        # Made of many, as those of x are: of one it may be rounded otherwise.
        least = function(np.full(64, edge, x.dtype))[:1]
        np.subtract(x, rows * least, out=x)
        return x, rows

    return exp


@cache
def _least_exponent(dtype: Any) -> float:
    """A little more than that of the least normal number: exponentials that are less take longer to make, too."""
    return math.log(float(np.finfo(dtype).tiny)) * (1.0 - 2.0**-8)


_EXP2 = _exponential(np.exp2, 1.0 / math.log(2.0)) if _has_fast_exp2() else None
IN_PLACE = InPlace(_exponential(np.exp, 1.0), _EXP2, veil, hide, extremes, rotate, each, allowed)

remember(np.ndarray, xp)

HOST = Host(scope=scope, concrete=concrete, dtype=dtype, in_place=IN_PLACE)
