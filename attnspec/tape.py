"""Reverse mode for every framework: arrays that remember how they were made, and `vjp`, which asks them.

`vjp(fn, *args)` calls `fn` with its arrays wrapped. A function of attnspec sees them through its host and records
itself as one step, with the derivative that it was given (`derivative.py`); what stands between such steps, sums and
reshapes mostly, is recorded operation by operation (`tape_rules.py`). The pullback walks the steps backwards.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any

from ._compat import FLOATING, Array, Namespace, Wrapped, alike, cast, dtype_name, namespace, unwrapped
from .derivative import summed_to
from .errors import DTypeError, OptionError, ShapeError
from .host import Host, beside, host_of
from .struct import arrays_in, with_arrays
from .tape_rules import PLAIN, RULES, getitem


def vjp(fn: Callable[..., Any], *args: Any) -> tuple[Any, Callable[..., Any]]:
    """The result of `fn(*args)`, and its pullback: from a cotangent of the result to the gradients of the arguments.

    pullback(g) = g^T (d fn / d args), of the floating arrays among the arguments

    Parameters
    ----------
    fn : callable
        Of attnspec's functions, Python's operators and the Array API functions that `tape_rules.RULES` names. What it
        reads beside its arguments counts as constant.
    *args
        Arrays, parameters (Structs), tuples, lists and dictionaries of them, numbers.

    Returns
    -------
    result
        The very bits of `fn(*args)`.
    pullback : callable
        Takes a cotangent in the structure of the result (1 unless given, where the result is a single number), and
        returns a tuple: for each argument the same structure, with gradients in the place of floating arrays and
        None in that of others. It may be called again.

    Raises
    ------
    errors.DTypeError
        For an Array API function without a rule.
    errors.OptionError
        For a `vjp` inside another: second derivatives are those of the framework, by its own autodiff.

    Notes
    -----
    As `jax.vjp`, for NumPy and every other namespace too; `torch.func` and `jax.grad` differentiate attnspec's
    functions through the same backward passes. Masked numbers reach no gradient (MASK-6c), a row that sees nothing
    contributes exactly 0 (MASK-5).

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> q = k = np.eye(2); v = np.asarray([[1.0], [3.0]])
    >>> out, pullback = attnspec.vjp(lambda q, v: attnspec.attention(q, k, v), q, v)
    >>> of_q, of_v = pullback(np.ones((2, 1)))
    >>> of_v.round(3).tolist()
    [[1.0], [1.0]]
    """
    arrays = arrays_in("", args)
    if _recording.get():
        msg = "vjp inside vjp: for second derivatives use the framework's own autodiff, e.g. jax.grad or torch.func."
        raise OptionError(msg)
    inputs = {name: Taped(x, Step()) for name, x in arrays.items() if dtype_name(x) in FLOATING}
    token = _recording.set(True)
    try:
        result = fn(*with_arrays("", args, inputs))
    finally:
        _recording.reset(token)
    results = arrays_in("", result)

    def pullback(cotangent: Any = None) -> tuple[Any, ...]:
        given = _cotangents(results, cotangent)
        found = _walk_back([(x, given[name]) for name, x in results.items() if isinstance(x, Taped)])
        gradients = {name: found.get(x.step.order, [None])[0] for name, x in inputs.items()}
        filled = {name: _zeros_like(arrays[name]) if g is None else g for name, g in gradients.items()}
        return tuple(with_arrays("", args, dict.fromkeys(arrays) | filled))

    return with_arrays("", result, {name: _bare(x) for name, x in results.items()}), pullback


# Whether a function is being recorded: what an inner vjp would give, the outer one would take for a constant.
_recording: ContextVar[bool] = ContextVar("attnspec.vjp", default=False)


def _cotangents(results: dict[str, Array], cotangent: Any) -> dict[str, Array]:
    given = arrays_in("", cotangent)
    if cotangent is None and len(results) == 1:
        ((name, x),) = results.items()
        if x.shape == ():
            xp = namespace(_bare(x))
            return {name: xp.ones((), dtype=x.dtype, **beside(_bare(x)))}
    wanted = {name: tuple(x.shape) for name, x in results.items()}
    got = {name: tuple(x.shape) for name, x in given.items()}
    if wanted != got:
        msg = f"the cotangent has {got or type(cotangent).__name__}; arrays like the result, {wanted}, are needed."
        raise ShapeError(msg)
    return given


def _walk_back(cotangents: Sequence[tuple[Taped, Array]]) -> dict[int, list[Array | None]]:
    """The cotangents of the inputs' steps, by their order: each step is asked after all that were made from it."""
    found: dict[int, list[Array | None]] = {}
    waiting: list[tuple[int, Step]] = []

    def add(x: Taped, gradient: Array) -> None:
        if x.step.order not in found:
            found[x.step.order] = [None] * x.step.results
            heapq.heappush(waiting, (-x.step.order, x.step))
        slots = found[x.step.order]
        so_far = slots[x.slot]
        slots[x.slot] = gradient if so_far is None else so_far + gradient

    for x, gradient in cotangents:
        add(x, gradient)
    while waiting:
        _, step = heapq.heappop(waiting)
        if step.pull is not None:
            for x, gradient in zip(step.parents, step.pull(found.pop(step.order)), strict=True):
                if gradient is not None:
                    add(x, gradient)
    return found


