"""The picture of page 4: one head that looks both ways, and two heads."""

from __future__ import annotations

import numpy as np
from drawing import of_page, save

from attnspec import multi_head_weights, plot

WORDS = ["dog", "bites", "man"]

if __name__ == "__main__":
    page = of_page("4-heads.md")
    x = page["sentence"](" ".join(WORDS))
    heads = [multi_head_weights(page[name], x, scale=1.0).round(4) for name in ("one_head", "two_heads")]
    titles = ["one head", "head 0 of two", "head 1 of two"]
    save("learn", "heads", plot.grid(np.concatenate(heads), WORDS, titles=titles, columns=3))
