"""The picture of page 6: what becomes of x, and of the weights, in 32 layers without and with a norm."""

from __future__ import annotations

from typing import Any

from drawing import BLUE, GREEN, ORANGE, PURPLE, bare, drawn, of_page, save
from matplotlib.axes import Axes

import attnspec

COLOURS = {"nothing": PURPLE, "skip": ORANGE, "post-norm": BLUE, "pre-norm": GREEN}
DASHES = {"nothing": ":", "skip": "-", "post-norm": "--", "pre-norm": "-."}


def measured(page: dict[str, Any], around: str) -> tuple[list[float], list[float]]:
    """After each layer the size of x, and the mean of each row's largest weight."""
    x, step = page["x"], page["AROUND"][around]
    size, share = [], []
    for attention, network in page["layers"]:
        read = attnspec.layer_norm(x) if around == "pre-norm" else x
        share.append(attnspec.multi_head_weights(attention, read).max(axis=-1).mean())
        x = step(x, lambda h, a=attention: attnspec.multi_head_attention(a, h))
        x = step(x, lambda h, n=network: attnspec.feed_forward(n, h))
        size.append(page["size"](x))
    return size, share


def lines(axes: Axes, title: str, of: dict[str, list[float]]) -> None:
    """By depth, a line for each way around a sublayer."""
    for around, values in of.items():
        depth = range(1, len(values) + 1)
        axes.plot(depth, values, label=around, color=COLOURS[around], linestyle=DASHES[around], linewidth=1.8)
    axes.set(xlabel="layer", title=title)
    bare(axes)


def sizes(axes: Axes, of: dict[str, list[float]]) -> None:
    lines(axes, "size of x", of)
    axes.set(yscale="log", yticks=[1e-10, 1e-5, 1, 1e5])


def shares(axes: Axes, of: dict[str, list[float]]) -> None:
    lines(axes, "mean of each row's largest weight", of)
    axes.set(ylim=(0, 1.05))
    axes.legend(labelcolor="linecolor", frameon=False, handlelength=2.6, loc="center right")


if __name__ == "__main__":
    page = of_page("6-add-and-norm.md")
    size, share = ({around: measured(page, around)[n] for around in COLOURS} for n in range(2))
    panels = (lambda axes: sizes(axes, size), lambda axes: shares(axes, share))
    save("learn", "norm", drawn("The size of x, and the largest weights, by depth", (7.2, 2.8), *panels))
