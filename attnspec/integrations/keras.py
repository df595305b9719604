"""`keras.ops.dot_product_attention`, answered by attnspec, and the seam by which Keras's own layers and ops use it.

with attnspec.integrations.keras.install():
    model.predict(x)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from .._compat import Array
from ..attention import attention
from ..errors import MissingFrameworkError, OptionError, ShapeError
from ..masks import as_mask, causal
from ..shapes import floating, of_one_dtype
from .jax import heads_first

__all__ = ["dot_product_attention", "install"]

BACKENDS = ("jax", "numpy", "torch")


def dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    flash_attention: bool | None = None,
    attn_logits_soft_cap: float | None = None,
) -> Array:
    """`keras.ops.dot_product_attention`.

    softmax(scale * query @ key^T + bias) @ value, over the keys that every mask leaves

    Parameters
    ----------
    query, key, value : floating arrays (B, Q, H, D), (B, K, G, D), (B, K, G, E)
        Query head h uses key/value head h // (H // G). Of several dtypes: in the widest, two half types in float32.
    bias : floating array, broadcast from the right to (B, H, Q, K)
    mask : boolean array, broadcast from the right to (B, H, Q, K)
        True = may attend.
    scale : float
        Default D**-0.5.
    is_causal : bool
        Key j is visible to query i iff j <= i (top left).
    flash_attention : None or False
        True insists on a kernel that is not attnspec's, and raises.
    attn_logits_soft_cap : float
        c * tanh(s / c), on every device, where this function is called. `keras.ops`, within `install` too, refuses it
        before the call gets here, unless Keras runs on JAX on a TPU.

    Returns
    -------
    array (B, Q, H, E)

    Raises
    ------
    errors.ShapeError, errors.DTypeError, errors.MaskError, errors.DeviceError, errors.OptionError

    Notes
    -----
    mask and bias both hold on every backend; Keras refuses the two together on PyTorch. A row that sees nothing is 0
    here and the mean of the values in Keras. Source: the documentation of Keras 3.15.

    Examples
    --------
    >>> import numpy as np
    >>> q = k = np.zeros((1, 3, 2, 4)); v = np.arange(6.0).reshape(1, 3, 2, 1)
    >>> dot_product_attention(q, k, v, is_causal=True)[0, :, 0, 0].tolist()
    [0.0, 1.0, 2.0]
    """
    if flash_attention:
        msg = "flash_attention=True asks for a kernel of the framework; None or False is needed."
        raise OptionError(msg)
    given = {"query": query, "key": key, "value": value}
    for name, x in given.items():
        floating(**{name: x})
        if x.ndim != 4:
            msg = f"{name} has shape {tuple(x.shape)}; (B, rows, heads, width) is needed."
            raise ShapeError(msg)
    q, k, v = of_one_dtype(*(heads_first(name, x) for name, x in given.items()))
    seen = None if mask is None else as_mask(mask)
    if is_causal:
        seen = causal() if seen is None else causal() & seen
    return heads_first("output", attention(q, k, v, mask=seen, bias=bias, scale=scale, softcap=attn_logits_soft_cap))


@contextmanager
def install() -> Iterator[None]:
    """Within it Keras's attention is attnspec's: `keras.ops.dot_product_attention` and the layers that call it.

    `MultiHeadAttention` and `GroupedQueryAttention` do unless they are asked for the scores, or have a dropout rate:
    then they keep to their own softmax. What Keras compiled before or within stays as it was compiled.

    Raises
    ------
    errors.MissingFrameworkError
        Keras is not installed.
    errors.OptionError
        Keras runs on a library without Array API arrays.

    Notes
    -----
    What is replaced is `dot_product_attention` of the backend that Keras has chosen, which Keras looks up at every
    call. Installing in one thread is installing in all.

    Examples
    --------
    >>> import attnspec.integrations.keras
    >>> with attnspec.integrations.keras.install():  # doctest: +SKIP
    ...     model.predict(x)
    """
    try:
        backend: Any = import_module("keras.src.backend")
    except ModuleNotFoundError as error:
        msg = "Keras is not installed: pip install keras."
        raise MissingFrameworkError(msg) from error
    if backend.backend() not in BACKENDS:
        msg = f"Keras runs on {backend.backend()!r}; one of {', '.join(BACKENDS)} is needed: set KERAS_BACKEND."
        raise OptionError(msg)

    def replacement(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, **options: Any) -> Any:
        given = {"query": query, "key": key, "value": value, "bias": bias, "mask": mask}
        arrays: dict[str, Any] = {n: None if x is None else backend.convert_to_tensor(x) for n, x in given.items()}
        return dot_product_attention(**arrays, **options)

    own = backend.nn.dot_product_attention
    backend.nn.dot_product_attention = replacement
    try:
        yield
    finally:
        backend.nn.dot_product_attention = own
