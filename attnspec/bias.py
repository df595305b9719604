"""Terms that are added to the scores: arrays, ALiBi, relative tables. Asked for one tile at a time; they compose by +.

-inf in a bias masks its pair; every finite number, the most negative included, is only a number (SCORE-5).
"""

from __future__ import annotations

from . import _compat
from ._compat import Array
from .errors import OptionError, ShapeError
from .positional import Alibi, Relative
from .powers import power
from .rule_arrays import Align, checked_align, checked_ints
from .terms import Bias, Term, as_bias, floating_array

__all__ = ["Bias", "alibi", "as_bias", "relative_bias"]


def alibi(heads: int | Array, *, offset: int | Array = 0, align: Align = "start") -> Term:
    """Attention with linear biases: -slope_h * |j - i - offset|.

    Parameters
    ----------
    heads : int or floating array (H,)
        Number of heads, for the published slopes 2**(-8 h / H); for an H that is no power of two the published code
        takes the slopes of the next lower power, then every other slope of the next higher one. Or slopes of your own.
    offset, align
        As in `causal`: where query i stands among the keys.

    Notes
    -----
    Under a causal mask this equals slope * (j - const) of Bloom and MPT, since softmax is shift-invariant.
    Source: Press, Smith, Lewis, "Train Short, Test Long", 2022, and its published code.

    Examples
    --------
    >>> import attnspec
    >>> [round(s, 4) for s in attnspec.alibi(6).slopes]
    [0.25, 0.0625, 0.0156, 0.0039, 0.5, 0.125]
    """
    if _compat.is_array(heads):
        floating_array("slopes", heads)
        return Alibi(heads, checked_ints("offset", offset), checked_align(align))
    if type(heads) is not int or heads < 1:
        msg = f"alibi heads={heads!r}: a number of heads >= 1 or an array of slopes (H,) is needed."
        raise OptionError(msg)
    return Alibi(_published_slopes(heads), checked_ints("offset", offset), checked_align(align))


def relative_bias(
    table: Array,
    *,
    offset: int | Array = 0,
    align: Align = "start",
    max_distance: int | None = None,
    bidirectional: bool = True,
) -> Term:
    """A learned bias for each head and each distance d = j - i - offset.

    Parameters
    ----------
    table : floating array (..., H, N)
        Without `max_distance`: N = 2 R + 1, entry d + R for distance d, and distances beyond R take the outermost one.
        With it: N buckets as in T5, half of them for exact distances, the rest spaced by logarithm up to
        `max_distance`.
    offset, align
        As in `causal`.
    max_distance : int
        Distance from which on all share the last bucket.
    bidirectional : bool
        With `max_distance`: the upper half of the buckets is for keys after the query; otherwise those share bucket 0.

    Notes
    -----
    Sources: Shaw, Uszkoreit, Vaswani, 2018; Raffel et al., 2020. T5's layers attend with `scale=1.0`.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> bias = attnspec.relative_bias(np.asarray([[-1.0, 0.0, 1.0]]))
    >>> attnspec.attention_weights(np.zeros((2, 1)), np.zeros((2, 1)), bias=bias).round(3).tolist()
    [[0.269, 0.731], [0.269, 0.731]]
    """
    floating_array("table", table)
    if table.ndim < 1 or table.shape[-1] < 1:
        msg = f"table has shape {tuple(table.shape)}; (..., H, N) with N >= 1 is needed."
        raise ShapeError(msg)
    n = table.shape[-1]
    if max_distance is None:
        if n % 2 == 0:
            msg = f"table has N={n} distances; an odd number 2 R + 1 is needed, or `max_distance=` for N buckets."
            raise ShapeError(msg)
        return Relative(table, checked_ints("offset", offset), checked_align(align), None, True)
    buckets = n // 2 if bidirectional else n
    even = n % 2 == 0 or not bidirectional
    if type(max_distance) is not int or buckets < 2 or max_distance <= buckets // 2 or not even:
        msg = (
            f"max_distance={max_distance!r} with N={n} buckets: an int > {buckets // 2} is needed, and "
            f"{'an even N >= 4' if bidirectional else 'N >= 2'}."
        )
        raise OptionError(msg)
    return Relative(table, checked_ints("offset", offset), checked_align(align), max_distance, bidirectional)


def _published_slopes(heads: int) -> tuple[float, ...]:
    whole = 1 << (heads.bit_length() - 1)
    slopes = [power(2, -8 * h, whole) for h in range(1, whole + 1)]
    between = [power(2, -4 * h, whole) for h in range(1, 2 * whole + 1, 2)]
    return tuple(slopes + between[: heads - whole])
