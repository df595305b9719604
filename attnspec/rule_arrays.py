"""Arrays inside mask and bias rules: checked, widened, and aligned with the leading axes before H."""

from __future__ import annotations

from typing import Any, Literal

from . import _compat
from ._compat import SIGNED, Array, Namespace, dtype_name
from .errors import DTypeError, OptionError, ShapeError
from .host import beside, on
from .shapes import Axes, Shape, broadcasts_to

Ints = int | tuple[int, ...] | Array
Align = Literal["start", "end"]


def checked_ints(name: str, x: int | list[int] | tuple[int, ...] | Array) -> Ints:
    if type(x) is int:
        return x
    if isinstance(x, list | tuple) and all(type(n) is int for n in x):
        return tuple(x)
    if _compat.is_array(x) and dtype_name(x) in SIGNED:
        return x
    got = f"an array of dtype {dtype_name(x)}" if _compat.is_array(x) else repr(x)
    msg = f"{name} is {got}; an int, a list of ints or a signed integer array is needed."
    if isinstance(x, str) and x in ("start", "end"):
        msg += f' Did you mean align="{x}"?'
    raise DTypeError(msg)


def checked_align(align: Align) -> Align:
    if align not in ("start", "end"):
        msg = f'align={align!r}: "start" (offset counts from the first key) or "end" (from K - Q) is needed.'
        raise OptionError(msg)
    return align


def clamped(x: Any) -> Any:
    """Python ints cut to what an int32 holds: positions never get there, and JAX refuses longer ones."""
    return max(-(2**30), min(2**30, x)) if type(x) is int else x


def per_batch(x: Any, trailing: int, xp: Namespace, device: Any) -> Array:
    """An array over the leading axes, with axes of length 1 for H, Q and K behind it."""
    if type(x) is int:
        return x
    if isinstance(x, tuple):
        x = xp.asarray(list(x), dtype=xp.int32, **on(device))
    return widened_ints(x)[(..., *(None,) * trailing)]


def widened_ints(x: Array) -> Array:
    """int8 and int16 as int32: the differences of positions have to fit."""
    return _compat.namespace(x).astype(x, _compat.namespace(x).int32) if dtype_name(x) in ("int8", "int16") else x


def indices(x: Array) -> Array:
    """Integers in the dtype that the library indexes with: some take along an axis by their default integers alone."""
    return _compat.cast(x, _compat.namespace(x).arange(1, **beside(x)).dtype)


def fits(name: str, x: Array, axes: Axes, tail: Shape | None) -> None:
    """`tail` None: broadcasts to the scores. Otherwise to the leading axes and those axes of the scores."""
    shape = (len(x),) if isinstance(x, tuple) else tuple(x.shape)
    target = axes.scores if tail is None else (*axes.lead, *(axes.scores[axis] for axis in tail))
    same = not tail or shape[-len(tail) :] == target[-len(tail) :]
    if same and broadcasts_to(shape, target):
        return
    letters = "(..., H, Q, K)" if tail is None else "(..., Q)" if tail == (-2,) else "(..., K)" if tail else "(...)"
    msg = f"{name} has shape {shape}, which does not broadcast to {letters} = {target}: axes must be equal or 1."
    if tail is None and len(shape) == 3 and axes.lead and shape[0] == axes.lead[-1] != axes.H:
        inserted = (shape[0], 1, *shape[1:])
        msg += f" Rank 3 is (H, Q, K); for one mask a batch item insert the head axis: (B, 1, Q, K) = {inserted}."
    if tail is None and len(shape) == 2 and axes.lead and shape == (axes.lead[-1], axes.K) and shape[0] != axes.Q:
        msg += f" One row of keys a batch item is (B, 1, 1, K) = ({shape[0]}, 1, 1, {shape[1]}), or padding(lengths)."
    raise ShapeError(msg)
