"""The panels of a picture: their sizes, coloured cells, the numbers on them, and the names beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .errors import OptionError
from .plot_picture import INK, blank
from .plot_values import Rows, room, shortened

LEAST = 0.005  # less than that is printed as a zero
# All in inches.
LARGEST = 30  # the longer side of a figure
WIDEST = 12  # side by side: more is hard to read on a page
FULL, SMALLEST = 16, 0.2  # the cells of a panel together, at most and at least
LINED = 0.15  # smaller cells have no lines between them
READABLE = 0.4  # in smaller cells there is no room for a number
BESIDE, ABOVE = 0.9, 1.0  # what a panel needs around its cells
NAMES = 0.5  # of that for names, at each side
TITLE = 4.5  # a panel is made wider for its title, up to this
LINE = 0.17  # a further line of a title
LARGER = 1.12  # times the size of a name: the size of a title


@dataclass(frozen=True)
class Sheet:
    """Panels with the same rows and columns of cells, on a figure of a bounded size. All lengths in inches."""

    count: int
    columns: int
    cell: float
    width: float
    height: float
    names: tuple[list[str], list[str]]
    long: bool  # the names
    titles: list[str]

    def panels(self) -> tuple[Any, list[Any]]:
        """A figure and the axes of the panels, titled and named; what is left of the last row is empty."""
        figure, axes = blank(self.width, self.height, math.ceil(self.count / self.columns), self.columns)
        for unused in axes[self.count :]:
            unused.axis("off")
        for n, (one, title) in enumerate(zip(axes, self.titles, strict=False)):
            one.set_title(title)
            label(one, *self.names, self.cell, left=n % self.columns == 0, bottom=n + self.columns >= self.count)
        return figure, axes[: self.count]

    def fill(self, axes: Any, values: Rows, colours: str | list[str], *, numbers: bool = False) -> None:
        """The cells of a panel, with numbers and lines where they can be seen."""
        cells(axes, values, colours, numbers=numbers and self.cell > READABLE, lines=self.cell >= LINED)


def beside_each_other(count: int, across: float) -> int:
    """How many panels, about as high as they are wide: what fits a page and is even, of very many a square."""
    fit = max(1, min(4, int(WIDEST / (across + BESIDE))))
    if count / fit * (across + BESIDE) > LARGEST:
        return math.isqrt(count - 1) + 1
    return math.ceil(count / math.ceil(count / fit))


def sheet(columns: int, cell: float, names: tuple[list[str], list[str]], titles: Sequence[str]) -> Sheet:
    """A panel for each title, with `cell` inches a cell.

    It is wider for long names and titles, which are shortened in the end, and the cells are smaller where there would
    be too many of them.
    """
    count = len(titles)
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    left, below = ([shortened(name) for name in some] for some in names)
    # A slanted name reaches below its column, and as far to the left of it.
    slanted = [0.75 * room([name]) for name in below] if _slanted(below) else [0.0]
    more_left = max(0.0, room(left) - NAMES, *(reach - (j + 0.5) * cell - NAMES for j, reach in enumerate(slanted)))
    more_below = max(0.0, max(slanted) - NAMES)
    above = ABOVE + LINE * max(title.count("\n") for title in titles)
    widest, highest = (LARGEST - more_left) / columns - BESIDE, (LARGEST - more_below) / rows - above
    if min(widest, highest) < SMALLEST:
        msg = f"{count} panels in {columns} columns do not fit a picture of {LARGEST} inches. Draw fewer at a time."
        raise OptionError(msg)
    cell = min(cell, min(FULL, widest) / len(below), min(FULL, highest) / len(left))
    across = min(widest, max(cell * len(below), min(TITLE, LARGER * room(titles))))
    fits = max(across, 0.8 * (across + BESIDE)) / LARGER
    return Sheet(
        count, columns, cell,
        width=min(LARGEST, columns * (across + BESIDE) + more_left),
        height=min(LARGEST, rows * (cell * len(left) + above) + more_below),
        names=(left, below), long=more_left + more_below > 0, titles=[shortened(title, fits) for title in titles],
    )  # fmt: skip


def cells(axes: Any, values: Rows, colours: str | list[str], *, numbers: bool = False, lines: bool = True) -> None:
    """Coloured squares, with thin lines between them. The layout measures neither lines nor numbers."""
    from matplotlib.collections import LineCollection
    from matplotlib.colors import ListedColormap

    painted = [[value if value else math.nan for value in row] for row in values]
    chosen = colours if isinstance(colours, str) else ListedColormap(colours)
    Q, K = len(values), len(values[0])
    axes.imshow(painted, vmin=0.0, vmax=1.0, cmap=chosen, interpolation="none", extent=(0, K, Q, 0))
    if lines:
        between = [((0, i), (K, i)) for i in range(Q + 1)] + [((j, 0), (j, Q)) for j in range(K + 1)]
        drawn = LineCollection(between, colors=INK, linewidths=0.3, alpha=0.4, clip_on=False, in_layout=False)
        axes.add_collection(drawn, autolim=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    if numbers:
        for i, row in enumerate(values):
            for j, value in enumerate(row):
                if value >= LEAST or value != value:
                    ink = INK if value != value else "black" if value > 0.6 else "white"
                    middle = {"ha": "center", "va": "center", "in_layout": False}
                    axes.text(j + 0.5, i + 0.5, number(value), color=ink, **middle)


def label(
    axes: Any, rows: list[str], columns: list[str], cell: float, *, left: bool = True, bottom: bool = True
) -> None:
    """The names of rows and columns, as many as can be read."""
    step = math.ceil(0.14 / cell)
    slant = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if _slanted(columns) else {}
    for wanted, put, names, how in ((left, axes.set_yticks, rows, {}), (bottom, axes.set_xticks, columns, slant)):
        if wanted:
            put([i + 0.5 for i in range(0, len(names), step)], names[::step], **how)
        else:
            put([])


def _slanted(columns: list[str]) -> bool:
    return max(map(len, columns)) > 2


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
