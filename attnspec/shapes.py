"""The axis letters, the checks, and the sentences that refuse.

One legend for annotations, comments, errors and docs:

    B  batch: any number of leading axes, written `...`      Q  queries
    H  query heads                                           K  keys
    G  key/value heads; H is a multiple of G                 D  width of a query and of a key
    M  model width                                           E  width of a value

    q (..., H, Q, D)    k (..., G, K, D)    v (..., G, K, E)    ->    out (..., H, Q, E)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from . import _compat
from ._compat import FLOATING, Array, dtype_name
from .errors import DeviceError, DTypeError, OptionError, ShapeError
from .host import beside, host_of
from .struct import Struct

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Axes(Struct):
    """The lengths of the axes of one attention call, after SHAPE-1."""

    lead: Shape
    H: int
    G: int
    Q: int
    K: int
    D: int
    E: int

    @property
    def scores(self) -> Shape:
        """(..., H, Q, K)."""
        return (*self.lead, self.H, self.Q, self.K)


def attention_axes(q: Array, k: Array, v: Array) -> Axes:
    """The axes of q (..., H, Q, D), k (..., G, K, D), v (..., G, K, E), or a ShapeError with the numbers."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        known(name, x)
    (*bq, H, Q, D), (*bk, G, K, Dk), (*bv, Gv, Kv, E) = q.shape, k.shape, v.shape
    q_, k_, v_ = f"q {tuple(q.shape)}", f"k {tuple(k.shape)}", f"v {tuple(v.shape)}"
    if Dk != D:
        msg = f"scores need equal widths: {q_} has D={D}, {k_} has D={Dk}. Was k projected?"
        raise ShapeError(msg)
    if Kv != K:
        msg = f"each key needs its value: {k_} has K={K}, {v_} has K={Kv}. Were both cut to the same length?"
        raise ShapeError(msg)
    if Gv != G:
        msg = f"keys and values need the same heads: {k_} has G={G}, {v_} has G={Gv}."
        raise ShapeError(msg)
    if (H % G if G else H) != 0:
        msg = (
            f"query heads must be a multiple of key/value heads: {q_} has H={H}, {k_} has G={G}. "
            "Is the head axis third from the end?"
        )
        raise ShapeError(msg)
    try:
        lead = broadcast_shapes(tuple(bq), tuple(bk), tuple(bv))
    except ShapeError:
        msg = f"leading axes must be equal or 1: {q_}, {k_}, {v_} have {tuple(bq)}, {tuple(bk)}, {tuple(bv)}."
        raise ShapeError(msg) from None
    return Axes(lead, H, G, Q, K, D, E)


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The shape that they broadcast to, from the right; equal or 1."""
    rank = max(len(s) for s in shapes)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    lengths = [{n for n in axis if n != 1} for axis in zip(*padded, strict=True)]
    if any(len(axis) > 1 for axis in lengths):
        msg = f"shapes {', '.join(map(str, shapes))} do not broadcast together."
        raise ShapeError(msg)
    return tuple(axis.pop() if axis else 1 for axis in lengths)


def broadcasts_to(shape: Sequence[int], target: Shape) -> bool:
    """Whether `shape` broadcasts to `target` without adding to it."""
    extra = len(target) - len(shape)
    return extra >= 0 and all(n in (1, m) for n, m in zip(shape, target[extra:], strict=True))


def known(name: str, x: Array) -> None:
    """Refuse an axis whose length is not known (lazy arrays): tiles are cut by length."""
    if not all(isinstance(n, int) for n in x.shape):
        msg = f"{name} has the shape {x.shape}: every axis needs a known length. Compute its chunk sizes first."
        raise ShapeError(msg)


def floating(**arrays: Array) -> None:
    """All of one floating dtype, one framework and one device (SHAPE-1, SHAPE-3)."""
    for name, x in arrays.items():
        if not _compat.is_array(x):
            msg = f"{name} is a {type(x).__name__}; an array is needed. Make one with `backend.asarray`."
            raise DTypeError(msg)
        if dtype_name(x) not in FLOATING:
            msg = f"{name} has dtype {dtype_name(x)}; {', '.join(FLOATING)} are computed with. Cast it first."
            raise DTypeError(msg)
    dtypes = {name: dtype_name(x) for name, x in arrays.items()}
    if len(set(dtypes.values())) > 1:
        listed = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
        msg = f"one dtype is needed, got {listed}. Cast them to the one that you want."
        raise DTypeError(msg)
    together(**arrays)


def together(**arrays: Array) -> None:
    """All of one framework and one device."""
    devices = {name: host_of(x).device_of(x) for name, x in arrays.items()}
    _compat.namespace(*arrays.values())
    first = next(iter(devices.values()))
    if any(d != first for d in devices.values()):
        listed = ", ".join(f"{name} on {d}" for name, d in devices.items())
        msg = f"one device is needed, got {listed}. Move them together first."
        raise DeviceError(msg)


def is_number(x: object) -> TypeGuard[float]:
    """Whether `x` is a Python number (a NumPy scalar is an array here, and an operand)."""
    return type(x) in (int, float)


def number(name: str, x: object, *, low: float = -math.inf, high: float = math.inf, open_low: bool = False) -> None:
    """Check a Python number against its range; refuse whatever is neither a number nor a 0-d floating array."""
    if is_number(x):
        below = x <= low if open_low else x < low
        if not math.isfinite(x) or below or x > high:
            bound = f"{'>' if open_low else '>='} {low:g}" if low > -math.inf else ""
            bound += f"{' and ' if bound else ''}<= {high:g}" if high < math.inf else ""
            msg = f"{name}={x!r}: a finite number{' ' + bound if bound else ''} is needed."
            raise OptionError(msg)
    elif not _compat.is_array(x):
        msg = f"{name} is a {type(x).__name__}; a Python number or a 0-d floating array is needed."
        raise DTypeError(msg)
    elif x.shape != () or dtype_name(x) not in FLOATING:
        msg = f"{name} is an array of dtype {dtype_name(x)} and shape {tuple(x.shape)}; a 0-d floating one is needed."
        raise DTypeError(msg)


@dataclass(frozen=True)
class Span:
    """Rows `start:stop` of an axis of `total`, and their positions in the whole sequence.

    start, size, total
        `start` is an array where a loop is being recorded, `size` and `total` are always Python ints.
    index
        Integer positions (..., size): `start:stop` unless `q_positions` or `k_positions` were given. Rules about
        positions (causal, window, ALiBi) read it; rules about arrays take rows by `of`.
    bounds
        The positions as host integers `(first, last + 1)`, None where they are known only as arrays.
    """

    start: int | Array
    size: int
    total: int
    index: Array
    bounds: tuple[int, int] | None

    @property
    def stop(self) -> int | Array:
        """One past the last row."""
        return self.start + self.size

    def of(self, x: Array, axis: int) -> Array:
        """These rows of `x` along a negative axis; `x` itself where that axis is broadcast."""
        if x.ndim < -axis or x.shape[axis] == 1 or self.size == self.total:
            return x
        if isinstance(self.start, int):
            return x[(..., slice(self.start, self.stop), *(slice(None),) * (-axis - 1))]
        return _compat.namespace(x).take(x, self.rows(x), axis=axis)

    def rows(self, like: Array) -> Array:
        """The row numbers (size,), beside `like`."""
        return _compat.namespace(like).arange(self.size, **beside(like)) + self.start
