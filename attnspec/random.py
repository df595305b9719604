"""Random numbers that are the same on every framework, bit for bit, and the same as `jax.random`'s.

A `Key` is two 32-bit words; nothing is hidden and nothing advances by itself. The generator is Threefry-2x32-20 in
JAX's (partitionable) layout: entry n of a draw, in C order, comes from the 64-bit counter n (DROPOUT-3).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from . import _compat
from ._compat import Array, Namespace, dtype_name
from .errors import DTypeError, OptionError
from .host import beside, host_of
from .prng import Word, draw_all, shift_right, threefry2x32
from .prng import wrap as _word
from .shapes import Shape, is_number, number
from .special import erfinv
from .struct import LEAF, Struct

__all__ = ["Key", "bernoulli", "bits", "fold_in", "key", "normal", "split", "uniform", "wrap"]

Operands = tuple[tuple[Word, Word], Array, Array | None]

_MANTISSA = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}
_WIDTH = {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 8}


@dataclass(frozen=True)
class Key(Struct):
    """A random key: two 32-bit words as signed integers, Python's or int32 arrays (traced, or mapped by vmap)."""

    high: Word = field(metadata=LEAF)
    low: Word = field(metadata=LEAF)


def key(seed: int) -> Key:
    """The key of a 64-bit seed; equals `jax.random.key(seed)` with `jax_enable_x64`, and without it for
    seeds from 0 to 2**32 - 1.

    Examples
    --------
    >>> import attnspec
    >>> attnspec.random.key(7)
    Key(high=0, low=7)
    """
    if type(seed) is not int or not -(2**63) <= seed < 2**64:
        msg = f"seed={seed!r}: a Python int of 64 bits is needed; for the words of another library's key use wrap()."
        raise OptionError(msg)
    return Key(_word(seed >> 32), _word(seed & 0xFFFFFFFF))


def wrap(words: Array | Sequence[int]) -> Key:
    """A key from two words, such as `jax.random.key_data(k)`: unsigned or signed, an array (2,) or two ints.

    Examples
    --------
    >>> import attnspec
    >>> attnspec.random.wrap((0, 0xFFFFFFFF))
    Key(high=0, low=-1)
    """
    if _compat.is_array(words):
        if "int" not in dtype_name(words) or words.shape[-1:] != (2,):
            msg = f"words are {dtype_name(words)} of shape {tuple(words.shape)}; an integer array (2,) is needed."
            raise DTypeError(msg)
        xp = _compat.namespace(words)
        words = xp.astype(words, xp.int32)
        return Key(words[..., 0], words[..., 1])
    high, low = words
    return Key(_word(int(high)), _word(int(low)))


def split(rng: Key, num: int = 2) -> tuple[Key, ...]:
    """`num` independent keys; equal to the rows of `jax.random.split`.

    Examples
    --------
    >>> import attnspec
    >>> weights_rng, dropout_rng = attnspec.random.split(attnspec.random.key(0))
    """
    with _scope(*words_of(rng)):
        return tuple(Key(*threefry2x32(words_of(rng), (0, n))) for n in range(num))


def fold_in(rng: Key, data: int | Array) -> Key:
    """A key for the pair (rng, data): a step number, a layer number. Equals `jax.random.fold_in`.

    Examples
    --------
    >>> import attnspec
    >>> attnspec.random.fold_in(attnspec.random.key(0), 1) == attnspec.random.fold_in(attnspec.random.key(0), 2)
    False
    """
    if not isinstance(data, int) and "int" not in dtype_name(data):
        msg = f"data is {dtype_name(data)}; an int or an integer array is needed."
        raise DTypeError(msg)
    with _scope(data, *words_of(rng)):
        return Key(*threefry2x32(words_of(rng), (0, _word(data) if isinstance(data, int) else _int32(data))))


