"""Faults of calls that are computed in parts, a few heads at a time."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from attnspec import fast, request, rules, terms
from attnspec.parts import part_of

from .registry import breaks

dropout = import_module("attnspec.dropout")  # the package's attribute of this name is the function


@breaks("DROPOUT-3", "test_parts")
def every_part_draws_from_the_start(patch):
    right = request.Request.part
    patch.setattr(request.Request, "part", lambda self, block: replace(right(self, block), dropout=self.dropout))


@breaks("DROPOUT-3", "test_dropout")
def a_part_draws_as_if_it_were_the_whole(patch):
    patch.setattr(dropout, "_index", lambda xp, rows, at: rows)


@breaks("DROPOUT-3", "test_dropout")
def a_place_for_each_row_is_forgotten(patch):
    right = dropout._index
    patch.setattr(dropout, "_index", lambda xp, rows, at: rows if getattr(at, "ndim", 0) else right(xp, rows, at))


@breaks("PATH-1", "test_parts")
def every_part_has_the_bias_of_the_first_heads(patch):
    def part(self, block):
        first = tuple(slice(0, place.stop - place.start) for place in block)
        return terms.ArrayBias(part_of(self.array, first, 2))

    patch.setattr(terms.ArrayBias, "part", part)


@breaks("MASK-3", "test_rules")
def every_list_in_a_rule_is_along_the_batch(patch):
    def part(x, block, trailing, axes=None):
        return part_of(x, block, 0 if isinstance(x, tuple) else trailing, axes)

    patch.setattr(rules, "part_of", part)


@breaks("SHAPE-1", "test_parts")
def scores_overwritten_by_more_axes_than_they_have(patch):
    def less(x, y):
        x -= y
        return x

    patch.setattr(fast, "_less", less)
