"""Pictures of page 1: five words as arrows, and what the scale does."""

from __future__ import annotations

from typing import Any

from drawing import BLUE, GREEN, ORANGE, bare, drawn, of_page, save
from matplotlib.axes import Axes

from attnspec.plot_picture import INK

WIDTHS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
BESIDE = {"florida": (-4, 8), "california": (-4, -16), "texas": (16, -24), "politics": (6, 2), "truth": (6, -4)}


def words(page: dict[str, Any], axes: Axes) -> None:
    for word, (x, y) in zip(page["words"], page["x"], strict=True):
        colour = {"politics": ORANGE, "truth": GREEN}.get(word, BLUE)
        axes.annotate("", (x, y), (0, 0), arrowprops={"arrowstyle": "->", "color": colour, "linewidth": 1.8})
        side = "right" if word in ("florida", "california") else "left"
        axes.annotate(word, (x, y), BESIDE[word], textcoords="offset points", color=colour, ha=side)
    axes.set(xlim=(-4.2, 5.6), ylim=(-3, 3.4), aspect="equal", xticks=range(-4, 6, 2), yticks=range(-2, 4, 2))
    axes.axhline(0, color=INK, linewidth=0.4)
    axes.axvline(0, color=INK, linewidth=0.4)
    bare(axes)


def scale(page: dict[str, Any], axes: Axes) -> None:
    share = page["largest_share"]
    for label, colour, power in (("scores as they are", ORANGE, 0), ("divided by √D", BLUE, -0.5)):
        shares = [share(D, D**power) for D in WIDTHS]
        axes.semilogx(WIDTHS, shares, "o-", base=2, color=colour, linewidth=1.8, markersize=4)
        axes.annotate(label, (WIDTHS[5], shares[5]), (0, -18), textcoords="offset points", color=colour)
    axes.set(xlabel="width D", ylabel="largest of 16 shares", ylim=(0, 1.02), xticks=WIDTHS)
    axes.set_xticklabels(map(str, WIDTHS))
    axes.minorticks_off()
    bare(axes)


if __name__ == "__main__":
    computed = of_page("1-words.md")
    save("learn", "words", drawn("Five words as arrows", (5.2, 3.5), lambda axes: words(computed, axes)))
    save("learn", "scale", drawn("The largest of 16 shares by width", (5.2, 2.8), lambda axes: scale(computed, axes)))