def bits(rng: Key, shape: Sequence[int], *, width: int = 32, like: Any = None) -> Array:
    """Uniform random bits of 8, 16, 32 or 64, as *signed* integers of that width (torch computes with no others).

    `like` is an array, on whose device the result is, or a namespace; it may be left out where `rng` holds arrays.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> attnspec.random.bits(attnspec.random.key(0), (2,), like=np).tolist()
    [-224768089, -91998574]
    """
    if width not in (8, 16, 32, 64):
        msg = f"width={width!r}: 8, 16, 32 or 64 bits are needed."
        raise OptionError(msg)
    return _drawn(_bits, rng, like, shape, width)


def _bits(operands: Operands, shape: Shape, width: int) -> Array:
    def of_words(xp: Namespace, high: Array, low: Array) -> Array:
        if width == 64:
            return _as(xp, high, "int64") << 32 | _as(xp, low, "int64") & 0xFFFFFFFF
        word = high ^ low
        if width == 32:
            return word
        sign = 1 << (width - 1)
        return _as(xp, ((word & (2 * sign - 1)) ^ sign) - sign, f"int{width}")

    return _draw(operands, shape, of_words)


def uniform(rng: Key, shape: Sequence[int], *, dtype: str = "float32", like: Any = None) -> Array:
    """Uniform in [0, 1): an integer of the mantissa's width times 2**-width. Equals `jax.random.uniform`.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> [round(u, 3) for u in attnspec.random.uniform(attnspec.random.key(0), (2,), like=np).tolist()]
    [0.948, 0.979]
    """
    if dtype not in _MANTISSA:
        msg = f"dtype={dtype!r}: one of {', '.join(_MANTISSA)} is needed."
        raise OptionError(msg)
    return _drawn(_uniform, rng, like, shape, dtype)


def _uniform(operands: Operands, shape: Shape, dtype: str) -> Array:
    m, w = _MANTISSA[dtype], _WIDTH[dtype]

    def of_words(xp: Namespace, high: Array, low: Array) -> Array:
        if dtype == "float64":
            upper = _as(xp, high, dtype)
            upper = xp.where(upper < 0, upper + 2.0**32, upper)
            return (upper * 2.0 ** (m - 32) + _as(xp, shift_right(low, 64 - m), dtype)) * 2.0**-m
        drawn = shift_right((high ^ low) << (32 - w) if w < 32 else high ^ low, 32 - m)
        return _as(xp, _as(xp, drawn, "float32") * 2.0**-m, dtype)

    return _draw(operands, shape, of_words)


def bernoulli(rng: Key, p: float | Array, shape: Sequence[int], *, like: Any = None) -> Array:
    """True with probability p: `uniform(float32) < float32(p)`, whatever the dtype of p.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> attnspec.random.bernoulli(attnspec.random.key(0), 0.5, (4,), like=np).tolist()
    [False, False, True, True]
    """
    p = number("p", p, low=0.0, high=1.0)
    if is_number(p):
        return _drawn(_bernoulli, rng, like, shape, p)
    return _drawn(_bernoulli, rng, p if like is None else like, shape, None, extra=p)


def _bernoulli(operands: Operands, shape: Shape, p: float | None) -> Array:
    return _draw(operands, shape, lambda xp, *words: below(xp, words, operands[2] if p is None else p))


def below(xp: Namespace, words: tuple[Array, Array], p: float | Array) -> Array:
    """Whether the float32 uniform of each pair of words is below float32(p); a number is compared with integers."""
    word = words[0] ^ words[1]
    if is_number(p) and (p < 2.0**-126 or not host_of(word).traced(word)):
        # Each uniform is that of 2**9 words, in the order of words without a sign.
        turned, bound = word ^ -(2**31), _uniforms_below(p) * 2**9 - 2**31
        return turned < bound if bound < 2**31 else turned <= bound - 1
    if is_number(p):
        p = xp.zeros((), dtype=xp.float32, **beside(word)) + p  # it may be a symbol, which only an array rounds
    return xp.astype(shift_right(word, 9), xp.float32) * 2.0**-23 < xp.astype(p, xp.float32)


