"""How a function of attnspec is given a derivative of its own, on frameworks that differentiate and on the tape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ._compat import FLOATING, Array, alike, cast, dtype_name, namespace
from .host import Host, host_of
from .struct import arrays_in, with_arrays

Forward = Callable[[Any], tuple[Array, ...]]
Backward = Callable[[Any, tuple[Array, ...], tuple[Array, ...]], Mapping[str, Array]]


def differentiable(
    forward: Forward, backward: Backward, operands: Any, *, always: bool = False, reverse_only: bool = False
) -> tuple[Array, ...]:
    """`forward(operands)`, differentiated by `backward` where somebody differentiates.

    Parameters
    ----------
    operands
        A Struct, or a tuple of arrays, Structs, numbers and None. Every array in it becomes an argument of the
        framework's function, so nothing that is differentiated hides in a closure.
    forward
        From the operands to a tuple of arrays.
    backward
        From the operands, the results and their cotangents to the gradient of each floating array in the operands, by
        its name in `arrays_in("", operands)` without the leading dot. Integers and booleans have none.
    always
        Also where the framework could differentiate the operations of `forward` itself: for a backward that saves
        memory or accuracy. Without it the framework's derivative is taken, which has forward mode and all orders.
    reverse_only
        The operations of `forward` have no slopes of use, and forward mode is refused.
    """
    arrays = arrays_in("", operands)
    host = _watching(arrays)
    if not host.taped and host.concrete(*arrays.values()):
        return forward(operands)
    if host.with_vjp is None or not (always or host.taped):
        alike_ones = alike(*arrays.values())
        if all(x is y for x, y in zip(alike_ones, arrays.values(), strict=True)):
            return forward(operands)
        return forward(with_arrays("", operands, dict(zip(arrays, alike_ones, strict=True))))
    names, floats = list(arrays), {name for name, x in arrays.items() if dtype_name(x) in FLOATING}
    # The closures below outlive this call: they must not keep the arrays, nor a transform's stand-ins for them.
    frame = with_arrays("", operands, dict.fromkeys(names))

    def from_arrays(*arrays: Array) -> tuple[Array, ...]:
        return forward(with_arrays("", frame, dict(zip(names, arrays, strict=True))))

    def pull(arrays: Any, results: Any, cotangents: Any) -> tuple[Array | None, ...]:
        given = dict(zip(names, arrays, strict=True))
        gradients = backward(with_arrays("", frame, given), results, cotangents)
        return tuple(cast(gradients[n[1:]], given[n].dtype) if n in floats else None for n in names)

    return tuple(host.with_vjp(from_arrays, pull, reverse_only=reverse_only)(*arrays.values()))


def _watching(arrays: Mapping[str, Array]) -> Host:
    """The host that records, if any of the arrays belongs to one; all others are one framework's."""
    hosts = [host_of(x) for x in arrays.values()]
    return next((host for host in hosts if host.taped), hosts[0])


def summed_to(x: Array, shape: tuple[int, ...]) -> Array:
    """The sum over the axes along which an array of that shape was broadcast to x: what broadcasting turns into."""
    xp = namespace(x)
    extra = x.ndim - len(shape)
    axes = tuple(n for n, size in enumerate(x.shape) if n < extra or (shape[n - extra] == 1 and size != 1))
    return xp.reshape(xp.sum(x, axis=axes, dtype=x.dtype), shape) if axes else x
