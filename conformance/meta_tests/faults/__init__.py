"""Faults outside attention proper, each put in the place of a part of attnspec while the suite's tests run.

`python -m faults NAME...` installs one fault after another in one process, runs the tests of its clause, and
prints for each the clauses that failed and by which tests, as one line of JSON. With `--every-clause` all the tests of
the fault's module run, and to the end.
"""

from . import (
    backwards,
    gradients,
    in_place,
    in_place_backward,
    layers,
    norms,
    options,
    parts,
    randomness,
    reproducibility,
)
from .registry import FAULTS, Fault

__all__ = [
    "FAULTS", "Fault", "backwards", "gradients", "in_place", "in_place_backward", "layers", "norms", "options", "parts",
    "randomness", "reproducibility",
]  # fmt: skip
