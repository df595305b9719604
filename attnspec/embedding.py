"""Into a model and out of it: rows of a table by token, and the mean over the real tokens."""

from __future__ import annotations

from . import _compat
from ._compat import SIGNED, Array, dtype_name, widened
from .derivative import differentiable
from .errors import DTypeError, OptionError, ShapeError
from .gradients import embed_backward
from .host import beside, host_of
from .shapes import broadcasts_to, floating


def embed(table: Array, ids: Array) -> Array:
    """Row `ids[...]` of the table: table (V, M), ids (...) -> (..., M).

    A number outside 0 .. V - 1 raises where it can be looked at, and gives a row of NaN where it cannot (under a
    transform, or while a program is being recorded); it never gives another token's row.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> attnspec.embed(np.asarray([[0.0, 1.0], [2.0, 3.0]]), np.asarray([1, 0, 1])).tolist()
    [[2.0, 3.0], [0.0, 1.0], [2.0, 3.0]]
    """
    floating(table=table)
    if not _compat.is_array(ids) or dtype_name(ids) not in SIGNED:
        msg = f"ids are {getattr(ids, 'dtype', type(ids).__name__)}; a signed integer array is needed."
        raise DTypeError(msg)
    if table.ndim != 2:
        msg = f"table has shape {tuple(table.shape)}; (V, M) is needed."
        raise ShapeError(msg)
    xp, host = _compat.namespace(table, ids), host_of(table)
    V, M = table.shape
    with host.scope():
        known = (ids >= 0) & (ids < V)
        if host.concrete(table, ids) and not bool(xp.all(known)):
            msg = f"ids run from {int(xp.min(ids))} to {int(xp.max(ids))}; the table has rows 0 to {V - 1}."
            raise OptionError(msg)
        (rows,) = differentiable(_rows, embed_backward, (table, xp.clip(xp.reshape(ids, (-1,)), 0, max(V - 1, 0))))
        nothing = xp.asarray(float("nan"), dtype=table.dtype, **beside(table))
        return xp.where(known[..., None], xp.reshape(rows, (*ids.shape, M)), nothing)


def _rows(operands: tuple[Array, Array]) -> tuple[Array]:
    table, ids = operands
    return (_compat.namespace(table).take(table, ids, axis=0),)


def mean_pool(x: Array, lengths: int | list[int] | Array | None = None) -> Array:
    """The mean of the first `lengths[b]` rows: x (..., Q, M) -> (..., M); of all rows without lengths.

    What lies behind a length cannot be observed; the mean of no rows is 0.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> attnspec.mean_pool(np.asarray([[1.0], [3.0], [np.nan]]), 2).tolist()
    [2.0]
    """
    floating(x=x)
    if x.ndim < 2:
        msg = f"x has shape {tuple(x.shape)}; (..., Q, M) is needed."
        raise ShapeError(msg)
    xp = _compat.namespace(x)
    Q = x.shape[-2]
    n: Array = Q if lengths is None else lengths
    n = n if _compat.is_array(n) else xp.asarray(n, **beside(x))
    if dtype_name(n) not in SIGNED or not broadcasts_to(n.shape, x.shape[:-2]):
        msg = (
            f"lengths are {dtype_name(n)} of shape {tuple(n.shape)}; "
            f"signed integers over {tuple(x.shape[:-2])} are needed."
        )
        raise ShapeError(msg)
    with host_of(x).scope():
        wide = widened(x)
        real = xp.arange(Q, **beside(x)) < n[..., None]
        total = xp.sum(xp.where(real[..., None], wide, 0.0), axis=-2)
        count = xp.astype(xp.clip(n, 1, max(Q, 1)), wide.dtype)
        return xp.astype(total / count[..., None], x.dtype, copy=False)
