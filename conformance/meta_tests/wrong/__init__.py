"""Attentions that each have one fault that somebody might ship, and a faultless one to tell them from.

The class's name says what is wrong; `CATALOGUE` has the clauses whose laws have to fail it.
"""

from . import dropout, gradients, hiding, layout, masks, numerics, scores, shards, softmax
from .faultless import CATALOGUE, Faultless

__all__ = [
    "CATALOGUE",
    "Faultless",
    "dropout",
    "gradients",
    "hiding",
    "layout",
    "masks",
    "numerics",
    "scores",
    "shards",
    "softmax",
]
