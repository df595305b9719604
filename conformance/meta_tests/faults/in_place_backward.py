"""Wrong shortcuts of the walk back that overwrites its tiles (`attnspec/in_place_backward.py`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnspec import backward, fast, in_place_backward

from .registry import breaks

TESTS = "test_gradient_tiles"


@breaks("GRADIENT-5", TESTS)
def rows_that_are_not_numbers_are_walked_back_like_others(patch):
    patch.setattr(in_place_backward, "_plain", lambda xp, out, lse, reference, total: reference > -np.inf)


@breaks("GRADIENT-5", TESTS)
def rows_are_known_by_their_sums_alone(patch):
    """A row that is NaN has sums of what was cleaned for it, which may be those of another."""
    right = in_place_backward._plain

    def plain(xp, out, lse, *sums):
        return right(xp, xp.zeros_like(out), xp.zeros_like(lse), *sums)

    patch.setattr(in_place_backward, "_plain", plain)


@breaks("GRADIENT-1", TESTS)
def sharp_rows_are_left_to_nobody(patch):
    patch.setattr(backward, "_of_others", lambda request, results, cotangents, done: ())


@breaks("MASK-6c", TESTS)
def one_row_decides_for_its_part_on_the_way_back(patch):
    right = in_place_backward._plain
    patch.setattr(in_place_backward, "_plain", lambda xp, *sums: right(xp, *sums) & right(xp, *sums).all())


@breaks("GRADIENT-1", TESTS)
def what_is_left_of_a_reference_in_base_two_is_forgotten(patch):
    patch.setattr(in_place_backward, "_LN2", (0.75, 0.0))


@breaks("MASK-6c", TESTS)
def weights_of_hidden_keys_reach_their_values(patch):
    patch.setattr(in_place_backward, "_without_hidden", lambda xp, flags, of_values: of_values)


@breaks("MASK-6c", TESTS)
def gradients_of_hidden_scores_multiplied_by_zero(patch):
    """Infinity times 0."""

    def multiplied(request):
        def hide(x, veil):
            return np.multiply(x, veil != 0, out=x)

        return replace(right(request), hide=hide)

    right = in_place_backward.operations
    patch.setattr(in_place_backward, "operations", multiplied)


@breaks("MASK-6c", TESTS)
def hidden_keys_that_are_not_finite_are_not_cleaned_on_the_way_back(patch):
    class Uncleaned(fast.Fast):
        def prepare(self, request):
            return super().prepare(request)._replace(bad_q=None, bad_k=None, bad_v=None)

    patch.setattr(in_place_backward, "FAST", Uncleaned())


@breaks("GRADIENT-1", TESTS)
def the_mask_of_the_first_tile_serves_all_others_of_its_size(patch):
    made = {}

    def of(self, part, q, k, status):
        first = made.setdefault((id(self), q.size, k.size), (q, k))
        tile = right(self, part, *first, status)
        return Moved(tile, q, k)

    class Moved:
        def __init__(self, tile, q, k):
            self.q, self.k = q, k
            self.empty, self.visible, self.veil, self.of_keys = tile.empty, tile.visible, tile.veil, tile.of_keys

    right = in_place_backward._Tiles.of
    patch.setattr(in_place_backward._Tiles, "of", of)


@breaks("GRADIENT-1", TESTS)
def the_last_tile_of_queries_alone_gives_to_keys_and_values(patch):
    right = in_place_backward._add

    def add(total, rows, more):
        if rows.start == 0:
            total[..., rows, :] = 0.0
        right(total, rows, more)

    patch.setattr(in_place_backward, "_add", add)


@breaks("GRADIENT-1", TESTS)
def keys_have_their_gradients_in_the_unit_of_the_exponentials(patch):
    right = in_place_backward.Unit

    class Same:
        @staticmethod
        def of(request):
            return right.of(request)._replace(size=1.0)

    patch.setattr(in_place_backward, "Unit", Same)
