"""Threefry-2x32 with twenty rounds: the same random bits on every framework, from integer arithmetic alone.

Words are 32 bits wide and kept as *signed* integers, Python's or int32 arrays, because torch has no unsigned
arithmetic and JAX no 64-bit integers by default; addition wraps, and a logical shift is an arithmetic one with the
copies of the sign masked off. Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ._compat import Array, Namespace, namespace
from .host import beside, host_of
from .overwriting import InPlace

Word = int | Array

GROUPS, ROTATIONS = 5, ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


LEAST = 2**12  # of fewer words the time goes into calls, of which `rounds` has as many


def draw(rng: tuple[Word, Word], counter: tuple[Word, Array], of_words: Callable[[Word, Word], Array]) -> Array:
    """`of_words(*threefry2x32(rng, counter))`, for a function of the two words of each entry and of no others.

    What it returns is new: the words may be written over when it is done.
    """
    high, low = counter
    ops = _in_place(rng, *counter)
    if ops is None or math.prod(low.shape) < LEAST:
        return of_words(*threefry2x32(rng, counter))
    xp, shape = namespace(low), low.shape
    high, low = high if isinstance(high, int) else xp.reshape(high, (-1,)), xp.reshape(low, (-1,))

    def counters_of(start: int, stop: int) -> tuple[Word, Array, int]:
        return high if isinstance(high, int) else high[start:stop], low[start:stop], 0

    return xp.reshape(_in_pieces(ops, rng, low, counters_of, of_words), shape)


def draw_all(
    rng: tuple[Word, Word], shape: Sequence[int], like: Array, of_words: Callable[..., Array], *arrays: Array
) -> Array:
    """`draw` for each entry of an array of that shape: its counter is its number in C order.

    What else `of_words` is made of, `arrays` of that shape, is given to it with the words that belong to it.
    """
    xp, place = namespace(like), beside(like)
    if not shape:
        return xp.reshape(draw_all(rng, (1,), like, of_words, *(xp.reshape(x, (1,)) for x in arrays)), ())
    zero = xp.zeros((), dtype=xp.int32, **place)
    ops = _in_place(rng, zero)
    if ops is None or math.prod(shape) < LEAST:
        indices = [
            xp.reshape(xp.arange(n, dtype=xp.int32, **place), (n, *(1,) * (len(shape) - axis - 1)))
            for axis, n in enumerate(shape)
        ]
        return of_words(*threefry2x32(rng, places(indices, shape, xp)), *arrays)
    every = xp.broadcast_to(zero, (math.prod(shape),))
    numbers = xp.arange(_size(ops, every), dtype=xp.int32, **place)
    return xp.reshape(
        _in_pieces(ops, rng, every, numbered(numbers), of_words, *(xp.reshape(x, (-1,)) for x in arrays)), tuple(shape)
    )


def numbered(numbers: Array) -> Callable[[int, int], tuple[int, Array, int]]:
    """The counters `start` to `stop`, of one high word: that, low words and what to add to them. `numbers`: 0, 1, .."""
    return lambda start, stop: (wrap(start >> 32), numbers[: stop - start], wrap(start & 0xFFFFFFFF))


def _in_place(rng: tuple[Word, Word], *counter: Word) -> InPlace | None:
    """What draws words by writing over others, if that is allowed."""
    arrays = [word for word in (*counter, *rng) if not isinstance(word, int)]
    host = host_of(arrays[0])
    return host.in_place if host.in_place is not None and host.in_place.rotate and host.concrete(*arrays) else None


def _in_pieces(
    ops: InPlace,
    rng: tuple[Word, Word],
    every: Array,
    counters_of: Callable[[int, int], tuple[Word, Array, int]],
    of_words: Callable[..., Array],
    *arrays: Array,
) -> Array:
    """A piece at a time, so that the hundred operations pass over what stays in a core's cache."""
    xp, words, size = namespace(every), (int(rng[0]), int(rng[1])), _size(ops, every)

    def drawn(room: Sequence[Array], start: int, stop: int) -> Array:
        counters = counters_of(start, stop)
        x0, x1 = _rounds_in_place(words, counters, [x[: stop - start] for x in room], ops.rotate)
        return of_words(x0, x1, *(x[start:stop] for x in arrays))

    def room() -> list[Array]:
        return [xp.empty((size,), dtype=xp.int32, **beside(every)) for _ in range(3)]

    first, *others = pieces(every.shape[0], size)
    made = drawn(room(), *first)
    if not others:
        return made
    out = xp.empty((every.shape[0],), dtype=made.dtype, **beside(every))
    out[: first[1]] = made

    def work(mine: Sequence[tuple[int, int]]) -> None:
        own = room()
        for start, stop in mine:
            out[start:stop] = drawn(own, start, stop)

    workers = ops.workers()
    ops.each(work, [others[n::workers] for n in range(min(workers, len(others)))])
    return out


def _size(ops: InPlace, every: Array) -> int:
    return min(ops.piece(every), int(every.shape[0]), 2**30)


