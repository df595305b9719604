"""Reproducible mode on chunked arrays: the very bits of the undivided call, whatever the chunks and the workers.

from attnspec_dask import reproducible

out = reproducible.attention(q, k, v, mask=reproducible.causal())
"""

from __future__ import annotations

from typing import Any

import dask.array as da

from attnspec.errors import OptionError
from attnspec.host import host_of
from attnspec.request import make_request

from .chunks import unsupported
from .graph import attend
from .modes import Reproducible

__all__ = ["attention", "attention_with_lse"]


def attention(q: da.Array, k: da.Array, v: da.Array, **options: Any) -> da.Array:
    """`attnspec.reproducible.attention`, by chunks.

    Parameters
    ----------
    q, k, v, **options
        As `attnspec.attention`, without dropout and `implementation`. Chunks of keys that do not end after a multiple
        of 256 keys are rechunked to the next one.

    Returns
    -------
    array (..., H, Q, E)
        Chunked along Q as q is.

    Raises
    ------
    errors.OptionError
        For what cannot be taken apart: dropout, and masks and biases of somebody else's class.

    Examples
    --------
    >>> import dask.array as da, numpy as np, attnspec, attnspec_dask.reproducible
    >>> q, k, v = (np.random.default_rng(n).standard_normal((600, 8)).astype("f4") for n in range(3))
    >>> chunked = [da.from_array(x, chunks=(100, 8)) for x in (q, k, v)]
    >>> out = attnspec_dask.reproducible.attention(*chunked)
    >>> bool(np.all(out.compute() == attnspec.reproducible.attention(q, k, v)))
    True
    """
    return attention_with_lse(q, k, v, **options)[0]


def attention_with_lse(q: da.Array, k: da.Array, v: da.Array, **options: Any) -> tuple[da.Array, da.Array]:
    """`attnspec.reproducible.attention_with_lse`, by chunks.

    Parameters
    ----------
    As `attention`.

    Returns
    -------
    out : array (..., H, Q, E)
    lse : array (..., H, Q)

    Examples
    --------
    >>> import dask.array as da, attnspec_dask.reproducible
    >>> x = da.ones((4, 2), chunks=(2, 2))
    >>> float(attnspec_dask.reproducible.attention_with_lse(x, x, x, scale=0.0)[1][0].compute().round(4))
    1.3863
    """
    request = make_request(q, k, v, **options)
    reason = unsupported(request)
    if reason is not None:
        msg = f"this call cannot be taken apart into chunks: {reason}. Use attnspec.reproducible.attention."
        raise OptionError(msg)
    with host_of(q).scope():
        out, lse = attend(request, Reproducible())
        return (out[0, ...], lse[0, ...]) if request.headless else (out, lse)
