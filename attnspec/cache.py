"""A key/value cache for decoding: fixed capacity, immutable, a pytree of k, v and length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

from . import _compat
from ._compat import SIGNED, Array, dtype_name
from .errors import CacheError, ShapeError
from .host import beside, host_of
from .masks import padding
from .params import MultiHeadParams
from .rule_arrays import indices, widened_ints
from .rules import Rule
from .shapes import broadcasts_to, floating, of_type, zeros
from .struct import LEAF, Struct


@dataclass(frozen=True)
class Cache(Struct):
    """Keys and values of what came before: rows `0 : length` of `capacity` are written.

    `length` is a Python int, or a signed integer array: 0-d, or over the leading axes (one length an item). Writing
    past the end raises `errors.CacheError`. Where the length cannot be looked at (traced), an append that does not fit
    leaves the rows alone and turns the length into -1, from which it never recovers; all that is computed with it is
    NaN (MULTIHEAD-4). With an array every step has the same shapes, so a compiled step is compiled once.
    """

    k: Array  # (..., G, capacity, D)
    v: Array  # (..., G, capacity, E)
    length: int | Array = field(metadata=LEAF)

    @classmethod
    def empty(
        cls,
        *,
        kv_heads: int,
        capacity: int,
        key_width: int,
        value_width: int | None = None,
        lead: tuple[int, ...] = (),
        dtype: str = "float32",
        like: Any,
    ) -> Cache:
        """A cache with nothing in it, on the device of `like` (an array or a namespace).

        `lead` are the leading axes, such as (B,). For a step that is compiled once, make the length an array:
        `dataclasses.replace(cache, length=xp.asarray(0))`.

        Examples
        --------
        >>> import numpy as np, attnspec
        >>> cache = attnspec.Cache.empty(kv_heads=2, capacity=8, key_width=4, like=np)
        >>> cache = cache.append(np.ones((2, 3, 4), np.float32), np.ones((2, 3, 4), np.float32))
        >>> cache.length
        3
        """
        rows = (*lead, kv_heads, capacity)
        values = key_width if value_width is None else value_width
        return cls(zeros((*rows, key_width), dtype, like), zeros((*rows, values), dtype, like), 0)

    @classmethod
    def of(cls, params: MultiHeadParams, *, capacity: int, lead: tuple[int, ...] = ()) -> Cache:
        """An empty cache with the heads, widths, dtype and device of `params`, for leading axes `lead`, such as (B,).

        Examples
        --------
        >>> import numpy as np, attnspec
        >>> params = attnspec.MultiHeadParams.init(attnspec.random.key(0), model_width=8, heads=2, like=np)
        >>> attnspec.Cache.of(params, capacity=16, lead=(3,)).k.shape
        (3, 2, 16, 4)
        """
        of_type("params", params, MultiHeadParams)
        return cls.empty(
            kv_heads=params.wk.shape[1], capacity=capacity, key_width=params.wk.shape[2],
            value_width=params.wv.shape[2], lead=lead, dtype=dtype_name(params.wk), like=params.wk,
        )  # fmt: skip

    @property
    def capacity(self) -> int:
        """How many rows there are."""
        return int(self.k.shape[-2])

    def append(self, k: Array, v: Array) -> Self:
        """The cache with the rows k (..., G, n, D) and v (..., G, n, E) written behind its last."""
        floating(cache=self.k, k=k, v=v)
        for name, new, old in (("k", k, self.k), ("v", v, self.v)):
            if new.shape[:-2] != old.shape[:-2] or new.shape[-1] != old.shape[-1] or k.shape[-2] != v.shape[-2]:
                msg = (
                    f"the cache holds {name} {tuple(old.shape)}; k {tuple(k.shape)} and v {tuple(v.shape)} do not "
                    "extend it. A cache for a batch is made with lead=(B,)."
                )
                raise ShapeError(msg)
        write, longer = self._writing(k.shape[-2])
        with host_of(self.k).scope():
            return self._written(k, v, write, longer)

    def rows_for(self, q: Array) -> tuple[Array, Array]:
        """k and v as attention of q reads them."""
        return self.k, self.v

    def mask(self) -> Rule:
        """Which rows are written, as a mask over the keys."""
        return padding(self.length)

    def positions(self, n: int) -> range | Array:
        """The positions of the next n rows, aligned with the leading axes."""
        start: Any = self.length
        if isinstance(start, int):
            return range(start, start + n)
        return start[..., None] + _compat.namespace(self.k).arange(n, **beside(self.k))

    def _writing(self, n: int) -> tuple[Callable[[Array, Array], Array], int | Array]:
        """How n more rows are written into an array of this cache, and the length after that."""
        start = self._checked_length()
        if isinstance(start, int):
            if start + n > self.capacity:
                self._overflow(start, n)
            return lambda old, new: _spliced(old, new, start), start + n
        xp = _compat.namespace(self.k)
        fits = (start >= 0) & (start + n <= self.capacity)
        if host_of(start).concrete(start) and not bool(xp.all(fits)):
            self._overflow(int(xp.max(start)), n)
        return lambda old, new: _placed(old, new, start, fits), xp.where(fits, start + n, -1)

    def _written(self, k: Array, v: Array, write: Callable[[Array, Array], Array], longer: int | Array) -> Self:
        return replace(self, k=write(self.k, k), v=write(self.v, v), length=longer)

    def _checked_length(self) -> Any:
        length = self.length
        if _compat.is_array(length):
            if dtype_name(length) not in SIGNED or not broadcasts_to(length.shape, self.k.shape[:-3]):
                msg = (
                    f"length is {dtype_name(length)} of shape {tuple(length.shape)}; "
                    f"signed integers over {tuple(self.k.shape[:-3])} are needed."
                )
                raise ShapeError(msg)
            return widened_ints(length)
        if type(length) is not int or length < 0:
            msg = f"length={length!r}: an int >= 0 or a signed integer array is needed."
            raise CacheError(msg)
        return length

    def _overflow(self, start: int, n: int) -> None:
        msg = f"the cache has {self.capacity} rows, {start} are written and {n} more do not fit. Make a larger one."
        raise CacheError(msg)


def _spliced(old: Array, new: Array, start: int) -> Array:
    return _compat.namespace(old, new).concat([old[..., :start, :], new, old[..., start + new.shape[-2] :, :]], axis=-2)


def _placed(old: Array, new: Array, length: Array, fits: Array) -> Array:
    """Row r takes row r - length of `new` where there is one."""
    xp = _compat.namespace(old)
    if new.shape[-2] == 0:
        return old
    rows = xp.arange(old.shape[-2], **beside(old)) - length[..., None]
    inside = (rows >= 0) & (rows < new.shape[-2]) & fits[..., None]
    rows = xp.clip(rows, 0, new.shape[-2] - 1)
    if rows.ndim == 1:
        return xp.where(inside[:, None], xp.take(new, rows, axis=-2), old)
    rows, inside = rows[..., None, :, None], inside[..., None, :, None]
    return xp.where(inside, xp.take_along_axis(new, xp.broadcast_to(indices(rows), old.shape), axis=-2), old)
