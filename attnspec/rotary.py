"""Rotary position embedding: pairs of components turned by an angle proportional to the position."""

from __future__ import annotations

import math
from dataclasses import dataclass

from . import _compat
from ._compat import SIGNED, Array, Namespace, cast, dtype_name, widened
from .derivative import differentiable
from .errors import DTypeError, OptionError, ShapeError
from .host import beside, host_of
from .powers import power
from .rule_arrays import widened_ints
from .shapes import broadcasts_to, floating, number
from .struct import Struct


@dataclass(frozen=True)
class Rotary(Struct):
    """How `multi_head_attention` turns its queries and keys: the options of `rotary`, as one value."""

    base: float = 10000.0
    width: int | None = None
    interleaved: bool = False

    def __call__(self, x: Array, positions: Array) -> Array:
        """`rotary` with these options."""
        return rotary(x, positions, base=self.base, width=self.width, interleaved=self.interleaved)


def rotary(
    x: Array, positions: Array, *, base: float = 10000.0, width: int | None = None, interleaved: bool = False
) -> Array:
    """Turn pairs of components of queries or keys by position * base**(-2 n / width).

    (a, b) -> (a cos t - b sin t, b cos t + a sin t), t = position * base**(-2 n / width), n = 0 .. width/2 - 1,
    so that the product of a query at i and a key at j depends on j - i alone.

    Parameters
    ----------
    x : floating array (..., H, Q, D) or (Q, D)
    positions : signed integer array (..., Q)
        Aligned with the leading axes before H.
    base : float > 0
    width : int, even
        Turn the first `width` components and leave the rest; default D.
    interleaved : bool
        False: component n pairs with n + width/2 (GPT-NeoX, Llama). True: 2 n pairs with 2 n + 1 (the paper, GPT-J).

    Returns
    -------
    array like `x`
        Computed in float32 or wider.

    Notes
    -----
    In float32 the angle is reduced to a fraction of a turn by exact products, so a large position costs no accuracy;
    a product in float32 is off by 2**-24 of the angle itself, 6e-4 radians at position 10,000. In float64 the product
    is plain: 2**-53 of the angle.
    Source: Su et al., "RoFormer", 2021.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> attnspec.rotary(np.asarray([[1.0, 0.0]]), np.asarray([1])).round(4).tolist()
    [[0.5403, 0.8415]]
    """
    floating(x=x)
    number("base", base, low=0.0, open_low=True)
    if x.ndim < 2:
        msg = f"x has shape {tuple(x.shape)}; (..., H, Q, D) or (Q, D) is needed."
        raise ShapeError(msg)
    width = x.shape[-1] if width is None else width
    if type(width) is not int or width % 2 or not 0 <= width <= x.shape[-1]:
        msg = f"rotary width={width!r} for x {tuple(x.shape)}: an even number up to D={x.shape[-1]} is needed."
        raise OptionError(msg)
    if not _compat.is_array(positions) or dtype_name(positions) not in SIGNED:
        msg = (
            f"positions are {getattr(positions, 'dtype', type(positions).__name__)}; a signed integer array is needed."
        )
        raise DTypeError(msg)
    if not broadcasts_to(positions.shape, (*x.shape[:-3], x.shape[-2])):
        msg = f"positions {tuple(positions.shape)} do not broadcast to (..., Q) of x {tuple(x.shape)}."
        raise ShapeError(msg)
    if width == 0:
        return x
    with host_of(x).scope():
        (turned,) = differentiable(_turned, rotary_backward, (x, positions, base, width, interleaved))
        return cast(turned, x.dtype)


Operands = tuple[Array, Array, float, int, bool]


def _turned(operands: Operands, way: float = 1.0) -> tuple[Array]:
    """The pairs turned by their angles, or back by them for way = -1."""
    x, positions, base, width, interleaved = operands
    xp = _compat.namespace(x)
    wide = widened(x)
    cos, sin = _cos_sin(widened_ints(positions), base, width, xp, wide)
    sin = way * sin
    if x.ndim > 2:
        cos, sin = cos[..., None, :, :], sin[..., None, :, :]
    return (turned_by(wide, cos, sin, interleaved=interleaved),)


def turned_by(x: Array, cos: Array, sin: Array, *, interleaved: bool) -> Array:
    """The first pairs of components, as many as there are cosines and sines (..., Q, width/2), turned by them."""
    xp, width = _compat.namespace(x), 2 * cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        pairs = xp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)
        turned = xp.reshape(pairs, turned.shape)
    else:
        a, b = turned[..., : width // 2], turned[..., width // 2 :]
        turned = xp.concat([a * cos - b * sin, b * cos + a * sin], axis=-1)
    return xp.concat([turned, rest], axis=-1)


def rotary_backward(operands: Operands, results: tuple[Array], cotangents: tuple[Array]) -> dict[str, Array]:
    """dx = g turned back: a rotation's transpose is its inverse."""
    _, *how = operands
    return {"0": _turned((cotangents[0], *how), way=-1.0)[0]}


def _cos_sin(positions: Array, base: float, width: int, xp: Namespace, like: Array) -> tuple[Array, Array]:
    """cos and sin of the angles, (..., Q, width/2)."""
    turns = [power(base, -2 * n, int(width)) / (2 * math.pi) for n in range(width // 2)]

    def row(values: list[float]) -> Array:
        return xp.asarray(values, dtype=like.dtype, **beside(like))

    if dtype_name(like) == "float64":
        part = xp.astype(positions, like.dtype)[..., None] * row(turns)
        angle = 2 * math.pi * (part - xp.round(part))
        return xp.cos(angle), xp.sin(angle)
    # A position in digits of 12 bits and a frequency in pieces of 12: each product is exact in float32, and so is
    # taking whole turns off it.
    fraction = row([0.0])
    for shift, digit in ((24, positions >> 24), (12, (positions >> 12) & 0xFFF), (0, positions & 0xFFF)):
        scaled = [math.fmod(t * 2.0**shift, 1.0) for t in turns]
        for piece in zip(*map(_pieces, scaled), strict=True):
            part = xp.astype(digit, like.dtype)[..., None] * row(list(piece))
            fraction = fraction + (part - xp.round(part))
    angle = 2 * math.pi * (fraction - xp.round(fraction))
    return xp.cos(angle), xp.sin(angle)


def _pieces(x: float) -> list[float]:
    """x as a sum of four numbers of 12 bits, to 2**-48 of it."""
    pieces = []
    for _ in range(4):
        unit = 2.0 ** (math.frexp(x)[1] - 12)
        pieces.append(math.floor(x / unit) * unit)
        x -= pieces[-1]
    return pieces
