"""An SVG of a page stands in the page itself, so that its ink is that of the page.

Inside an `<img>` a picture knows the scheme of the system and not the theme that the reader chose on the page; here
`currentColor` is the colour of the text around it. Its words can be searched and read aloud, and its width is known to
the style sheet, which keeps the words readable where the page is narrow.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

IDENTIFIER = re.compile(r'((?<=\s)id="|url\(#|href="#)')
WIDTH = re.compile(r'(<svg class="attnspec[^>]*?)width="([\d.]+)pt" height="[\d.]+pt"')
POINTS = 0.75  # of a pixel
WIDE = 736  # pixels: the width of the text


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the pass."""
    app.add_post_transform(Inline)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class Inline(SphinxPostTransform):
    """Once all pages are read: each image that is an SVG of `attnspec.plot` becomes what its file has."""

    default_priority = 5
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        for image in list(self.document.findall(nodes.image)):
            path = Path(self.env.srcdir, image["uri"])
            if path.suffix != ".svg" or not path.is_file():
                continue
            text = path.read_text("utf-8")
            if points := WIDTH.search(text):
                pixels = float(points[2]) / POINTS
                image.replace_self(nodes.raw("", inline(text, path.stem, image.get("alt", ""), pixels), format="html"))


def inline(text: str, name: str, alt: str, pixels: float) -> str:
    """The picture as HTML. Identifiers get its name before them: a page may have several pictures."""
    svg = text.partition("<svg")[2].join(("<svg", "")).rstrip()
    svg = IDENTIFIER.sub(rf"\1{name}-", svg)
    svg = re.sub(r'aria-label="[^"]*"', lambda _: f'aria-label="{escape(alt)}"', svg, count=1)
    svg = WIDTH.sub(rf'\1style="--width: {pixels:.0f}px"', svg, count=1)
    return f'<span class="picture{" wide" * (pixels > WIDE)}">{svg}</span>'