def pieces(count: int, size: int) -> Iterator[tuple[int, int]]:
    """Where each piece of so many entries starts and stops; the counters in one have the same high word."""
    for first in range(0, count, 2**32):
        last = min(first + 2**32, count)
        for start in range(first, last, size):
            yield start, min(start + size, last)


def _rounds_in_place(
    rng: tuple[int, int], counter: tuple[Word, Array, int], room: Sequence[Array], rotate: Any
) -> tuple[Array, Array]:
    """`rounds` for a key of numbers, in two arrays and a spare one; the counter's low words want something added."""
    (x0, x1, spare), (high, low, added), ks = room, counter, schedule(rng)
    x0[...] = wrap(high + ks[0])
    x1[...] = low
    x1 += wrap(added + ks[1])
    for n in range(GROUPS):
        for r in ROTATIONS[n % 2]:
            x0 += x1
            rotate(x1, r, spare)
            x1 ^= x0
        x0 += ks[(n + 1) % 3]
        x1 += wrap(ks[(n + 2) % 3] + (n + 1))
    return x0, x1


def threefry2x32(rng: tuple[Word, Word], counter: tuple[Word, Word]) -> tuple[Word, Word]:
    """Two random words for a key of two words and a counter of two words."""
    arrays = [word for word in (*counter, *rng) if not isinstance(word, int)]
    native = host_of(arrays[0]).threefry if arrays else None
    return rounds(rng, counter) if native is None else native(rng, counter)


def rounds(rng: tuple[Word, Word], counter: tuple[Word, Word]) -> tuple[Word, Word]:
    """The generator itself."""
    ks = schedule(rng)
    words = wrap(counter[0] + ks[0]), wrap(counter[1] + ks[1])
    for n in range(GROUPS):
        words = group(words, (ks[(n + 1) % 3], wrap(ks[(n + 2) % 3] + (n + 1))), ROTATIONS[n % 2])
    return words


def schedule(rng: tuple[Word, Word]) -> tuple[Word, Word, Word]:
    """The key's two words and their parity."""
    return (*rng, rng[0] ^ rng[1] ^ _PARITY)


def group(words: tuple[Word, Word], added: tuple[Word, Word], rotations: Sequence[Any]) -> tuple[Word, Word]:
    """Four rounds, and the words of the key that are added after them."""
    x0, x1 = words
    for r in rotations:
        x0 = wrap(x0 + x1)
        x1 = _rotate_left(x1, r) ^ x0
    return wrap(x0 + added[0]), wrap(x1 + added[1])


def wrap(x: Word) -> Word:
    """A Python integer cut to a signed 32-bit word; int32 arrays wrap by themselves."""
    return ((x + 2**31) & 0xFFFFFFFF) - 2**31 if isinstance(x, int) else x


def shift_right(x: Word, n: Any) -> Word:
    """Logical shift of a signed word by 1 to 31 places."""
    return (x >> n) & ((1 << (32 - n)) - 1)


def _rotate_left(x: Word, r: Any) -> Word:
    return wrap(x << r) | shift_right(x, 32 - r)


def places(indices: Sequence[Array], shape: Sequence[int], xp: Namespace) -> tuple[Word, Array]:
    """The numbers, in C order, of the entries with these indices in an array of that shape, as words (high, low).

    Each index is an int32 array with values from 0 up, and all of them broadcast to each other.
    """
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    if math.prod(shape) > 2**32:
        return counters(indices, strides, xp)
    low = indices[0] * wrap(strides[0])
    for index, stride in zip(indices[1:], strides[1:], strict=True):
        low = low + index * wrap(stride)
    return 0, low


def counters(indices: Sequence[Array], strides: Sequence[int], xp: Namespace) -> tuple[Array, Array]:
    """The 64-bit numbers sum(index * stride) as words (high, low), broadcast over all the indices.

    Each index is an int32 array with values >= 0, each stride a Python integer: positions in C order of an array
    that may have more than 2**32 entries.
    """
    high, low = _times(indices[0], strides[0], xp)
    for index, stride in zip(indices[1:], strides[1:], strict=True):
        h, l = _times(index, stride, xp)
        low = low + l
        # A sum of unsigned words has wrapped iff it is below either of them; flipping the sign bit makes the
        # signed comparison an unsigned one.
        carry = (low ^ -(2**31)) < (l ^ -(2**31))
        high = high + h + xp.astype(carry, xp.int32)
    return high, low


def _times(index: Array, stride: int, xp: Namespace) -> tuple[Array, Array]:
    """index * stride in 64 bits, digit by digit in base 2**16 (a product of two digits fits a 32-bit word)."""
    digits = [xp.zeros_like(index) for _ in range(4)]
    for i, a in enumerate((index & 0xFFFF, shift_right(index, 16))):
        for j in range(4 - i):
            product = a * wrap((stride >> (16 * j)) & 0xFFFF)
            digits[i + j] = digits[i + j] + (product & 0xFFFF)
            if i + j < 3:
                digits[i + j + 1] = digits[i + j + 1] + shift_right(product, 16)
    for n in range(3):
        digits[n + 1] = digits[n + 1] + shift_right(digits[n], 16)
    low, high = (digits[n] & 0xFFFF | digits[n + 1] << 16 for n in (0, 2))
    return high, low
