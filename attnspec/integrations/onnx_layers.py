"""ONNX's LayerNormalization, RMSNormalization and RotaryEmbedding by attnspec."""

from __future__ import annotations

import math
from typing import NamedTuple

from .._compat import SIGNED, Array, cast, dtype_name, is_array, namespace, widened
from ..errors import DTypeError, OptionError, ShapeError
from ..host import host_of
from ..norm import layer_norm, rms_norm
from ..rotary import turned_by
from ..shapes import broadcasts_to, floating
from .onnx_inputs import flag, merged, split


class LayerNormalizationOutputs(NamedTuple):
    """The outputs of ONNX's LayerNormalization."""

    Y: Array
    Mean: Array
    InvStdDev: Array


def layer_normalization_op(
    X: Array, Scale: Array, B: Array | None = None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> LayerNormalizationOutputs:
    """ONNX's LayerNormalization, opset 17.

    Parameters
    ----------
    X : floating array
        Normalised over `axis` and all axes after it.
    Scale, B : floating arrays that broadcast to the normalised axes
    epsilon : float >= 0
    stash_type : 1
        float32; attnspec computes in float32, and float64 in float64.

    Returns
    -------
    LayerNormalizationOutputs
        Y is like X; the normalised axes of Mean and InvStdDev have length 1, and no half precision.

    Raises
    ------
    errors.ShapeError, errors.DTypeError, errors.OptionError

    Notes
    -----
    ONNX lets Scale and B broadcast to the axes before `axis` too, which is no layer normalisation: `errors.ShapeError`.

    Examples
    --------
    >>> import numpy as np
    >>> from attnspec.integrations.onnx import layer_normalization_op
    >>> out = layer_normalization_op(np.asarray([[1.0, 3.0], [4.0, 8.0]]), np.ones(2), axis=0, epsilon=0.0)
    >>> out.Mean.tolist(), out.InvStdDev.round(4).tolist()
    ([[4.0]], [[0.3922]])
    """
    rows, kept = _rows(X, axis, stash_type)
    gamma, beta = _flat("Scale", Scale, X, kept), None if B is None else _flat("B", B, X, kept)
    y = layer_norm(rows, gamma, beta, eps=float(epsilon))
    xp = namespace(X)
    with host_of(X).scope():
        wide = widened(rows)
        mean = xp.mean(wide, axis=-1, keepdims=True)
        deviation = xp.sqrt(xp.mean((wide - mean) ** 2, axis=-1, keepdims=True) + float(epsilon))
        ones = (*X.shape[:kept], *(1,) * (X.ndim - kept))
        return LayerNormalizationOutputs(
            xp.reshape(y, X.shape), xp.reshape(mean, ones), xp.reshape(1.0 / deviation, ones)
        )


def rms_normalization_op(
    X: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Array:
    """ONNX's RMSNormalization, opset 23: as `layer_normalization_op`, without mean and offset.

    Examples
    --------
    >>> import numpy as np
    >>> from attnspec.integrations.onnx import rms_normalization_op
    >>> rms_normalization_op(np.asarray([3.0, 4.0]), np.ones(2), epsilon=0.0).round(3).tolist()
    [0.849, 1.131]
    """
    rows, kept = _rows(X, axis, stash_type)
    return namespace(X).reshape(rms_norm(rows, _flat("scale", scale, X, kept), eps=float(epsilon)), X.shape)


def _rows(X: Array, axis: int, stash_type: int) -> tuple[Array, int]:
    """X with the normalised axes in one, and how many axes come before them."""
    floating(X=X)
    if not -X.ndim <= axis < X.ndim:
        msg = f"axis={axis!r} for X {tuple(X.shape)}: one from {-X.ndim} to {X.ndim - 1} is needed."
        raise OptionError(msg)
    if stash_type != 1:
        msg = f"stash_type={stash_type!r}: attnspec computes in float32 or wider, which is 1."
        raise OptionError(msg)
    kept = axis % X.ndim
    return namespace(X).reshape(X, (*X.shape[:kept], math.prod(X.shape[kept:]))), kept


def _flat(name: str, x: Array, X: Array, kept: int) -> Array:
    """A gain or an offset as one row."""
    floating(**{name: x})
    normalised = tuple(X.shape[kept:])
    if not broadcasts_to(x.shape, normalised):
        msg = f"{name} has shape {tuple(x.shape)}, which does not broadcast to the normalised axes {normalised} of X."
        raise ShapeError(msg)
    xp = namespace(x)
    return xp.reshape(xp.broadcast_to(x, normalised), (math.prod(normalised),))


def rotary_embedding_op(
    X: Array,
    cos_cache: Array,
    sin_cache: Array,
    position_ids: Array | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Array:
    """ONNX's RotaryEmbedding, opset 23: `attnspec.rotary` with cosines and sines that are given.

    Parameters
    ----------
    X : floating array (B, H, Q, D), or (B, Q, H * D) with `num_heads`
    cos_cache, sin_cache : floating arrays (P, W/2), or (B, Q, W/2) without `position_ids`
    position_ids : signed integer array (B, Q)
        Rows of the caches, from 0.
    interleaved : 0 or 1
        Component n pairs with n + W/2, or 2 n with 2 n + 1.
    rotary_embedding_dim : int
        W, the components that are turned; 0 for all.

    Returns
    -------
    array like X
        Computed in float32 or wider.

    Raises
    ------
    errors.ShapeError, errors.DTypeError, errors.OptionError

    Examples
    --------
    >>> import numpy as np
    >>> from attnspec.integrations.onnx import rotary_embedding_op
    >>> angles = np.asarray([[0.0], [1.0]])
    >>> x = np.asarray([[[[1.0, 0.0], [1.0, 0.0]]]])
    >>> rotary_embedding_op(x, np.cos(angles), np.sin(angles), np.asarray([[1, 0]])).round(4).tolist()
    [[[[0.5403, 0.8415], [1.0, 0.0]]]]
    """
    floating(X=X, cos_cache=cos_cache, sin_cache=sin_cache)
    x = split("X", X, "num_heads", num_heads)
    width = rotary_embedding_dim or x.shape[3]
    if type(width) is not int or width % 2 or not 0 < width <= x.shape[3]:
        msg = f"rotary_embedding_dim={width!r} for D={x.shape[3]}: an even number up to D is needed."
        raise OptionError(msg)
    cos, sin = (
        _angles(name, cache, position_ids, (x.shape[0], x.shape[2], width // 2))
        for name, cache in (("cos_cache", cos_cache), ("sin_cache", sin_cache))
    )
    turned = turned_by(widened(x), cos, sin, interleaved=flag("interleaved", interleaved))
    y = cast(turned, X.dtype)
    return y if X.ndim == 4 else merged(y)


def _angles(name: str, cache: Array, position_ids: Array | None, target: tuple[int, int, int]) -> Array:
    """The cosines or sines of each position, (B, 1, Q, W/2)."""
    xp, shape = namespace(cache), tuple(cache.shape)
    needed: tuple[int | str, ...] = target if position_ids is None else ("P", target[-1])
    if len(shape) != len(needed) or any(n not in ("P", m) for n, m in zip(needed, shape, strict=True)):
        msg = f"{name} has shape {shape}; {needed} is needed."
        raise ShapeError(msg)
    if position_ids is not None:
        _check_positions(position_ids, target[:2])
        beyond = xp.logical_or(position_ids < 0, position_ids >= shape[0])
        if host_of(beyond).concrete(beyond) and xp.any(beyond):
            msg = f"{name} has positions 0 to {shape[0] - 1}; position_ids={position_ids} ask for others."
            raise OptionError(msg)
        cache = xp.reshape(xp.take(cache, xp.reshape(position_ids, (-1,)), axis=0), target)
    return widened(cache)[:, None, ...]


def _check_positions(position_ids: Array, rows: tuple[int, int]) -> None:
    if not is_array(position_ids) or dtype_name(position_ids) not in SIGNED:
        kind = dtype_name(position_ids) if is_array(position_ids) else type(position_ids).__name__
        msg = f"position_ids are of type {kind}; a signed integer array (B, Q) = {rows} is needed."
        raise DTypeError(msg)
    if tuple(position_ids.shape) != rows:
        msg = f"position_ids have shape {tuple(position_ids.shape)}; (B, Q) = {rows} is needed."
        raise ShapeError(msg)
