"""`jax.nn.dot_product_attention`, answered by attnspec, on the arrays of any Array API library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _compat
from .._compat import Array, cast
from ..attention import attention, attention_with_lse
from ..errors import OptionError, ShapeError
from ..host import beside
from ..masks import Mask, as_mask, causal, padding, window
from ..rule_arrays import checked_ints
from ..shapes import expect, floating

__all__ = ["dot_product_attention"]


def dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Array | Sequence[int] | None = None,
    key_value_seq_lengths: Array | Sequence[int] | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """`jax.nn.dot_product_attention`.

    softmax(scale * query @ key^T + bias) @ value, over the keys that every mask leaves

    Parameters
    ----------
    query, key, value : floating arrays (B, Q, H, D), (B, K, G, D), (B, K, G, E), or without B
        Query head h uses key/value head h // (H // G).
    bias : floating array, broadcast from the right to (B, H, Q, K)
    mask : boolean array, broadcast from the right to (B, H, Q, K)
        True = may attend.
    scale : float
        Default D**-0.5.
    is_causal : bool
        Key j is visible to query i iff j <= i (top left).
    query_seq_lengths : signed integers (B,)
        Later rows of the output are 0.
    key_value_seq_lengths : signed integers (B,)
        Later keys are hidden.
    local_window_size : int or (left, right)
        i - left <= j <= i + right; one number is both.
    implementation : None
        attnspec has one; the name of another raises.
    return_residual : bool
        Return the log of the sum of the exponentials too.

    Returns
    -------
    out : array (B, Q, H, E), or (Q, H, E)
    lse : array (B, Q, H), or (Q, H), with `return_residual`
        In the dtype of the query, -inf for a row that sees nothing, and differentiable; JAX gives -2.4e38 and stops
        the gradient.

    Raises
    ------
    errors.ShapeError, errors.DTypeError, errors.MaskError, errors.DeviceError, errors.OptionError

    Notes
    -----
    A row that sees nothing is 0 here and the mean of the values in JAX, unless `query_seq_lengths` ends before it.
    JAX takes the softmax of float64 in float32; here float64 stays what it is.
    Source: the documentation of JAX 0.10.

    Examples
    --------
    >>> import numpy as np
    >>> q = k = np.zeros((3, 2, 4)); v = np.arange(6.0).reshape(3, 2, 1)
    >>> dot_product_attention(q, k, v, local_window_size=(1, 0))[:, 0, 0].tolist()
    [0.0, 1.0, 3.0]
    """
    if implementation is not None:
        msg = f"implementation={implementation!r}: attnspec computes it; None is needed."
        raise OptionError(msg)
    floating(query=query, key=key, value=value)
    q, k, v = (heads_first(name, x) for name, x in (("query", query), ("key", key), ("value", value)))
    _of_one_batch(query, key, value)
    rules: list[Mask] = [] if mask is None else [as_mask(mask)]
    if is_causal:
        rules.append(causal())
    if local_window_size is not None:
        rules.append(window(*_sides(local_window_size)))
    if query_seq_lengths is not None:
        rows = _compat.namespace(q).arange(q.shape[2], **beside(q))
        lengths = each_length("query_seq_lengths", query_seq_lengths, q)
        rules.append(as_mask((rows < lengths[:, None])[:, None, :, None]))
    if key_value_seq_lengths is not None:
        rules.append(padding(each_length("key_value_seq_lengths", key_value_seq_lengths, q)))
    seen: Any = None
    for rule in rules:
        seen = rule if seen is None else seen & rule
    if not return_residual:
        return _as_given(attention(q, k, v, mask=seen, bias=bias, scale=scale), query.ndim)
    out, lse = attention_with_lse(q, k, v, mask=seen, bias=bias, scale=scale)
    lse = cast(_compat.turned(lse), query.dtype)
    return _as_given(out, query.ndim), lse[0, ...] if query.ndim == 3 else lse


def heads_first(name: str, x: Array) -> Array:
    """(B, rows, heads, width) or (rows, heads, width) -> (B, heads, rows, width)."""
    if x.ndim not in (3, 4):
        msg = f"{name} has shape {tuple(x.shape)}; (B, rows, heads, width) or (rows, heads, width) is needed."
        raise ShapeError(msg)
    return _exchanged(x if x.ndim == 4 else x[None, ...])


def _exchanged(x: Array) -> Array:
    return _compat.namespace(x).permute_dims(x, (0, 2, 1, 3))


def _of_one_batch(query: Array, key: Array, value: Array) -> None:
    """Refuse items that would be thrown away, or stand for many."""
    shapes = [tuple(x.shape) for x in (query, key, value)]
    if len({shape[:-3] for shape in shapes}) > 1:
        msg = (
            f"query, key and value have shapes {', '.join(map(str, shapes))}; the same B of all, or none of any, is "
            "needed. Broadcast them first."
        )
        raise ShapeError(msg)


def _as_given(out: Array, rank: int) -> Array:
    """(B, H, Q, E) -> (B, Q, H, E), or (Q, H, E)."""
    out = _exchanged(out)
    return out[0, ...] if rank == 3 else out


def _sides(size: int | tuple[int, int]) -> tuple[int, int]:
    if type(size) is int:
        return size, size
    if isinstance(size, tuple | list) and len(size) == 2:
        return size[0], size[1]
    msg = f"local_window_size={size!r}: an int or (left, right) is needed."
    raise OptionError(msg)


def each_length(name: str, lengths: Array | Sequence[int], q: Array) -> Array:
    """Signed integers (B,) beside q (B, ...)."""
    ints = checked_ints(name, lengths)
    if isinstance(ints, int):
        msg = f"{name}={ints}; (B,) = {(q.shape[0],)} is needed, one length each."
        raise ShapeError(msg)
    if isinstance(ints, tuple):
        xp = _compat.namespace(q)
        ints = xp.asarray(list(ints), dtype=xp.int32, **beside(q))
    expect(name, ints, (q.shape[0],), "(B,)")
    return ints
