"""One attention call with its arguments validated: what the body, kernels, adapters and the suite all read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from . import _compat
from ._compat import FLOATING, SIGNED, Array, Namespace, dtype_name
from .errors import DTypeError, OptionError, ShapeError
from .host import Host, host_of
from .parts import Block, part_of
from .random import Key
from .rule_arrays import widened_ints
from .rules import Mask, Rule, as_mask
from .shapes import Axes, Shape, Span, attention_axes, broadcasts_to, floating, is_number, known, number, together
from .struct import Struct, arrays_in
from .terms import Bias, Term, as_bias


@dataclass(frozen=True)
class Dropout(Struct):
    """Dropout as an argument: the rate, and the key that decides which entries go.

    0 <= rate <= 1. There is no training flag: no dropout is `dropout=None`.

    whole, at
        Where the call is a part of another (a shard, a chunk, a decoding step): the axes (..., H, Q, K) of that, and
        where this one lies along each of them: the first index, an integer or an integer array without axes; or all
        indices, an integer array (Q,), whose values nobody checks. So a part drops what the undivided call drops.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> rng, (q, k, v) = attnspec.random.key(0), map(np.ones, ((2, 5, 4), (2, 6, 4), (2, 6, 3)))  # H, Q, K = 2, 5, 6
    >>> whole = attnspec.attention(q, k, v, dropout=attnspec.Dropout(0.25, rng))
    >>> of_part = attnspec.Dropout(0.25, rng, whole=(2, 5, 6), at=(0, 3, 0))
    >>> bool(np.all(attnspec.attention(q[:, 3:], k, v, dropout=of_part) == whole[:, 3:]))
    True
    """

    rate: float | Array
    rng: Key
    whole: tuple[int, ...] | None = None
    at: tuple[int | Array, ...] = ()

    def check(self) -> None:
        """Raise unless the rate is a probability and `rng` a key (DROPOUT-1)."""
        number("rate", self.rate, low=0.0, high=1.0)
        if not isinstance(self.rng, Key):
            msg = f"rng is of type {type(self.rng).__name__}; a Key is needed, e.g. attnspec.random.key(seed)."
            raise DTypeError(msg)

    @classmethod
    def checked(cls, dropout: Any, shape: Shape | None = None) -> Dropout | None:
        """None, or a Dropout that has passed `check`; if it is of a whole, one with room for such a shape."""
        if dropout is None:
            return None
        if not isinstance(dropout, cls):
            msg = f"dropout is of type {type(dropout).__name__}; attnspec.Dropout(rate, rng) is needed."
            raise DTypeError(msg)
        dropout.check()
        if shape is None or (dropout.whole is None and not dropout.at):
            return dropout
        given = isinstance(dropout.whole, tuple) and isinstance(dropout.at, tuple)
        if not given or not len(dropout.whole or ()) == len(dropout.at) == len(shape):
            msg = (
                f"dropout has whole={dropout.whole} and at={dropout.at}; for a part of shape {shape} ((..., H, Q, K) "
                f"in attention) both need to be tuples with an entry for each of its {len(shape)} axes."
            )
            raise ShapeError(msg)
        for axis, (total, start, n) in enumerate(zip(dropout.whole or (), dropout.at, shape, strict=True)):
            _check_place(axis - len(shape), total, start, n)
        return dropout

    @property
    def drops(self) -> bool:
        """Whether anything can be dropped: rate 0 is the exact identity."""
        return not (is_number(self.rate) and self.rate == 0)

    def part(self, shape: Shape, starts: Sequence[int | Array], sizes: Sequence[int]) -> Dropout:
        """Dropout of the part, which begins there and is so large, of a call with the axes (..., H, Q, K) = `shape`."""
        at = self.at or (0,) * len(shape)
        moved = (_moved(*place) for place in zip(at, starts, sizes, strict=True))
        return replace(self, whole=self.whole or tuple(shape), at=tuple(moved))


def _moved(at: int | Array, start: int | Array, size: int) -> int | Array:
    if not (_compat.is_array(at) and at.ndim):
        return at + start
    return Span(start, size, at.shape[0], None, None).of(at, -1)


def _check_place(axis: int, total: int, start: int | Array, n: int) -> None:
    """Raise unless n indices from `start`, or the n that it holds, can lie on an axis of `total` of the whole."""
    if type(total) is not int or total < n:
        msg = f"dropout along axis {axis}: the whole has {total!r} entries, its part {n}; an integer from {n} up"
        msg += " is needed."
        raise ShapeError(msg)
    if not _compat.is_array(start):
        if type(start) is int and start >= 0 and start + n <= total:
            return
        got = f"at={start!r}"
    elif dtype_name(start) in SIGNED and tuple(start.shape) in ((), (n,)):
        return
    else:
        got = f"an array of {dtype_name(start)} of shape {tuple(start.shape)}"
    msg = (
        f"dropout along axis {axis}: {got} for {n} of {total} entries of the whole; the first index, an integer from 0 "
        f"to {total - n} or a signed 0-d array, or all of them, a signed array ({n},), is needed."
    )
    raise ShapeError(msg)


@dataclass(frozen=True)
class Request(Struct):
    """The validated arguments of one attention call; arrays of rank 3 or more.

    portable
        To be computed by the same operations whether or not somebody watches the arrays.
    """

    q: Array
    k: Array
    v: Array
    axes: Axes
    mask: Rule | None = None
    bias: Term | None = None
    scale: float | Array = 1.0
    softcap: float | Array | None = None
    sink: float | Array | None = None
    dropout: Dropout | None = None
    q_positions: Array | range | None = None
    k_positions: Array | range | None = None
    headless: bool = False
    portable: bool = False

    def part(self, block: Block) -> Request:
        """The call for a block of the axes (..., H)."""
        axes = self.axes
        k, v = (part_of(x, block, 2, axes) for x in (self.k, self.v))
        lengths = [place.stop - place.start for place in block]
        positions = (
            part_of(x, block[:-1], 1) if _compat.is_array(x) else x for x in (self.q_positions, self.k_positions)
        )
        q_positions, k_positions = positions
        return replace(
            self, q=part_of(self.q, block, 2), k=k, v=v, q_positions=q_positions, k_positions=k_positions,
            axes=replace(axes, lead=tuple(lengths[:-1]), H=lengths[-1], G=k.shape[-3]),
            mask=None if self.mask is None else self.mask.part(block),
            bias=None if self.bias is None else self.bias.part(block),
            sink=part_of(self.sink, block, 0) if _compat.is_array(self.sink) else self.sink,
            dropout=None if self.dropout is None else self.dropout.part(
                axes.scores, [*(place.start for place in block), 0, 0], [*lengths, axes.Q, axes.K]
            ),
        )  # fmt: skip

    @property
    def xp(self) -> Namespace:
        """The namespace of the arrays."""
        return _compat.namespace(self.q)

    @property
    def host(self) -> Host:
        """The host of the arrays."""
        return host_of(self.q)

    @property
    def device(self) -> Any:
        """Where further arrays belong."""
        return self.host.device_of(self.q)

    def q_span(self, start: int | Array, size: int) -> Span:
        """Queries `start : start + size`."""
        return self._span(start, size, self.axes.Q, self.q_positions)

    def k_span(self, start: int | Array, size: int) -> Span:
        """Keys `start : start + size`."""
        return self._span(start, size, self.axes.K, self.k_positions)

    def _span(self, start: int | Array, size: int, total: int, positions: Array | range | None) -> Span:
        first = positions.start if isinstance(positions, range) else 0
        bounds = (first + start, first + start + size) if isinstance(start, int) else None
        span = Span(start, size, total, None, bounds)
        if self.mask is None and self.bias is None:
            return span
        if positions is None or isinstance(positions, range):
            return replace(span, index=span.rows(self.q) + first)
        return replace(span, index=widened_ints(span.of(positions, -1)), bounds=None)


def make_request(q: Array, k: Array, v: Array, **options: Any) -> Request:
    """Check everything once, at the door: nothing is computed before the last argument is known to be good."""
    floating(q=q, k=k, v=v)
    headless = max(q.ndim, k.ndim, v.ndim) == 2
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim < 2:
            msg = f"{name} has shape {tuple(x.shape)}; (..., heads, rows, width) or (rows, width) is needed."
            raise ShapeError(msg)
    q, k, v = (x[None, ...] if x.ndim == 2 else x for x in (q, k, v))
    axes = attention_axes(q, k, v)
    return Request(q, k, v, axes, headless=headless, **checked_options(axes, q, **options))


def checked_options(
    axes: Axes,
    like: Array,
    *,
    mask: Mask | Array | None = None,
    bias: Bias | Array | None = None,
    scale: float | Array | None = None,
    softcap: float | Array | None = None,
    sink: float | Array | None = None,
    dropout: Dropout | None = None,
    q_positions: Array | range | None = None,
    k_positions: Array | range | None = None,
) -> dict[str, Any]:
    """The options of a call on these axes, as the fields of a Request; `like` has its dtype, framework and device."""
    rule = None if mask is None else as_mask(mask)
    term = None if bias is None else as_bias(bias).computed_in(dtype_name(like))
    for option in (rule, term):
        if option is not None:
            option.check(axes)
    if scale is None:
        scale = 1.0 / math.sqrt(axes.D) if axes.D else 1.0
    dropout = Dropout.checked(dropout, axes.scores)
    _check_positions("q_positions", q_positions, (*axes.lead, axes.Q))
    _check_positions("k_positions", k_positions, (*axes.lead, axes.K))
    if not (q_positions is None and k_positions is None):
        for option in (rule, term):
            _refuse_end(option)
    options = {
        "mask": rule, "bias": term, "scale": number("scale", scale),
        "softcap": None if softcap is None else number("softcap", softcap, low=0.0, open_low=True),
        "sink": _checked_sink(sink, axes), "dropout": dropout if dropout is not None and dropout.drops else None,
        "q_positions": q_positions, "k_positions": k_positions,
    }  # fmt: skip
    held = [arrays_in(name, option) for name, option in options.items()]
    together(q=like, **{name: x for arrays in held for name, x in arrays.items()})
    return options


def _refuse_end(option: Any) -> None:
    """Rules aligned to the end count from K - Q, which means nothing once the rows say where they stand."""
    if not isinstance(option, Struct):
        return
    if getattr(option, "align", "start") == "end":
        msg = 'align="end" with q_positions or k_positions: positions align by themselves. Use align="start".'
        raise OptionError(msg)
    for f in fields(option):  # type: ignore[arg-type]
        _refuse_end(getattr(option, f.name))


def _checked_sink(sink: Any, axes: Axes) -> float | Array | None:
    if sink is None:
        return None
    if is_number(sink):
        if math.isnan(sink) or sink == math.inf:
            msg = f"sink={sink!r}: a number is needed (-inf is no sink)."
            raise OptionError(msg)
        return float(sink)
    if not _compat.is_array(sink) or dtype_name(sink) not in FLOATING:
        got = dtype_name(sink) if _compat.is_array(sink) else type(sink).__name__
        msg = f"sink is {got}; a number or a floating array (..., H) is needed, one logit for each query head."
        raise DTypeError(msg)
    if not broadcasts_to(sink.shape, (*axes.lead, axes.H)):
        msg = f"sink has shape {tuple(sink.shape)}; (..., H) = {(*axes.lead, axes.H)} is needed."
        raise ShapeError(msg)
    return sink


def _check_positions(name: str, positions: Array | range | None, target: tuple[int, ...]) -> None:
    if positions is None:
        return
    if isinstance(positions, range):
        if len(positions) != target[-1] or positions.step != 1:
            msg = f"{name} are {positions}; a range of {target[-1]} steps of 1 is needed."
            raise ShapeError(msg)
        return
    if not _compat.is_array(positions) or dtype_name(positions) not in SIGNED:
        got = dtype_name(positions) if _compat.is_array(positions) else type(positions).__name__
        msg = f"{name} are {got}; a signed integer array or a range is needed."
        raise DTypeError(msg)
    known(name, positions)
    if positions.shape[-1:] != target[-1:] or not broadcasts_to(positions.shape, target):
        msg = f"{name} have shape {tuple(positions.shape)}, which does not broadcast to {target}."
        raise ShapeError(msg)
