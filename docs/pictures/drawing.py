"""What the pictures have in common: where they stand, the style of `attnspec.plot`, colours, boxes and arrows."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from matplotlib.patches import FancyBboxPatch, Rectangle

from attnspec.plot_picture import INK, Picture, blank, style

DOCS = Path(__file__).parents[1]
# After Okabe and Ito, as bright on white as on black: for all kinds of sight.
BLUE, ORANGE, GREEN, PURPLE = COLOURS = ("#1f83c4", "#d55e00", "#009e73", "#cc79a7")


def save(part: str, name: str, picture: Picture) -> None:
    """Write it beside the pages of one part of the site."""
    folder = DOCS / part / "pictures"
    folder.mkdir(exist_ok=True)
    picture.save(folder / f"{name}.svg")


def drawn(label: str, size: tuple[float, float], *panels: Callable[[Any], None]) -> Picture:
    """A picture of so many inches, its panels beside each other; each function gets the axes of its own."""
    with style():
        figure, axes = blank(*size, columns=len(panels))
        for one, panel in zip(axes, panels, strict=True):
            panel(one)
    return Picture(figure, label)


def of_page(name: str) -> dict[str, Any]:
    """The names that the Python of a page of the course leaves: its pictures show what it computes."""
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / "learn" / name).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": name}
    with redirect_stdout(StringIO()):
        exec(compile("\n".join(blocks), name, "exec"), names)
    return names


def bare(axes: Any) -> None:
    """Without the lines at the top and the right."""
    axes.spines[["top", "right"]].set_visible(False)


def canvas(axes: Any, width: float, height: float) -> None:
    """An empty drawing of so many units, equal in both directions."""
    axes.set(xlim=(0, width), ylim=(0, height), aspect="equal")
    axes.axis("off")


def box(axes: Any, x: float, y: float, text: str, colour: str = INK, *, width: float = 2, height: float = 0.7) -> None:
    """A rectangle around its middle (x, y)."""
    corner = (x - width / 2, y - height / 2)
    shape = "round,pad=0,rounding_size=0.1"
    axes.add_patch(
        FancyBboxPatch(corner, width, height, boxstyle=shape, facecolor="none", edgecolor=colour, linewidth=1.4)
    )
    axes.text(x, y, text, ha="center", va="center")


def block(axes: Any, x: float, y: float, columns: int, rows: int, colour: str, *, cell: float = 0.25) -> None:
    """An array as cells, its lower left corner at (x, y)."""
    for i in range(rows):
        for j in range(columns):
            corner = (x + j * cell, y + i * cell)
            axes.add_patch(Rectangle(corner, cell, cell, facecolor=colour, alpha=0.35, edgecolor="none"))
            axes.add_patch(Rectangle(corner, cell, cell, facecolor="none", edgecolor=colour, linewidth=0.8))


def arrow(axes: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    how = {"arrowstyle": "-|>", "color": INK, "linewidth": 0.9, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=how)
