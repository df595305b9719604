"""The picture of page 6: what becomes of x, and of the weights, in 32 layers without and with a norm."""

from __future__ import annotations

from typing import Any

from learn_style import bare, drawn, of_page, save
from matplotlib.axes import Axes
from spec_style import BLUE, GREEN, ORANGE, PURPLE

import attnspec

COLOURS = {"nothing": PURPLE, "skip": ORANGE, "post-norm": BLUE, "pre-norm": GREEN}
DASHES = {"nothing": ":", "skip": "-", "post-norm": "--", "pre-norm": "-."}


def draw(page: dict[str, Any], sizes: Axes, shares: Axes) -> None:
    for around, colour in COLOURS.items():
        x, step = page["x"], page["AROUND"][around]
        size, share = [], []
        for attention, network in page["layers"]:
            read = attnspec.layer_norm(x) if around == "pre-norm" else x
            share.append(attnspec.multi_head_weights(attention, read).max(axis=-1).mean())
            x = step(x, lambda h, a=attention: attnspec.multi_head_attention(a, h))
            x = step(x, lambda h, n=network: attnspec.feed_forward(n, h))
            size.append(page["size"](x))
        depth = range(1, len(size) + 1)
        line = {"color": colour, "linestyle": DASHES[around], "linewidth": 1.8}
        sizes.semilogy(depth, size, **line)
        shares.plot(depth, share, label=around, **line)
    sizes.set(xlabel="layer", title="size of x", yticks=[1e-10, 1e-5, 1, 1e5])
    shares.set(xlabel="layer", title="mean of each row's largest weight", ylim=(0, 1.05))
    shares.legend(labelcolor="linecolor", frameon=False, handlelength=2.6, loc="center right")
    bare(sizes)
    bare(shares)


if __name__ == "__main__":
    computed = of_page("6-add-and-norm.md")
    label = "The size of x, and the largest weights, by depth"
    save("norm", drawn(label, (7.2, 2.8), lambda *panels: draw(computed, *panels), columns=2))
