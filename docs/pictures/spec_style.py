"""What the pictures of the specification have in common: the style of `attnspec.plot`, boxes and arrows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from attnspec.plot_picture import INK, Picture, blank, style

FOLDER = Path(__file__).parents[1] / "spec" / "pictures"
# After Okabe and Ito, as bright on white as on black: for all kinds of sight.
BLUE, ORANGE, GREEN, PURPLE = COLOURS = ("#1f83c4", "#d55e00", "#009e73", "#cc79a7")


def save(name: str, picture: Picture) -> None:
    FOLDER.mkdir(exist_ok=True)
    picture.save(FOLDER / f"{name}.svg")


def draw(name: str, label: str, size: tuple[float, float], *panels: Callable[[Any], None]) -> None:
    """A picture of so many inches, its panels beside each other; each function gets the axes of its own."""
    with style():
        figure, axes = blank(*size, columns=len(panels))
        for one, panel in zip(axes, panels, strict=True):
            panel(one)
    save(name, Picture(figure, label))


def canvas(axes: Any, width: float, height: float) -> None:
    """An empty drawing of so many units, equal in both directions."""
    axes.set(xlim=(0, width), ylim=(0, height), aspect="equal")
    axes.axis("off")


def box(axes: Any, x: float, y: float, text: str, colour: str = INK, *, width: float = 2, height: float = 0.7) -> None:
    """A rectangle around its middle (x, y)."""
    from matplotlib.patches import FancyBboxPatch

    corner = (x - width / 2, y - height / 2)
    shape = "round,pad=0,rounding_size=0.1"
    axes.add_patch(
        FancyBboxPatch(corner, width, height, boxstyle=shape, facecolor="none", edgecolor=colour, linewidth=1.4)
    )
    axes.text(x, y, text, ha="center", va="center")


def block(axes: Any, x: float, y: float, columns: int, rows: int, colour: str, *, cell: float = 0.25) -> None:
    """An array as cells, its lower left corner at (x, y)."""
    from matplotlib.patches import Rectangle

    for i in range(rows):
        for j in range(columns):
            corner = (x + j * cell, y + i * cell)
            axes.add_patch(Rectangle(corner, cell, cell, facecolor=colour, alpha=0.35, edgecolor="none"))
            axes.add_patch(Rectangle(corner, cell, cell, facecolor="none", edgecolor=colour, linewidth=0.8))


def arrow(axes: Any, start: tuple[float, float], end: tuple[float, float], *, bend: float = 0) -> None:
    how = {"arrowstyle": "-|>", "color": INK, "linewidth": 0.9, "connectionstyle": f"arc3,rad={bend}"}
    axes.annotate("", end, start, arrowprops={**how, "shrinkA": 0, "shrinkB": 0})
