"""The picture of page 3: four masks."""

from __future__ import annotations

import numpy as np
from drawing import save

from attnspec import attention_weights, causal, padding, plot, window

N = 6
MASKS = {
    "causal()": causal(),
    "window(2, 0)": window(2, 0),
    "padding(4)": padding(4),
    "causal() & padding(4)": causal() & padding(4),
}

if __name__ == "__main__":
    nothing = np.zeros((N, 1))
    visible = np.stack([attention_weights(nothing, nothing, mask=mask) > 0 for mask in MASKS.values()])
    picture = plot.mask_preview(visible[:, None], Q=N, K=N)
    for axes, title in zip(picture.figure.axes, MASKS, strict=True):
        axes.title.set_text(title)
    save("learn", "masks", picture)
