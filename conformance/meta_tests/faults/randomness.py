"""Wrong draws and wrong dropout of arrays: DROPOUT."""

from __future__ import annotations

from importlib import import_module

import attnspec
from attnspec import prng, random, request
from attnspec._compat import namespace

from .registry import breaks

dropout = import_module("attnspec.dropout")  # the package's attribute of this name is the function


@breaks("DROPOUT-1", "test_dropout")
def any_rate_accepted(patch):
    patch.setattr(request.Dropout, "check", lambda self: None)


@breaks("DROPOUT-1", "test_dropout")
def rate_one_keeps_what_was_not_finite(patch):
    right = dropout.dropout

    def multiplied(x, rate, rng):
        return x * 0.0 if rate == 1 else right(x, rate, rng)

    patch.setattr(attnspec, "dropout", multiplied)


@breaks("DROPOUT-2", "test_dropout")
def unscaled(patch):
    patch.setattr(dropout, "kept_scale", lambda option, like: 1.0)


@breaks("DROPOUT-2", "test_dropout")
def scaled_by_the_rate(patch):
    patch.setattr(dropout, "kept_scale", lambda option, like: 1.0 / option.rate)


@breaks("DROPOUT-2", "test_dropout")
def dropped_by_a_product_with_zero(patch):
    def multiplied(x, rate, rng):
        xp = namespace(x)
        keep = random.bernoulli(rng, 1 - rate, x.shape, like=x)
        return x * xp.astype(keep, x.dtype) / (1 - rate)

    patch.setattr(attnspec, "dropout", multiplied)


@breaks("DROPOUT-2", "test_dropout")
def scale_rounded_to_half(patch):
    """The factor in the dtype of the array."""
    right = dropout.dropout

    def halved(x, rate, rng):
        if str(x.dtype).endswith(("float32", "float64")) or not 0 < rate < 1:
            return right(x, rate, rng)
        xp = namespace(x)
        factor = xp.asarray(1 / (1 - rate), dtype=x.dtype)
        kept = xp.astype(xp.astype(x, xp.float32) * xp.astype(factor, xp.float32), x.dtype)
        return xp.where(random.bernoulli(rng, 1 - rate, x.shape, like=x), kept, xp.zeros_like(x))

    patch.setattr(attnspec, "dropout", halved)


@breaks("DROPOUT-3", "test_random")
def one_wrong_rotation(patch):
    patch.setattr(prng, "ROTATIONS", ((13, 15, 26, 6), (17, 29, 16, 23)))


@breaks("DROPOUT-3", "test_random")
def twelve_rounds(patch):
    """The reduced generator, twelve rounds in place of twenty."""

    def rounds(rng, counter):
        k0, k1 = rng
        ks = (k0, k1, k0 ^ k1 ^ prng._PARITY)
        x0, x1 = prng.wrap(counter[0] + ks[0]), prng.wrap(counter[1] + ks[1])
        for group in range(3):
            for r in prng.ROTATIONS[group % 2]:
                x0 = prng.wrap(x0 + x1)
                x1 = prng._rotate_left(x1, r) ^ x0
            x0 = prng.wrap(x0 + ks[(group + 1) % 3])
            x1 = prng.wrap(x1 + prng.wrap(ks[(group + 2) % 3] + (group + 1)))
        return x0, x1

    patch.setattr(prng, "rounds", rounds)


@breaks("DROPOUT-3", "test_random")
def counter_of_32_bits(patch):
    right = prng._times

    def times(index, stride, xp):
        high, low = right(index, stride, xp)
        return xp.zeros_like(high), low

    patch.setattr(prng, "_times", times)


@breaks("DROPOUT-3", "test_random")
def entries_counted_by_columns(patch):
    right = random._draw

    def draw(operands, shape, of_words):
        drawn = right(operands, shape[::-1], of_words)
        return namespace(drawn).permute_dims(drawn, tuple(range(len(shape)))[::-1])

    patch.setattr(random, "_draw", draw)


@breaks("DROPOUT-3", "test_random")
def keys_split_from_one(patch):
    def split(rng, num=2):
        return tuple(random.Key(*prng.threefry2x32((rng.high, rng.low), (0, n + 1))) for n in range(num))

    patch.setattr(random, "split", split)


@breaks("DROPOUT-3", "test_random")
def data_folded_into_the_high_word(patch):
    def fold_in(rng, data):
        return random.Key(*prng.threefry2x32((rng.high, rng.low), (prng.wrap(data), 0)))

    patch.setattr(random, "fold_in", fold_in)


@breaks("DROPOUT-3", "test_random")
def kept_at_the_probability_itself(patch):
    right = random.below
    patch.setattr(random, "below", lambda xp, words, p: right(xp, words, p + 2.0**-23 if 0 < p < 1 else p))


@breaks("DROPOUT-3", "test_random")
def seed_cut_to_32_bits(patch):
    right = random.key
    patch.setattr(random, "key", lambda seed: right(seed & 0xFFFFFFFF))


@breaks("DROPOUT-3", "test_dropout")
def the_seed_ignored(patch):
    right = dropout.words_of
    patch.setattr(dropout, "words_of", lambda rng: right(random.key(0)))


@breaks("DROPOUT-3", "test_random")
def every_piece_of_an_array_begins_anew(patch):
    right = prng.numbered

    def numbered(numbers):
        of = right(numbers)
        return lambda start, stop: (*of(start, stop)[:2], 0)

    patch.setattr(prng, "numbered", numbered)


@breaks("DROPOUT-3", "test_random")
def one_uniform_more_is_below(patch):
    right = random._uniforms_below
    patch.setattr(random, "_uniforms_below", lambda p: min(2**23, right(p) + 1))


@breaks("DROPOUT-2", "test_dropout")
def an_array_without_axes_is_left_as_it_is(patch):
    right = dropout.dropped
    patch.setattr(dropout, "dropped", lambda x, option: right(x, option) if x.ndim else x)
