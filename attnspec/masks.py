"""Which keys a query may attend to. True = may attend, everywhere.

Masks are rules (`rules.py`) that describe a pattern by a few numbers; they combine by `&`, `|`, `~`, and boolean
arrays are rules too (MASK-1 to MASK-4).
"""

from __future__ import annotations

from ._compat import Array
from .errors import OptionError
from .rule_arrays import Align, checked_align, checked_ints
from .rules import Mask, Padding, Rule, Segments, Window, as_mask

__all__ = ["Mask", "as_mask", "causal", "padding", "segments", "window"]


def causal(offset: int | Array = 0, *, align: Align = "start") -> Rule:
    """Key j is visible to query i iff j <= i + offset.

    Parameters
    ----------
    offset : int or signed integer array over the leading axes
        0 aligns the first query with the first key ("top-left": PyTorch, JAX).
    align : "start" or "end"
        "end" adds K - Q to the offset, so that the last query sees every key ("bottom-right": FlashAttention, MLX;
        what a query against a key/value cache needs).

    See Also
    --------
    window : bounded on either side.

    Notes
    -----
    Clause MASK-4. The two alignments agree only where Q = K, and libraries differ in which one "causal" means.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> q = k = np.zeros((3, 1)); v = np.asarray([[0.0], [1.0], [2.0]])
    >>> attnspec.attention(q, k, v, mask=attnspec.causal())[:, 0].tolist()
    [0.0, 0.5, 1.0]
    """
    return Window(None, 0, checked_ints("offset", offset), checked_align(align))


def window(left: int | None, right: int | None, *, offset: int | Array = 0, align: Align = "start") -> Rule:
    """Key j is visible to query i iff i + offset - left <= j <= i + offset + right.

    Parameters
    ----------
    left, right : int or None
        Inclusive counts: `window(1, 0)` sees the key before and its own, two keys. None is unbounded.
    offset, align
        As in `causal`.

    Notes
    -----
    Clause MASK-4. Others count otherwise: a "window of w" in transformers and Keras is `window(w - 1, ...)`, cuDNN's
    left bound is exclusive, and -1 means unbounded in FlashAttention and ONNX.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> q = k = np.zeros((4, 1)); v = np.asarray([[1.0], [2.0], [4.0], [8.0]])
    >>> attnspec.attention(q, k, v, mask=attnspec.window(1, 0))[:, 0].tolist()
    [1.0, 1.5, 3.0, 6.0]
    """
    for name, count in (("left", left), ("right", right)):
        if count is not None and (type(count) is not int or count < 0):
            msg = f"window {name}={count!r}: a count of keys >= 0 is needed, None for unbounded."
            raise OptionError(msg)
    return Window(left, right, checked_ints("offset", offset), checked_align(align))


def padding(lengths: int | list[int] | tuple[int, ...] | Array) -> Rule:
    """Key j is visible iff j < lengths[b]: sequences padded at their end.

    Parameters
    ----------
    lengths : int, list of int, or signed integer array over the leading axes
        Real keys of each sequence. 0 leaves every row empty: its output is 0.

    Notes
    -----
    Clause MASK-3. Sequences padded at the start need `~padding(first)`.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> q = np.zeros((2, 1, 1, 1)); v = np.arange(6.0).reshape(2, 1, 3, 1)
    >>> attnspec.attention(q, v, v, mask=attnspec.padding([3, 1]))[:, 0, 0, 0].tolist()
    [1.0, 3.0]
    """
    return Padding(checked_ints("lengths", lengths))


def segments(q_ids: Array | list[int], k_ids: Array | list[int] | None = None) -> Rule:
    """Packed sequences: a query sees the keys that carry its own id.

    Parameters
    ----------
    q_ids : list of int or signed integer array (..., Q)
    k_ids : list of int or signed integer array (..., K)
        The same as `q_ids` unless given.

    Notes
    -----
    Clause MASK-3. Combine with `causal()` for packed decoding.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> q = np.zeros((3, 1)); v = np.asarray([[1.0], [3.0], [8.0]])
    >>> attnspec.attention(q, q, v, mask=attnspec.segments([7, 7, 9]))[:, 0].tolist()
    [2.0, 2.0, 8.0]
    """
    q_rows = checked_ints("q_ids", q_ids)
    return Segments(q_rows, q_rows if k_ids is None else checked_ints("k_ids", k_ids))
