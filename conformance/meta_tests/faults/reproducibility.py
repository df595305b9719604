"""Reproducible mode that depends on what it must not, or is less accurate than it says: REPRO."""

from __future__ import annotations

from dataclasses import replace

from attnspec import derivative, random, reproducible, tape
from attnspec._compat import namespace, turned
from attnspec.reproducible import cache, chunked, elementary, grid, partials, slices, steady, sums, tiles
from attnspec.reproducible import namespace as operations

from .registry import breaks


@breaks("REPRO-1", "test_reproducible_cuts")
def tiles_as_large_as_memory_suggests(patch):
    """A sum over 512 keys is not one over two times 256."""
    patch.setattr(steady.Steady, "tile", lambda self, rows, columns: (rows, columns))


@breaks("REPRO-1", "test_reproducible_cuts")
def sums_that_depend_on_what_came_before(patch):
    """The online softmax of the default mode: each tile relative to the largest score so far."""
    patch.delattr(steady.Steady, "partial")


@breaks("REPRO-1", "test_identity")
def masked_values_choose_the_grid(patch):
    def levelled(xp, p, powers, *, eager):
        power = xp.max(powers, axis=-2, keepdims=True)
        return xp.round(p * turned(powers) / power * (1.0 / tiles.POINT)), power + xp.zeros_like(p[..., :1])

    patch.setattr(tiles, "_levelled", levelled)


@breaks("REPRO-1", "test_reproducible_cuts")
def cached_slices_of_rounded_rows(patch):
    right = cache.v_slices
    patch.setattr(cache, "v_slices", lambda v: right(replace(v, kind="float16").stood()))


@breaks("REPRO-2", "test_elementary")
def powers_of_two_by_a_hint_alone(patch):
    """The exponent of a number by the framework's logarithm, which rounds up to the next one."""

    def exponent(m):
        xp = namespace(m)
        return xp.floor(xp.log2(xp.where(m > 0, m, 1.0)) + 1e-9)

    patch.setattr(grid, "exponent", exponent)
    for module in (elementary, sums, tiles):
        patch.setattr(module, "exponent", exponent)


@breaks("REPRO-2", "test_reproducible")
def queries_of_twenty_bits(patch):
    patch.setattr(slices, "OF_Q", 20)


@breaks("REPRO-2", "test_reproducible")
def values_of_one_slice(patch):
    right = slices.v_slices

    def one(v, *, eager):
        both, power, bad = right(v, eager=eager)
        xp, E = namespace(both), both.shape[-1] // 2
        return xp.concat([both[..., :E], xp.zeros_like(both[..., :E])], axis=-1), power, bad

    patch.setattr(slices, "v_slices", one)


@breaks("REPRO-2", "test_reproducible")
def a_name_forgotten(patch):
    patch.delattr(reproducible, "rms_norm")


@breaks("REPRO-2", "test_reproducible")
def an_option_forgotten(patch):
    patch.setattr(reproducible, "layer_norm", lambda x, gamma=None, beta=None: x)


@breaks("REPRO-1", "test_reproducible_cuts")
def slices_in_either_role(patch):
    patch.setattr(chunked, "_held", lambda x, role: getattr(x, "slices", None))


@breaks("REPRO-1", "test_reproducible_cuts")
def parts_cut_anywhere(patch):
    patch.setattr(partials, "CHUNK", 1)


@breaks("REPRO-1", "test_reproducible_cuts")
def zeros_that_count_in_a_norm(patch):
    """Each number of a row, a zero too, rounded up by one."""

    def norms(x):
        xp = namespace(x)
        largest = xp.max(xp.abs(x), axis=-1, keepdims=True)
        e = xp.where(largest == 0, 0.0, grid.exponent(largest))
        y = xp.round(xp.abs(x) * grid.power_of_two(6.0 - e)) + 1.0
        n = xp.vecdot(y, y)[..., None]
        e = e - 6.0 + xp.floor((grid.exponent(n * (1.0 + 2.0**-6)) + 2.0) * 0.5)
        return grid.power_of_two(e), grid.power_of_two(-e)

    patch.setattr(slices, "_norms", norms)


@breaks("REPRO-1", "test_reproducible")
def constants_left_as_they_are(patch):
    patch.setattr(derivative, "alike", lambda *arrays: arrays)
    patch.setattr(tape, "alike", lambda *arrays: arrays)


@breaks("REPRO-1", "test_reproducible")
def integers_divided_by_the_framework(patch):
    patch.setattr(operations, "_beside", lambda x, a: x)


@breaks("REPRO-1", "test_reproducible")
def a_draw_of_another_distribution(patch):
    patch.setattr(random, "erfinv", lambda u: 0.9 * u)
