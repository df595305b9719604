"""The picture of page 2: what the head that was built by hand looks at."""

from __future__ import annotations

import numpy as np
from drawing import of_page, save

from attnspec import plot

if __name__ == "__main__":
    page = of_page("2-head.md")
    words, p = page["words"], page["p"]
    with_sink = np.concatenate([p, 1 - p.sum(axis=-1, keepdims=True)], axis=-1)
    save("learn", "head", plot.heatmap(with_sink, words, keys=[*words, "(sink)"]))
