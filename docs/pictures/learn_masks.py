"""The pictures of page 3: four masks."""

from __future__ import annotations

from learn_style import save

from attnspec import causal, padding, plot, window

MASKS = {
    "causal": ("causal()", causal()),
    "window": ("window(2, 0)", window(2, 0)),
    "padding": ("padding(4)", padding(4)),
    "both": ("causal() & padding(4)", causal() & padding(4)),
}

if __name__ == "__main__":
    for name, (title, mask) in MASKS.items():
        save(f"mask-{name}", plot.mask_preview(mask, Q=6, K=6, title=title))
