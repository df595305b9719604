"""`mlx.core.fast.scaled_dot_product_attention`, answered by attnspec, on the arrays of any Array API library.

Not on MLX's own: their namespace is not that of the standard (it has no `bool`). They become arrays of NumPy by
`numpy.asarray(x)` and come back by `mlx.core.array(y)`; MLX's gradients do not see through that.
"""

from __future__ import annotations

from .._compat import Array
from ..attention import attention
from ..errors import DTypeError, OptionError
from ..masks import causal
from .torch_inputs import selecting_or_added

__all__ = ["scaled_dot_product_attention"]


def scaled_dot_product_attention(
    q: Array, k: Array, v: Array, *, scale: float, mask: str | Array | None = None, sinks: Array | None = None
) -> Array:
    """`mlx.core.fast.scaled_dot_product_attention`.

    softmax(scale * q @ k^T + mask) @ v, with a logit of its own for each head in the denominator

    Parameters
    ----------
    q, k, v : floating arrays (B, H, Q, D), (B, G, K, D), (B, G, K, E)
        Query head h uses key/value head h // (H // G).
    scale : float
        There is no default.
    mask : "causal", or a boolean or floating array, broadcast from the right to (B, H, Q, K)
        "causal": the last query sees every key (bottom right). True = may attend; a floating one is added.
    sinks : floating array (H,)

    Returns
    -------
    array (B, H, Q, E)

    Raises
    ------
    errors.ShapeError, errors.DTypeError, errors.MaskError, errors.DeviceError, errors.OptionError

    Notes
    -----
    A row that sees nothing is 0 here; MLX gives the mean of the values, and 0 where there are sinks.
    Source: the documentation of MLX 0.32.

    Examples
    --------
    >>> import numpy as np
    >>> q, k = np.zeros((1, 1, 2, 4)), np.zeros((1, 1, 3, 4)); v = np.arange(3.0).reshape(1, 1, 3, 1)
    >>> scaled_dot_product_attention(q, k, v, scale=0.5, mask="causal")[..., 0].tolist()
    [[[0.5, 1.0]]]
    """
    for name, x in {"q": q, "k": k, "v": v, "mask": mask, "sinks": sinks}.items():
        if type(x).__module__.partition(".")[0] == "mlx":
            msg = (
                f"{name} is an array of MLX, whose namespace is not that of the standard. Pass numpy.asarray({name}), "
                "and make mlx.core.array of what comes back; MLX's gradients do not see through that."
            )
            raise DTypeError(msg)
    if scale is None:
        msg = "scale=None: MLX has no default; a number is needed, such as D**-0.5."
        raise OptionError(msg)
    if isinstance(mask, str):
        if mask != "causal":
            msg = f'mask={mask!r}: "causal", a boolean or a floating array is needed.'
            raise OptionError(msg)
        return attention(q, k, v, mask=causal(align="end"), scale=scale, sink=sinks)
    selecting, added = selecting_or_added(mask)
    return attention(q, k, v, mask=selecting, bias=added, scale=scale, sink=sinks)
