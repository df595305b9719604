"""The normalisations of `torch.nn.functional`, over several last axes at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .._compat import Array, cast, namespace, widened
from ..errors import ShapeError
from ..host import host_of
from ..norm import layer_norm as normalised
from ..norm import rms_norm as divided_by_root
from ..shapes import expect, floating, is_number


def layer_norm(
    input: Array,
    normalized_shape: Sequence[int],
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
) -> Array:
    """`torch.nn.functional.layer_norm`.

    (x - mean) / sqrt(var + eps) * weight + bias, over the last axes, which are those of `normalized_shape`

    Parameters
    ----------
    input : floating array (..., *normalized_shape)
    weight, bias : floating arrays of `normalized_shape`
    eps : float
        PyTorch takes a negative one too: NaN where it outweighs the variance.

    Examples
    --------
    >>> import numpy as np
    >>> layer_norm(np.asarray([[1.0, 2.0], [3.0, 4.0]]), (2, 2), eps=0.0).round(2).tolist()
    [[-1.34, -0.45], [0.45, 1.34]]
    """
    return _over_last(lambda x, eps: normalised(x, eps=eps), input, normalized_shape, weight, bias, eps)


def rms_norm(
    input: Array, normalized_shape: Sequence[int], weight: Array | None = None, eps: float | None = None
) -> Array:
    """`torch.nn.functional.rms_norm`.

    x / sqrt(mean(x^2) + eps) * weight, over the last axes, which are those of `normalized_shape`

    Parameters
    ----------
    input : floating array (..., *normalized_shape)
    weight : floating array of `normalized_shape`
    eps : float
        The spacing of the dtype at 1 unless given; otherwise as in `layer_norm`.

    Examples
    --------
    >>> import numpy as np
    >>> rms_norm(np.asarray([[3.0, 4.0]]), (1, 2), eps=0.0).round(3).tolist()
    [[0.849, 1.131]]
    """
    if eps is None:
        floating(input=input)
        eps = float(namespace(input).finfo(input.dtype).eps)
    return _over_last(lambda x, eps: divided_by_root(x, eps=eps), input, normalized_shape, weight, None, eps)


def _over_last(
    norm: Callable[[Array, float], Array],
    x: Array,
    shape: Sequence[int],
    weight: Array | None,
    bias: Array | None,
    eps: float,
) -> Array:
    affine = {name: a for name, a in (("weight", weight), ("bias", bias)) if a is not None}
    floating(input=x, **affine)
    shape = tuple(shape)
    lead = tuple(x.shape[: x.ndim - len(shape)])
    if not shape or tuple(x.shape) != (*lead, *shape):
        msg = f"input has shape {tuple(x.shape)}; (..., *normalized_shape) with normalized_shape={shape} is needed."
        raise ShapeError(msg)
    for name, a in affine.items():
        expect(name, a, shape, "normalized_shape")
    with host_of(x).scope():
        xp, wide = namespace(x), widened(x)
        y = xp.reshape(_with_any_eps(norm, xp.reshape(wide, (*lead, math.prod(shape))), eps), x.shape)
        y = y if weight is None else y * cast(weight, y.dtype)
        y = y if bias is None else y + cast(bias, y.dtype)
        return cast(y, x.dtype)


def _with_any_eps(norm: Callable[[Array, float], Array], x: Array, eps: float) -> Array:
    """attnspec has no negative eps: the root without it, which is mean(x * y), and what it would have been with it."""
    if not is_number(eps) or not eps < 0:
        return norm(x, eps)
    xp, y = namespace(x), norm(x, 0.0)
    root = xp.mean(x * y, axis=-1, keepdims=True)
    return y * (root / xp.sqrt(root * root + eps))
