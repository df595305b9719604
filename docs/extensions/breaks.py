"""Code in a table may be broken after a dot, an underscore or a bracket: on a phone its column is narrow."""

from __future__ import annotations

import re
from itertools import chain
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

JOINT = re.compile(r"(?<=[._(,/=])(?=\w)")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the pass."""
    app.add_post_transform(Breaks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class Breaks(SphinxPostTransform):
    """`<wbr>`, and no character that would be copied along."""

    default_priority = 900
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        for cell in self.document.findall(nodes.entry):
            for code in list(cell.findall(nodes.literal)):
                for text in list(code.findall(nodes.Text)):
                    first, *rest = JOINT.split(text)
                    after = ((nodes.raw("", "<wbr>", format="html"), nodes.Text(part)) for part in rest)
                    text.parent.replace(text, [nodes.Text(first), *chain.from_iterable(after)])
