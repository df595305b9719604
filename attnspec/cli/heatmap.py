"""A matrix of numbers between 0 and 1 as a picture: in the terminal, and by `attnspec.plot` in files."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

from .. import plot
from ..plot import number

__all__ = ["Panel", "save", "show"]

RAMP = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))  # matplotlib's viridis
WIDEST, NARROWEST = 7, 3


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
            line.append(f" {number(value):>{width}}", style=_style(value))
        console.print(line, soft_wrap=True)


def save(path: Path, panels: list[Panel]) -> None:
    """Write the panels, which have the same labels, side by side; the format is what the file's name ends with."""
    first = panels[0]
    picture = plot.grid(
        [panel.values for panel in panels],
        first.rows,
        keys=first.columns,
        titles=[panel.title for panel in panels],
        down=first.down,
        across=first.across,
    )
    picture.save(path)


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
