"""Pictures of the specification that are diagrams: shapes, merging, add-and-norm, heads, chunks."""

from __future__ import annotations

from typing import Any

import numpy as np
from drawing import BLUE, COLOURS, GREEN, ORANGE, PURPLE, arrow, bare, block, box, canvas, drawn, save

import attnspec
from attnspec.plot_picture import INK

SCORES = (1.0, 2.5, 0.5, 1.5, 3.0, 0.0, 1.0, 2.0)


def shapes(axes: Any) -> None:
    """Q = 3, K = 5, D = 4, E = 2."""
    canvas(axes, 11.2, 3)

    def array(x: float, columns: int, rows: int, colour: str, name: str, down: str, across: str) -> None:
        block(axes, x, 1.5 - 0.125 * rows, columns, rows, colour)
        axes.text(x + 0.125 * columns, 2.45, name, ha="center", va="center")
        axes.text(x - 0.12, 1.5, down, ha="right", va="center")
        axes.text(x + 0.125 * columns, 1.5 - 0.125 * rows - 0.12, across, ha="center", va="top")

    def sign(x: float, text: str) -> None:
        axes.text(x, 1.5, text, ha="center", va="center", size=11)

    array(0.6, 4, 3, BLUE, "q", "Q", "D")
    sign(1.95, "·")
    array(2.5, 5, 4, ORANGE, "k, turned", "D", "K")
    sign(4.15, "→")
    array(4.75, 5, 3, PURPLE, "weights", "Q", "K")
    sign(6.4, "·")
    array(7.0, 2, 5, GREEN, "v", "K", "E")
    sign(7.95, "→")
    array(8.55, 2, 3, BLUE, "out", "Q", "E")
    axes.text(9.4, 1.5, "for each head\nand batch", ha="left", va="center")


def merge(axes: Any) -> None:
    """The weights of each part, and of the whole."""
    scores = np.asarray(SCORES)
    parts = (slice(0, 5), slice(5, 8))
    v = np.zeros((len(scores), 1))
    q, k = np.ones((1, 1)), scores[:, None]
    _, lse = attnspec.attention_with_lse(q, k, v)
    whole = np.exp(scores - lse)
    axes.bar(np.arange(8) + 0.2, whole, 0.36, color=GREEN, label="merged")
    for part, colour, name in zip(parts, (BLUE, ORANGE), ("first part", "second part"), strict=True):
        _, own = attnspec.attention_with_lse(q, k[part], v[part])
        axes.bar(np.arange(8)[part] - 0.2, np.exp(scores[part] - own), 0.36, color=colour, label=name)
        middle = (part.start + part.stop - 1) / 2
        share = f"lse {own.item():.2f}, share {np.exp(own - lse).item():.2f}"
        axes.text(middle, 0.78, share, ha="center", color=colour)
    axes.axvline(4.5, color=INK, linewidth=0.8, linestyle="--")
    axes.set(xlabel="key", ylabel="weight", ylim=(0, 0.86), xticks=range(8))
    bare(axes)
    axes.legend(
        frameon=False, labelcolor="linecolor", handlelength=0, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1)
    )


def skip(axes: Any, title: str, order: tuple[str, ...]) -> None:
    """From bottom to top; the skip connection leaves at the bottom and ends at the sum."""
    canvas(axes, 4.6, 6)
    colours = {"sublayer": ORANGE, "dropout": PURPLE, "norm": GREEN, "+": BLUE}
    axes.text(2, 5.8, title, ha="center", va="center", size=10)
    axes.text(2, 0.15, "x", ha="center", va="center")
    for n, name in enumerate(order):
        y = 1.2 + 1.1 * n
        arrow(axes, (2, y - 0.75 if n else 0.35), (2, y - 0.36))
        box(axes, 2, y, name, colours[name], width=0.7 if name == "+" else 2)
    arrow(axes, (2, 1.2 + 1.1 * (len(order) - 1) + 0.35), (2, 5.4))
    y = 1.2 + 1.1 * order.index("+")
    axes.plot([2, 3.7, 3.7], [0.55, 0.55, y], color=INK, linewidth=0.9)
    arrow(axes, (3.7, y), (2.36, y))
    axes.text(3.85, 0.5 * (0.55 + y), "skip", rotation=90, ha="left", va="center")


def heads(axes: Any) -> None:
    """H = 6, G = 3."""
    canvas(axes, 9.2, 4.6)
    axes.text(0.5, 2.3, "x", ha="center", va="center", size=11)
    for h in range(6):
        colour = COLOURS[h // 2]
        y = 4.2 - 0.75 * h
        box(axes, 2.1, y, f"q of head {h}", colour, width=1.6, height=0.5)
        box(axes, 6.0, y, f"head {h}", colour, width=1.3, height=0.5)
        arrow(axes, (0.75, 2.3), (1.28, y))
        arrow(axes, (2.92, y), (5.33, y))
        arrow(axes, (6.67, y), (7.3, 2.3 + (y - 2.3) * 0.2))
    for g in range(3):
        y = 3.825 - 1.5 * g
        box(axes, 4.0, y, f"k, v {g}", COLOURS[g], width=1.1, height=0.4)
        arrow(axes, (4.57, y), (5.33, y + 0.25))
        arrow(axes, (4.57, y), (5.33, y - 0.25))
    box(axes, 7.8, 2.3, "sum of\nhead $W^O$", INK, width=0.95, height=1.3)
    arrow(axes, (8.3, 2.3), (8.85, 2.3))
    axes.text(9.0, 2.3, "y", ha="center", va="center", size=11)


def chunks(axes: Any) -> None:
    canvas(axes, 10, 2.5)
    for n in range(4):
        width = 2 if n < 3 else 1.2
        left = 0.3 + 2.3 * n
        box(
            axes,
            left + width / 2,
            1.6,
            f"keys {256 * n} to\n{256 * n + 255 if n < 3 else 899}",
            BLUE,
            width=width,
            height=0.8,
        )
        axes.text(left + width / 2, 2.25, "exact sum", ha="center", va="center")
        if n:
            axes.text(left - 0.15, 1.6, "+", ha="center", va="center", size=11)
    axes.plot([0.3, 4.6], [0.9, 0.9], color=ORANGE, linewidth=2)
    axes.plot([4.9, 8.4], [0.9, 0.9], color=GREEN, linewidth=2)
    axes.text(2.45, 0.55, "one part, 512 keys", color=ORANGE, ha="center", va="center")
    axes.text(6.65, 0.55, "another part", color=GREEN, ha="center", va="center")
    axes.text(4.35, 0.12, "each sum is rounded once, then they are added from left to right", ha="center", va="center")


if __name__ == "__main__":
    save("spec", "shapes", drawn("q, k, v, weights and output as blocks", (7.4, 2.1), shapes))
    save("spec", "merge", drawn("Two parts of a row and the merged row", (5.4, 3.0), merge))
    post, pre = ("sublayer", "dropout", "+", "norm"), ("norm", "sublayer", "dropout", "+")
    both = (lambda axes: skip(axes, "post-norm", post), lambda axes: skip(axes, "pre-norm", pre))
    save("spec", "norm", drawn("Post-norm and pre-norm", (5.4, 3.6), *both))
    save("spec", "multihead", drawn("Six query heads in three groups", (7.4, 3.8), heads))
    save("spec", "chunks", drawn("Keys in chunks of 256", (7.4, 2.0), chunks))
