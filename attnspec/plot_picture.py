"""A picture that can be saved: SVG whose ink follows the page that it stands on, PNG, or a page of HTML on its own.

Nothing of pyplot is used: a picture is a `Figure` of its own, and drawing one changes no global state.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from html import escape
from io import StringIO
from os import PathLike
from pathlib import Path
from typing import Any

from .errors import MissingModelError, OptionError

INK = "#010203"  # text and lines: in PNG this black, in SVG the colour of the page's text
VISIBLE = "#1f83c4"  # told from INK by all kinds of sight, on light and on dark
LIGHT, DARK = "#1b1b1b", "#d6d6d6"
RULES = (
    f"svg.attnspec {{color: {LIGHT}}} "
    f"@media (prefers-color-scheme: dark) {{svg.attnspec {{color: {DARK}}}}} "
    "svg.attnspec * {stroke-linejoin: round; stroke-linecap: butt}"
)
NO_METADATA = ("Date", "Creator", "Format", "Type")  # so that equal pictures are equal files
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>body {{margin: 1rem}} svg {{max-width: 100%; height: auto}}</style>
</head>
<body>
{svg}
</body>
</html>
"""


@dataclass(frozen=True)
class Picture:
    """What the functions of `attnspec.plot` return: a matplotlib `Figure`, and the words that stand for it.

    A notebook shows it as it is.
    """

    figure: Any
    label: str

    def save(self, path: str | PathLike[str]) -> Path:
        """Write it in the format that the name ends with: .svg, .png or .html. Equal pictures are equal files.

        Letters that the font DejaVu Sans lacks (Chinese, Japanese, emoji) are boxes in a .png, of which matplotlib
        warns. In the others the reader's own fonts draw them.

        Raises
        ------
        errors.OptionError
            For another ending.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> from attnspec import plot
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = plot.heatmap([[1.0, 0.0], [0.5, 0.5]]).save(pathlib.Path(folder) / "head.svg")
        ...     path.read_text()[:5]
        '<?xml'
        """
        path = Path(path)
        if path.suffix == ".svg":
            path.write_text(self.svg(), "utf-8")
        elif path.suffix == ".html":
            path.write_text(PAGE.format(title=escape(self.label), svg=self._inside()), "utf-8")
        elif path.suffix == ".png":
            with style():
                self.figure.savefig(path, dpi=160, facecolor="white", metadata={"Software": None})
        else:
            msg = f"a picture is .html or .svg or .png, got {str(path)!r}."
            raise OptionError(msg)
        return path

    def svg(self) -> str:
        """The file as text: no background, the text is text, and ink is light where the reader's page is dark."""
        written = StringIO()
        with style(), _of_any_letters():
            self.figure.savefig(written, format="svg", transparent=True, metadata=dict.fromkeys(NO_METADATA))
        text = re.sub(rf"((?:fill|stroke): ){INK}\b", r"\1currentColor", written.getvalue())
        text = re.sub(r"(<style[^>]*>).*?(</style>)", rf"\1{RULES}\2", text, count=1, flags=re.DOTALL)
        named = f'<svg class="attnspec" role="img" aria-label="{escape(self.label)}" '
        return "\n".join(line.rstrip() for line in text.replace("<svg ", named, 1).splitlines()) + "\n"

    def _inside(self) -> str:
        """The part of the file that stands inside HTML."""
        return self.svg().partition("<svg")[2].join(("<svg", ""))

    def _repr_html_(self) -> str:
        return self._inside()


def style(*, formulas: bool = True) -> AbstractContextManager[Any]:
    """The settings that every picture is drawn and saved under, whatever the user's own are.

    Without `formulas` a dollar in the words that are drawn is a dollar. Raises where matplotlib is not installed.
    """
    try:
        from matplotlib import style as settings
    except ImportError:
        msg = "pictures need 'matplotlib', which is not installed: pip install 'attnspec[plot]'"
        raise MissingModelError(msg) from None
    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")
    return settings.context(
        {
            "svg.hashsalt": "attnspec", "svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"], "font.size": 9,
            "axes.titlesize": 10, "figure.facecolor": "white", "text.parse_math": formulas, **dict.fromkeys(inked, INK),
        },
        after_reset=True,
    )  # fmt: skip


def blank(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Any, list[Any]]:
    """A figure of so many inches and its axes, row by row. Call it, and draw, inside `style()`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def settle(figure: Any) -> None:
    """Lay it out once before it is saved, and so laid out again: long names move axes, which moves the names."""
    with _of_any_letters():
        figure.get_layout_engine().execute(figure)


@contextmanager
def _of_any_letters() -> Iterator[None]:
    """Without a warning of letters that the font lacks."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from", UserWarning)
        yield
