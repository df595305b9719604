"""A matrix of numbers between 0 and 1 as a picture: in the terminal, as SVG, as PNG."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

from ..errors import MissingModelError, OptionError

__all__ = ["Panel", "save", "show"]

RAMP = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))  # matplotlib's viridis
WIDEST, NARROWEST = 7, 3
FORMATS = {
    ".svg": {"Date": None},
    ".png": {"Software": None},
}  # no dates, so that equal pictures are equal files


class Panel(NamedTuple):
    """One matrix with its labels: a row per query, a column per key."""

    title: str
    rows: list[str]
    columns: list[str]
    values: list[list[float]]
    down: str = "looks"
    across: str = "at"


def show(console: Console, panel: Panel) -> None:
    """Print the panel: each number on its colour. An exact 0 is a dot without colour."""
    left = max(map(len, panel.rows), default=0)
    width = min(WIDEST, max(NARROWEST, *map(len, panel.columns)))
    if left + len(panel.columns) * (width + 1) > console.width:
        width = NARROWEST
    header = "".join(f" {label[:width]:>{width}}" for label in panel.columns)
    console.print(Text(panel.title, style="bold"), soft_wrap=True)
    console.print(Text(" " * left + header), soft_wrap=True)
    for label, row in zip(panel.rows, panel.values, strict=True):
        line = Text(f"{label:>{left}}")
        for value in row:
            line.append(f" {_number(value):>{width}}", style=_style(value))
        console.print(line, soft_wrap=True)


def save(path: Path, panels: list[Panel]) -> None:
    """Write the panels side by side, in the format that the file's name ends with."""
    if path.suffix not in FORMATS:
        raise OptionError(f"a picture is {' or '.join(FORMATS)}, got {str(path)!r}.")
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        msg = "pictures need 'matplotlib', which is not installed: pip install 'attnspec[demo]'"
        raise MissingModelError(msg) from None

    across = max(len(panel.columns) for panel in panels)
    down = max(len(panel.rows) for panel in panels)
    cell = max(0.25, min(0.62, 12 / across))
    with rc_context({"svg.hashsalt": "attnspec", "font.size": 9}):
        figure = Figure(figsize=((cell * across + 1.2) * len(panels), cell * down + 1.4), layout="constrained")
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _draw(axes, panel, numbers=cell > 0.4)
        figure.savefig(path, dpi=160, metadata=FORMATS[path.suffix])


def _draw(axes: Any, panel: Panel, *, numbers: bool) -> None:
    painted = [[value if value else float("nan") for value in row] for row in panel.values]
    axes.imshow(painted, vmin=0.0, vmax=1.0, cmap="viridis")
    axes.set_title(panel.title)
    axes.set_xticks(range(len(panel.columns)), panel.columns, rotation=45, ha="right")
    axes.set_yticks(range(len(panel.rows)), panel.rows)
    axes.set_ylabel(panel.down)
    axes.set_xlabel(panel.across)
    if numbers:
        for i, row in enumerate(panel.values):
            for j, value in enumerate(row):
                axes.text(j, i, _number(value), ha="center", va="center", color=_ink(value))


def _number(value: float) -> str:
    if value == 0:
        return "·"
    return f"{value:.2f}".removeprefix("0") if value < 0.995 else "1.0"


def _ink(value: float) -> str:
    return "black" if value == 0 or value > 0.6 else "white"


def _style(value: float) -> Style:
    if value == 0:
        return Style(dim=True)
    return Style(color=_ink(value), bgcolor=Color.from_rgb(*_colour(min(max(value, 0.0), 1.0))))


def _colour(value: float) -> tuple[float, float, float]:
    place = value * (len(RAMP) - 1)
    n = min(int(place), len(RAMP) - 2)
    part = place - n
    red, green, blue = (a + part * (b - a) for a, b in zip(RAMP[n], RAMP[n + 1], strict=True))
    return red, green, blue