def _uniforms_below(p: float) -> int:
    """How many of the 2**23 float32 uniforms are below float32(p)."""
    if p < 2.0**-126:  # subnormal in float32, which some frameworks take for 0
        return 1 if p > 2.0**-150 else 0
    rounded: float = struct.unpack("f", struct.pack("f", p))[0]
    return math.ceil(rounded * 2**23)


def normal(rng: Key, shape: Sequence[int], *, dtype: str = "float32", like: Any = None) -> Array:
    """Standard normal: sqrt(2) erfinv(u), u uniform in (-1, 1). `jax.random.normal`'s up to erfinv's rounding.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> attnspec.random.normal(attnspec.random.key(0), (1000,), like=np).std().round(1)
    np.float32(1.0)
    """
    if dtype not in ("float32", "float64"):
        msg = f"dtype={dtype!r}: float32 or float64 is needed; cast the result."
        raise OptionError(msg)
    return _drawn(_normal, rng, like, shape, dtype)


def _normal(operands: Operands, shape: Shape, dtype: str) -> Array:
    u = _uniform(operands, shape, dtype)
    xp = _compat.namespace(u)
    lowest = -1.0 + 2.0 ** -(_MANTISSA[dtype] + 1)
    u = u * 2.0 + lowest
    return math.sqrt(2.0) * erfinv(xp.where(u < lowest, lowest, u))


def _drawn(
    body: Callable[..., Array], rng: Key, like: Any, shape: Sequence[int], static: Any, *, extra: Array | None = None
) -> Array:
    """`body((words, an array on the device of the result, extra), shape, static)`."""
    place = _target(rng, like)
    host = host_of(place)
    with host.scope():
        return host.run(body, (words_of(rng), place, extra), tuple(shape), static)


def _draw(operands: Operands, shape: Shape, of_words: Callable[[Namespace, Array, Array], Array]) -> Array:
    """What `of_words(xp, high, low)` makes of the two words of each entry."""
    words, place, _ = operands
    xp = _compat.namespace(place)
    return draw_all(words, shape, place, partial(of_words, xp))


def words_of(rng: Key) -> tuple[Word, Word]:
    """The words of one key."""
    if not isinstance(rng, Key):
        msg = (
            f"rng is of type {type(rng).__name__}; a Key is needed: attnspec.random.key(seed), or "
            "attnspec.random.wrap(words) of another library's."
        )
        raise DTypeError(msg)
    low = rng.low
    if _compat.is_array(low) and low.ndim:
        msg = f"rng holds keys of shape {tuple(low.shape)}; one is needed. Map over them with vmap or in a loop."
        raise DTypeError(msg)
    return rng.high, low


def _target(rng: Key, like: Any) -> Array:
    """An array on the device where the result belongs."""
    if _compat.is_array(like):
        return like
    if hasattr(like, "asarray"):
        return like.asarray(0)
    if like is None and _compat.is_array(words_of(rng)[1]):
        return rng.low
    msg = f"like={like!r}: an array or a namespace such as `backend.xp` is needed, to know where to draw."
    raise DTypeError(msg)


def _scope(*words: Word) -> Any:
    arrays = [word for word in words if not isinstance(word, int)]
    return host_of(arrays[0]).scope() if arrays else nullcontext()


def _int32(x: Array) -> Array:
    return _as(_compat.namespace(x), x, "int32")


def _as(xp: Namespace, x: Array, dtype: str) -> Array:
    wanted = host_of(x).dtype(xp, dtype)
    made = x if wanted is None else xp.astype(x, wanted)
    if dtype_name(made) != dtype:
        msg = f"{xp.__name__} makes no {dtype} here. (JAX makes 64-bit numbers only with jax_enable_x64.)"
        raise DTypeError(msg)
    return made