@dataclass(frozen=True, eq=False)
class Step:
    """How one or more arrays were made: from which, and the rule back to those. An input has no rule."""

    parents: tuple[Taped, ...] = ()
    pull: Callable[[list[Array | None]], Sequence[Array | None]] | None = None
    results: int = 1
    order: int = field(default_factory=count().__next__)


class Taped(Wrapped):
    """An array that remembers the step that made it. Its values are looked at and computed with like any other's."""

    __array_ufunc__ = None  # NumPy's `array + taped` then asks the taped one

    def __init__(self, value: Array, step: Step, slot: int = 0) -> None:
        self.value, self.step, self.slot = value, step, slot

    level = 2

    @staticmethod
    def hosted(inner: Host) -> Host:
        """See `Wrapped.hosted`: the one derivative there is, and what does not depend on being recorded."""
        return Host(
            concrete=lambda *arrays: inner.concrete(*map(_bare, arrays)),
            traced=lambda *arrays: inner.traced(*map(_bare, arrays)),
            with_vjp=_with_vjp,
            taped=True,
            device_of=lambda x: inner.device_of(x.value),
            kernels=tuple(kernel for kernel in inner.kernels if kernel.recorded),
            numerics=inner.numerics,
        )

    @staticmethod
    def around(xp: Namespace) -> Namespace:
        """See `Wrapped.around`."""
        return _taped(xp)

    @classmethod
    def constant(cls, value: Array) -> Any:
        """See `Wrapped.constant`."""
        return cls(value, Step())

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return _taped(namespace(self.value))

    def __getattr__(self, name: str) -> Any:
        if name in ("dtype", "shape", "ndim", "size", "device"):
            return getattr(self.value, name)
        msg = f"arrays under attnspec.vjp have no {name!r}"
        raise AttributeError(msg)

    @property
    def mT(self) -> Any:  # noqa: N802 - the standard's name
        """The last two axes exchanged."""
        return _taped(namespace(self.value)).matrix_transpose(self)

    @property
    def T(self) -> Any:  # noqa: N802 - the standard's name
        """A matrix transposed."""
        return self.mT

    # Not in the standard, but methods of every array that people know, and what `numpy.sum` calls.
    def sum(self, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> Any:
        """`xp.sum`."""
        return _taped(namespace(self.value)).sum(self, axis=axis, dtype=dtype, keepdims=keepdims)

    def mean(self, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> Any:
        """`xp.mean`."""
        mean = _taped(namespace(self.value)).mean(self, axis=axis, keepdims=keepdims)
        return mean if dtype is None else _taped(namespace(self.value)).astype(mean, dtype)

    def __getitem__(self, index: Any) -> Any:
        return _recorded(getitem, namespace(self.value), (self, index), {})

    def __neg__(self) -> Any:
        return _taped(namespace(self.value)).negative(self)

    def __abs__(self) -> Any:
        return _taped(namespace(self.value)).abs(self)

    def __len__(self) -> int:
        return len(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __repr__(self) -> str:
        return f"Taped({self.value!r})"


class _Namespace:
    """An Array API namespace whose functions record themselves where they are given taped arrays."""

    def __init__(self, xp: Namespace) -> None:
        self._xp = xp
        self.__name__ = f"{xp.__name__} under attnspec.vjp"

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._xp, name)
        if not callable(found) or isinstance(found, type):
            return found

        def function(*args: Any, **options: Any) -> Any:
            if not any(isinstance(x, Taped) for x in _operands(args)):
                return found(*args, **options)
            if name in RULES:
                return _recorded(RULES[name], self._xp, args, options)
            if name in PLAIN:
                return found(*map(_plain, args), **options)
            msg = f"{name} has no rule under attnspec.vjp; there are {', '.join(sorted(RULES))}."
            raise DTypeError(msg)

        return function


@cache
def _taped(xp: Namespace) -> _Namespace:
    return _Namespace(xp)


def _recorded(rule: Callable[..., Any], xp: Namespace, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The result of one operation, as a step: `rule` gives the result, and from its cotangent those of the operands."""
    operands = _operands(args)
    places = [n for n, x in enumerate(operands) if isinstance(x, Taped)]
    parents = tuple(operands[n] for n in places)
    with host_of(parents[0].value).scope():
        result, back = rule(xp, *map(_plain, args), **options)

    def pull(cotangents: list[Array | None]) -> list[Array | None]:
        with host_of(parents[0].value).scope():
            gradients = back(cotangents[0])
            return [
                None if (g := gradients[n]) is None else _like(g, x.value) for n, x in zip(places, parents, strict=True)
            ]

    return Taped(result, Step(parents, pull))


def _operands(args: tuple[Any, ...]) -> list[Any]:
    return [x for arg in args for x in (arg if isinstance(arg, list | tuple) else (arg,))]


def _plain(x: Any) -> Any:
    return type(x)(map(_bare, x)) if isinstance(x, list | tuple) else _bare(x)


def _like(gradient: Array, x: Array) -> Array:
    """Without the axes along which the operand was broadcast, in its dtype."""
    return cast(summed_to(gradient, tuple(x.shape)), x.dtype)


def _with_vjp(
    forward: Callable[..., Any], backward: Callable[..., Any], *, reverse_only: bool = False
) -> Callable[..., Any]:
    """`Host.with_vjp`: the whole function is one step. There is no forward mode to refuse."""

    def function(*arrays: Any) -> tuple[Any, ...]:
        values = list(alike(*map(_bare, arrays)))
        places = [n for n, x in enumerate(arrays) if isinstance(x, Taped)]
        with host_of(values[places[0]]).scope():
            results = forward(*values)

        def pull(cotangents: list[Array | None]) -> list[Array | None]:
            given = (_zeros_like(x) if g is None else g for g, x in zip(cotangents, results, strict=True))
            with host_of(results[0]).scope():
                gradients = backward(values, results, tuple(given))
            return [gradients[n] for n in places]

        step = Step(tuple(arrays[n] for n in places), pull, len(results))
        return tuple(Taped(x, step, slot) for slot, x in enumerate(results))

    return function


def _zeros_like(x: Array) -> Array:
    return namespace(x).zeros_like(x)


def _bare(x: Any) -> Any:
    return unwrapped(x, Taped)
