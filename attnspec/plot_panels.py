"""A panel of a picture: coloured cells, the numbers on them, and the names beside them."""

from __future__ import annotations

import math
from typing import Any

from .plot_picture import INK, blank
from .plot_values import Rows

LEAST = 0.005  # less than that is printed as a zero


def panels_of(count: int, columns: int, width: float, height: float) -> tuple[Any, list[Any]]:
    """A figure with the axes of so many panels; what is left of the last row is empty."""
    rows = math.ceil(count / columns)
    figure, axes = blank(width * columns, height * rows, rows, columns)
    for unused in axes[count:]:
        unused.axis("off")
    return figure, axes[:count]


def cells(axes: Any, values: Rows, colours: str | list[str], *, numbers: bool = False) -> None:
    """Coloured squares between thin lines."""
    from matplotlib.colors import ListedColormap

    painted = [[value if value else math.nan for value in row] for row in values]
    chosen = colours if isinstance(colours, str) else ListedColormap(colours)
    whole = (0, len(values[0]), len(values), 0)
    axes.imshow(painted, vmin=0.0, vmax=1.0, cmap=chosen, interpolation="none", extent=whole)
    for i in range(len(values) + 1):
        axes.axhline(i, color=INK, linewidth=0.3, alpha=0.4)
    for j in range(len(values[0]) + 1):
        axes.axvline(j, color=INK, linewidth=0.3, alpha=0.4)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    if numbers:
        for i, row in enumerate(values):
            for j, value in enumerate(row):
                if value >= LEAST or value != value:
                    ink = INK if value != value else "black" if value > 0.6 else "white"
                    axes.text(j + 0.5, i + 0.5, number(value), ha="center", va="center", color=ink)


def label(
    axes: Any, rows: list[str], columns: list[str], cell: float, *, left: bool = True, bottom: bool = True
) -> None:
    """The names of rows and columns, as many as can be read."""
    step = math.ceil(0.14 / cell)
    axes.set_yticks([i + 0.5 for i in range(0, len(rows), step)], rows[::step] if left else [""] * len(rows[::step]))
    shown = columns[::step] if bottom else [""] * len(columns[::step])
    slant = {} if max(map(len, columns)) <= 2 else {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks([j + 0.5 for j in range(0, len(columns), step)], shown, **slant)


def number(value: float) -> str:
    """A weight in three characters; a dot for an exact 0, nan for what is no number.

    Examples
    --------
    >>> from attnspec import plot
    >>> [plot.number(x) for x in (0.0, 0.25, 0.999)]
    ['·', '.25', '1.0']
    """
    if value == 0:
        return "·"
    return "1.0" if value >= 0.995 else f"{value:.2f}".removeprefix("0")
