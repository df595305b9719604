"""The doors to reproducible mode: attnspec's own functions, given arrays whose operations are identical everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from types import ModuleType
from typing import Any, TypeVar, cast

from .. import tape
from .._compat import FLOATING, Array, dtype_name, namespace, unwrapped
from ..derivative import differentiable
from ..errors import DTypeError, OptionError
from ..host import Host, host_of
from ..struct import arrays_in, with_arrays
from .arrays import Held, Identical, Numbers, unrounded
from .cache import NO_GRADIENT, Cache

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type[Any])


def identically(fn: F) -> F:
    """`fn`, computed with the same bits on every framework.

    Its floating arrays, in whatever structures they come, are handed to `fn` as `Identical` ones, and those of its
    result are rounded to the dtype that they stand for. `fn` may be any function of attnspec's functions, Python's
    operators and the Array API functions that `Identical` arrays have.

    Frameworks differentiate the whole of it as one function, whose backward pass is `attnspec.vjp` of the same
    arrays: rounding to a grid has no useful slope of its own. What `fn` reads beside its arguments counts as constant.

    Examples
    --------
    >>> import numpy as np
    >>> from attnspec import reproducible
    >>> f = reproducible.identically(lambda x: x / (x * x).sum())
    >>> f(np.asarray([3.0, 4.0], np.float32)).tolist()
    [0.11999999731779099, 0.1599999964237213]
    """

    @wraps(fn)
    def function(*args: Any, **options: Any) -> Any:
        operands = _prepared((args, options))
        arrays = arrays_in("", operands)
        if not arrays or any(_inside(x) for x in arrays.values()):
            return fn(*args, **options)
        results: list[Any] = []
        keeps_slices = _keeps_slices(operands)

        def forward(operands: Any) -> tuple[Array, ...]:
            with _float64(arrays_in("", operands)):
                args, options = _opened(_wrapped(operands))
                result = fn(*args, **options)
                found = arrays_in("", result)
                results[:] = [with_arrays("", result, dict.fromkeys(found)), list(found)]
                return tuple(map(_rounded, found.values()))

        def backward(operands: Any, _: Any, cotangents: tuple[Array, ...]) -> dict[str, Array]:
            if keeps_slices:
                raise OptionError(NO_GRADIENT)
            with _float64(arrays_in("", operands)):
                result, pullback = tape.vjp(lambda o: fn(*o[0], **o[1]), _wrapped(operands))
                names = arrays_in("", result)
                given = with_arrays("", result, dict(zip(names, map(_identical, cotangents), strict=True)))
                (gradients,) = pullback(given)
                return {name[1:]: _rounded(x) for name, x in arrays_in("", gradients).items()}

        found = differentiable(forward, backward, operands, always=True, reverse_only=True)
        structure, names = results
        return with_arrays("", structure, dict(zip(names, found, strict=True)))

    return cast(F, function)


def vjp(fn: Callable[..., Any], *args: Any) -> tuple[Any, Callable[..., Any]]:
    """`attnspec.vjp`, with the same bits on every framework, in the result and in the gradients.

    Examples
    --------
    >>> import numpy as np
    >>> from attnspec import reproducible
    >>> y, pullback = reproducible.vjp(lambda x: reproducible.rms_norm(x, eps=0.0), np.asarray([3.0, 4.0], np.float32))
    >>> pullback(np.asarray([1.0, 0.0], np.float32))[0].astype(float).round(4).tolist()
    [0.181, -0.1358]
    """
    arrays = arrays_in("", args)
    if _keeps_slices(_prepared(args)):
        raise OptionError(NO_GRADIENT)
    with _float64(arrays):
        result, pullback = tape.vjp(fn, *_wrapped(args))

    def back(cotangent: Any = None) -> tuple[Any, ...]:
        with _float64(arrays):
            return tuple(_unwrapped(pullback(_wrapped(cotangent))))

    return _unwrapped(result), back


def identically_initialised(cls: C) -> C:
    """The class of parameters whose `init` draws the same numbers everywhere."""
    return cast(C, type(cls.__name__, (cls,), {"__doc__": cls.__doc__, "init": staticmethod(identically(cls.init))}))


@contextmanager
def before_rounding() -> Iterator[None]:
    """Results come as float64, before the last rounding to their dtype: what comparisons of bits should look at."""
    token = unrounded.set(True)
    try:
        yield
    finally:
        unrounded.reset(token)


@dataclass(frozen=True)
class _Kept:
    """What goes through a door as it is: nobody sees arrays in it."""

    value: Cache | Held


def _prepared(operands: Any) -> Any:
    """A namespace that only says where (`like=`) as an array of it, and rows with slices out of sight."""
    if isinstance(operands, ModuleType):
        return operands.asarray(0.0)
    return _Kept(operands) if isinstance(operands, Cache | Held) else _each(_prepared, operands)


def _opened(operands: Any) -> Any:
    return operands.value if isinstance(operands, _Kept) else _each(_opened, operands)


def _keeps_slices(operands: Any) -> bool:
    found = []
    _each(lambda x: found.append(_keeps_slices(x)), operands)
    return isinstance(operands, _Kept) or any(found)


def _each(function: Callable[[Any], Any], tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: function(x) for name, x in tree.items()}
    return type(tree)(map(function, tree)) if type(tree) in (tuple, list) else tree


def _inside(x: Array) -> bool:
    """Whether an array is an `Identical` one already, recorded or not."""
    return isinstance(unwrapped(x, tape.Taped), Identical)


@contextmanager
def _float64(arrays: dict[str, Array]) -> Iterator[None]:
    host = host_of(next(iter(arrays.values()))) if arrays else Host()
    with host.scope(), host.apart():
        yield


def _wrapped(tree: Any) -> Any:
    arrays = arrays_in("", tree)
    return with_arrays("", tree, {name: _identical(x) for name, x in arrays.items()})


def _identical(x: Array) -> Any:
    if dtype_name(x) not in FLOATING or isinstance(unwrapped(x, tape.Taped), Numbers):
        return x
    try:
        made = Identical.of(x)
    except (TypeError, AttributeError, RuntimeError) as error:
        raise _no_float64(x) from error
    if dtype_name(made.value) != "float64":
        raise _no_float64(x)
    return made


def _no_float64(x: Array) -> DTypeError:
    return DTypeError(
        f"reproducible mode computes in float64, which {namespace(x).__name__} does not make on this device. "
        "Move the arrays to one that has it."
    )


def _unwrapped(tree: Any) -> Any:
    arrays = arrays_in("", tree)
    return with_arrays("", tree, {name: _rounded(x) for name, x in arrays.items()})


def _rounded(x: Any) -> Array:
    if not isinstance(x, Numbers):
        return x
    if unrounded.get():
        return x.value if getattr(x, "before", None) is None else x.before
    return x.rounded()
