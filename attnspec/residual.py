"""The skip connection: add-and-norm (post-norm, the paper's), and pre-norm. Two names, so that neither is guessed."""

from __future__ import annotations

from collections.abc import Callable

from ._compat import Array, alike, cast, widened
from .dropout import dropped
from .errors import ShapeError
from .fresh import by_rows
from .host import host_of
from .norm import check_norm, layer_norm, normalised
from .request import Dropout
from .shapes import floating


def add_and_norm(
    x: Array,
    sublayer_out: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    eps: float | Array = 1e-5,
    dropout: Dropout | None = None,
) -> Array:
    """layer_norm(x + dropout(sublayer_out)): post-norm, as in the original Transformer.

    Parameters
    ----------
    x, sublayer_out : floating arrays (..., M) of one shape
    gamma, beta, eps
        As in `layer_norm`.
    dropout : Dropout, optional

    Returns
    -------
    array like `x`
        The sum is not rounded to half precision on its way into the norm.

    Notes
    -----
    Clause NORM-2. Source: Vaswani et al., 2017.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> attnspec.add_and_norm(np.asarray([1.0, 2.0]), np.asarray([0.0, 3.0]), eps=0.0).tolist()
    [-1.0, 1.0]
    """
    check_norm(x, eps, gamma=gamma, beta=beta)
    check_sum(x, sublayer_out)

    def of_rows(x: Array, y: Array, dropout: Dropout | None = None) -> Array:
        return cast(normalised(_sum(x, y, dropout), gamma, beta, eps), x.dtype)

    with host_of(x).scope():
        if dropout is not None:
            return of_rows(x, sublayer_out, dropout)
        return by_rows(of_rows, x, sublayer_out, held=(gamma, beta, eps))


def pre_norm(
    x: Array,
    sublayer: Callable[[Array], Array],
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    eps: float | Array = 1e-5,
    dropout: Dropout | None = None,
) -> Array:
    """x + dropout(sublayer(layer_norm(x))): pre-norm, as in GPT-2 and most later models.

    Parameters
    ----------
    x : floating array (..., M)
    sublayer : callable from (..., M) to (..., M)
    gamma, beta, eps, dropout
        As in `add_and_norm`.

    Notes
    -----
    Clause NORM-2. Source: Xiong et al., "On layer normalization in the Transformer architecture", 2020.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> attnspec.pre_norm(np.asarray([1.0, 3.0]), lambda y: 2 * y, eps=0.0).tolist()
    [-1.0, 5.0]
    """
    return add(x, sublayer(layer_norm(x, gamma, beta, eps=eps)), dropout)


def add(x: Array, y: Array, dropout: Dropout | None = None) -> Array:
    """x + dropout(y), in the dtype of x."""
    check_sum(x, y)
    with host_of(x).scope():
        return cast(_sum(x, y, dropout), x.dtype)


def check_sum(x: Array, y: Array) -> None:
    """Raise unless they are of one shape."""
    floating(x=x, sublayer_out=y)
    if tuple(x.shape) != tuple(y.shape):
        msg = f"a skip connection adds equal shapes, got x {tuple(x.shape)} and sublayer_out {tuple(y.shape)}."
        raise ShapeError(msg)


def _sum(x: Array, y: Array, dropout: Dropout | None) -> Array:
    dropout = Dropout.checked(dropout, tuple(x.shape))
    x, y = map(widened, alike(x, y))
    return x + (y if dropout is None else dropped(y, dropout))
