"""Wrong shortcuts of the walk that overwrites its tiles (`attnspec/in_place.py`), and of NumPy's operations for it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from attnspec_numpy.host import HOST

from attnspec import host, in_place

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
    patch.setattr(in_place, "_of_visible", lambda flags, keys, values: (keys, values * flags, flags))


@breaks("MASK-6a", "test_laws")
def one_row_decides_for_its_tile(patch):
    """A row that has to be taken again takes its neighbours with it, and their last bits."""
    right = in_place._Sums.finished

    def finished(self):
        if self.total is not None and not (self.total <= 2.0**100).all():
            self.total[...] = math.nan
        return right(self)

    patch.setattr(in_place._Sums, "finished", finished)


@breaks("MASK-7")
def keys_that_are_not_finite_are_not_looked_for(patch):
    right = in_place._Sums._of_rows

    def of_rows(self, flag, *seen):
        return right(self, flag, *seen) & (flag.shape[-2] != 1)

    patch.setattr(in_place._Sums, "_of_rows", of_rows)


@breaks("MASK-5")
def sums_that_vanish_are_trusted(patch):
    patch.setattr(in_place, "LEAST", -1.0)
