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
from typing import Any, TypeGuard

from . import _compat
from ._compat import FLOATING, Array, cast, dtype_name
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
        msg = f"{name} has the shape {x.shape}: every axis needs a known length. "
        msg += "Give it one: by Dask's compute_chunk_sizes(), by a number in place of a name in ndonnx."
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
    # None is "wherever the framework puts it", which fits every device.
    if len({str(d) for d in devices.values() if d is not None}) > 1:
        listed = ", ".join(f"{name} on {d}" for name, d in devices.items())
        msg = f"one device is needed, got {listed}. Move them together first."
        raise DeviceError(msg)


def named_dtype(name: str, like: Array) -> Any:
    """The floating dtype of that name in the framework of `like`."""
    xp = _compat.namespace(like)
    found = host_of(like).dtype(xp, name) if name in FLOATING else None
    if found is None:
        have = [n for n in FLOATING if host_of(like).dtype(xp, n) is not None]
        msg = f"dtype={name!r}: {xp.__name__} has {', '.join(have)}."
        raise OptionError(msg)
    return found


def of_one_dtype(*arrays: Array, least: str | None = None) -> tuple[Array, ...]:
    """The arrays in the widest of their dtypes and `least`; two half types in float32."""
    names = {dtype_name(x) for x in arrays} | ({least} if least else set())
    if len(names) == 1:
        return arrays
    dtype = named_dtype("float64" if "float64" in names else "float32", arrays[0])
    return tuple(cast(x, dtype) for x in arrays)


def zeros(shape: Shape, dtype: str, like: Any) -> Array:
    """Zeros of a floating dtype where `like` belongs, an array or a namespace."""
    place = like if _compat.is_array(like) else like.asarray(0)
    return _compat.namespace(place).zeros(shape, dtype=named_dtype(dtype, place), **beside(place))


def is_number(x: object) -> TypeGuard[float]:
    """Whether `x` is a Python number; a bool is none, np.float64 is one, an array never."""
    return isinstance(x, int | float) and not isinstance(x, bool)


def number(
    name: str, x: float | Array, *, low: float = -math.inf, high: float = math.inf, open_low: bool = False
) -> float | Array:
    """A number of the range as a Python float, or a 0-d floating array (checked too, where it may be looked at)."""
    if not is_number(x) and not _compat.is_array(x):
        msg = f"{name} is a {type(x).__name__}; a Python number or a 0-d floating array is needed."
        raise DTypeError(msg)
    if _compat.is_array(x) and not is_number(x):
        if x.shape != () or dtype_name(x) not in FLOATING:
            msg = f"{name} is {dtype_name(x)} of shape {tuple(x.shape)}; a 0-d floating array or a number is needed."
            raise DTypeError(msg)
        if not host_of(x).concrete(x):
            return x
    try:
        value = float(x)
    except OverflowError:
        value = math.inf
    if not -math.inf < value < math.inf or (value <= low if open_low else value < low) or value > high:
        bound = f"{'>' if open_low else '>='} {low:g}" if low > -math.inf else ""
        bound += f"{' and ' if bound else ''}<= {high:g}" if high < math.inf else ""
        msg = f"{name}={value!r}: a finite number{' ' + bound if bound else ''} is needed."
        raise OptionError(msg)
    return value if is_number(x) else x


def of_type(name: str, x: object, kind: type) -> None:
    """Refuse an argument of another type, such as one level of parameters for another."""
    if not isinstance(x, kind):
        msg = f"{name} is of type {type(x).__name__}; {kind.__name__} is needed."
        raise DTypeError(msg)


def expect(name: str, x: Array | None, shape: Sequence[int], letters: str) -> None:
    """Refuse an array of parameters that has another shape than the others make it need."""
    if x is not None and tuple(x.shape) != tuple(shape):
        msg = f"{name} has shape {tuple(x.shape)}; {letters} = {tuple(shape)} is needed."
        raise ShapeError(msg)


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
        rows = host_of(x).rows
        if rows is not None:
            return rows(x, self.start, self.size, axis)
        return _compat.namespace(x).take(x, self.rows(x), axis=axis)

    def rows(self, like: Array) -> Array:
        """The row numbers (size,), beside `like`."""
        return _compat.namespace(like).arange(self.size, **beside(like)) + self.start
