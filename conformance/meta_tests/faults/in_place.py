"""Wrong shortcuts of the walk that overwrites its tiles (`attnspec/in_place*.py`), and of NumPy's operations for it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from attnspec_numpy.host import HOST

from attnspec import host, in_place, in_place_sums, positional
from attnspec.in_place_tiles import Tile

from .registry import breaks


def _operations(patch, **wrong):
    patch.setitem(host._hosts, "numpy", replace(HOST, in_place=replace(HOST.in_place, **wrong)))


@breaks("MASK-6a")
def weights_hidden_by_a_product(patch):
    """Infinity times 0."""
    _operations(patch, veil=lambda visible, like: visible, hide=lambda x, visible: np.multiply(x, visible, out=x))


@breaks("MASK-6a", "test_laws")
def keys_that_are_hidden_keep_their_scores(patch):
    """Their values count as 0, but exp of a large score is not finite."""
    patch.setattr(in_place_sums, "_of_visible", lambda xp, flags, keys, values, **_: (keys, values * flags))


@breaks("MASK-6a", "test_laws")
def one_row_decides_for_its_tile(patch):
    """A row that has to be taken again takes its neighbours with it, and their last bits."""
    right = in_place_sums.Sums.finished

    def finished(self):
        if self.total is not None and not (self.total <= 2.0**100).all():
            self.total[...] = math.nan
        return right(self)

    patch.setattr(in_place_sums.Sums, "finished", finished)


@breaks("MASK-7")
def keys_that_are_not_finite_are_not_looked_for(patch):
    right = in_place_sums.Sums._of_rows

    def of_rows(self, flag, *seen):
        return right(self, flag, *seen) & (flag.shape[-2] != 1)

    patch.setattr(in_place_sums.Sums, "_of_rows", of_rows)


@breaks("MASK-5")
def sums_that_vanish_are_trusted(patch):
    patch.setattr(in_place_sums, "LEAST", -1.0)


@breaks("MASK-6a")
def exponentials_that_are_lost_are_looked_for_at_hidden_keys(patch):
    of = HOST.in_place
    exp, exp2 = (f and (lambda x, least, visible=None, f=f: f(x, least)) for f in (of.exp, of.exp2))
    _operations(patch, exp=exp, exp2=exp2)


@breaks("MASK-7", "test_long_calls")
def what_vanishes_is_not_looked_at(patch):
    """Neither are its values, which may be infinite."""
    right = in_place_sums.Sums._vanishes
    patch.setattr(
        in_place_sums.Sums,
        "_vanishes",
        lambda self, tile, least, values: right(self, tile, least, np.ones_like(values)),
    )


@breaks("SOFTMAX-1", "test_long_calls")
def what_vanishes_is_forgotten(patch):
    """Beside a total below 1 it counts."""
    patch.setattr(in_place_sums.Sums, "_marked", lambda self, so_far, more, rows: so_far)


@breaks("SCORE-5", "test_long_calls")
def a_bias_by_distance_leaves_nothing_of_keys_ahead(patch):
    right = positional.Alibi.bounds
    patch.setattr(
        positional.Alibi, "bounds", lambda self, q, k: right(self, q, k) if k.start < q.stop else (-2e6, -1e6)
    )


@breaks("SCORE-5", "test_long_calls")
def half_a_tile_speaks_for_the_whole(patch):
    """The longest key of the tile that begins at the same key."""

    class ByStart(dict):
        def __contains__(self, tile):
            return super().__contains__(tile[0])

        def __getitem__(self, tile):
            return super().__getitem__(tile[0])

        def __setitem__(self, tile, length):
            super().__setitem__(tile[0], length)

    right = in_place_sums.Part.of.__func__

    def of(cls, whole, unit, block):
        return right(cls, whole, unit, block)._replace(longest=ByStart())

    patch.setattr(in_place_sums.Part, "of", classmethod(of))


@breaks("MASK-4")
def halves_are_those_that_are_hidden(patch):
    """Of the tile at the edge of a rule."""

    def tiles(request, q, columns):
        for of_q, k, status in right(request, q, columns):
            yield (request.q_span(q.start, of_q.size) if of_q.size < q.size else of_q), k, status

    right = in_place.tiles_of
    patch.setattr(in_place, "tiles_of", tiles)


def _lines(patch, wrong):
    """Every line of ALiBi is what `wrong` makes of it."""
    right = positional.Alibi.lines

    def lines(self, q, k, **place):
        of = right(self, q, k, **place)
        return of and (lambda part: wrong(of(part)))

    patch.setattr(positional.Alibi, "lines", lines)


@breaks("SCORE-5", "test_long_calls")
def lines_begin_at_the_farthest_key(patch):
    """What is added to all scores of a row is that of the nearest."""
    _lines(patch, lambda line: line._replace(of_queries=line.of_queries + line.slopes * line.of_keys[0]))


@breaks("SCORE-5", "test_long_calls")
def lines_fall_the_same_in_every_head(patch):
    _lines(patch, lambda line: line._replace(slopes=0.0 * line.slopes + 0.25))


@breaks("SCORE-5", "test_long_calls")
def rows_are_lowered_by_half(patch):
    right = in_place_sums.Sums._lowered
    patch.setattr(in_place_sums.Sums, "_lowered", lambda self, half, *sums: right(self, 0.5 * half, *sums))


@breaks("SOFTMAX-1", "test_long_calls")
def rows_that_are_lowered_to_nothing_are_forgotten(patch):
    right = in_place_sums.Sums._lowered

    def lowered(*args):
        right(*args)

    patch.setattr(in_place_sums.Sums, "_lowered", lowered)


@breaks("MASK-6a", "test_long_calls")
def rows_that_see_nothing_of_a_tile_lose_something_in_it(patch):
    """Only where the tile is computed, which keys decide that they do not see."""
    right = in_place_sums.Sums._lowered

    def lowered(self, half, total, *sums):
        gone = right(self, half, total, *sums)
        if gone is not None and gone.shape[-2] == self.q.size:
            self.lost = self._marked(self.lost, gone, slice(None))
        return gone

    patch.setattr(in_place_sums.Sums, "_lowered", lowered)


@breaks("MASK-6a", "test_hidden_keys")
def keys_that_a_scale_makes_infinite_are_hidden_by_a_product(patch):
    right = in_place_sums._of_visible

    def of_visible(xp, flags, keys, values, *, simple):
        return right(xp, flags, keys, values, simple=True)

    patch.setattr(in_place_sums, "_of_visible", of_visible)


@breaks("SCORE-5", "test_long_calls")
def a_quarter_of_a_deep_tile_is_left_out(patch):
    right = Tile.quarters
    patch.setattr(Tile, "quarters", lambda self: list(right(self))[:-1])
