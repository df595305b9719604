"""The picture of page 5: which words depend on which, after 1, 3 and 6 layers with a window of two words."""

from __future__ import annotations

from drawing import save

from attnspec import plot
from attnspec.backend import numpy as backend
from attnspec.cli import stack

WORDS = ["the", "fat", "cat", "sat", "on", "the", "mat"]
DEPTHS = (1, 3, 6)

if __name__ == "__main__":
    (influence,) = stack.measure(len(WORDS), max(DEPTHS), backend, "float64", None)()
    moved = influence[[depth - 1 for depth in DEPTHS]]
    titles = [f"after {depth} layer{'s' * (depth > 1)}" for depth in DEPTHS]
    shares = moved / moved.sum(axis=-1, keepdims=True)
    named = {"titles": titles, "down": "moves", "across": "when this word is changed"}
    save("learn", "layers", plot.grid(shares, WORDS, columns=3, **named))
