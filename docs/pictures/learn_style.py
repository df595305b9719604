"""What the pictures of the course have in common. Each is drawn from what its page computes: `of_page` runs the page's
code and returns its names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from attnspec.plot import Picture
from attnspec.plot_picture import blank, style

LEARN = Path(__file__).parents[1] / "learn"


def of_page(name: str) -> dict[str, Any]:
    """The names that the Python of a page of the course leaves."""
    blocks = re.findall(r"^```python\n(.*?)^```", (LEARN / name).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": name}
    with redirect_stdout(StringIO()):
        exec(compile("\n".join(blocks), name, "exec"), names)
    return names


def save(name: str, picture: Picture) -> None:
    """Write it beside the pages."""
    picture.save(LEARN / "pictures" / f"{name}.svg")


def drawn(label: str, size: tuple[float, float], draw: Callable[..., None], columns: int = 1) -> Picture:
    """A picture of `size` inches with so many panels beside each other, whose axes `draw` gets."""
    with style():
        figure, panels = blank(*size, columns=columns)
        draw(*panels)
    return Picture(figure, label)


def bare(axes: Axes) -> None:
    """Without the lines at the top and the right."""
    axes.spines[["top", "right"]].set_visible(False)
