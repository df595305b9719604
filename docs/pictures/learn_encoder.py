"""Pictures of page 7: the encoder's parts, what a state of fixed size loses, and two heads of MiniLM."""

from __future__ import annotations

from typing import Any

import numpy as np
from drawing import BLUE, GREEN, ORANGE, PURPLE, arrow, bare, box, canvas, drawn, of_page, save
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from attnspec import plot
from attnspec.plot_picture import INK

NUMBERS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
LAYER = (("attention", BLUE), ("add and norm", GREEN), ("feed-forward", ORANGE), ("add and norm", GREEN))


def encoder(axes: Axes) -> None:
    canvas(axes, 6.4, 6.9)
    x = 3.2
    axes.text(x, 0, "tokens", ha="center", va="bottom")
    for n, (name, colour) in enumerate((("token vector + position", PURPLE), *LAYER)):
        arrow(axes, (x, n + 0.35), (x, n + 0.65))
        box(axes, x, n + 1, name, colour, width=3)
    for below in (1.5, 3.5):  # the skip connections
        axes.plot([x, 5.1, 5.1], [below, below, below + 1.5], color=INK, linewidth=0.9)
        arrow(axes, (5.1, below + 1.5), (4.72, below + 1.5))
        axes.text(5.2, below + 0.75, "skip", va="center")
    axes.add_patch(Rectangle((1.45, 1.42), 4.5, 4.06, facecolor="none", edgecolor=INK, linestyle="--", linewidth=0.9))
    axes.text(1.3, 3.45, "6 times", ha="right", va="center")
    arrow(axes, (x, 5.35), (x, 6.1))
    axes.text(x, 6.2, "state: a row of 512 for each token", ha="center", va="bottom")


def bottleneck(page: dict[str, Any], axes: Axes) -> None:
    lost = [page["lost"](n) for n in NUMBERS]
    for column, label, colour, style in ((0, "one state of 64 x 64", ORANGE, "o-"), (1, "a row for each", BLUE, "s-")):
        errors = [both[column] for both in lost]
        axes.semilogx(NUMBERS, errors, style, base=2, color=colour, linewidth=1.8, markersize=4, label=label)
    axes.axvline(64, color=INK, linewidth=0.8, linestyle=":")
    axes.set(xlabel="pairs stored", ylabel="error relative to a value", xticks=NUMBERS)
    axes.set_xticklabels(map(str, NUMBERS))
    axes.minorticks_off()
    axes.legend(labelcolor="linecolor", frameon=False)
    bare(axes)


if __name__ == "__main__":
    save("learn", "encoder", drawn("The encoder and its parts", (4.6, 5.0), encoder))
    page = of_page("7-encoder.md")
    save("learn", "bottleneck", drawn("What is lost by pairs stored", (5.2, 2.8), lambda axes: bottleneck(page, axes)))
    heads = np.stack([page["first"][2], page["last"][11]])
    save("learn", "minilm", plot.grid(heads, page["words"], titles=["first layer, head 2", "last layer, head 11"]))
