"""How Sphinx makes the site: `nox -s docs`, or `python -m sphinx -n -W docs docs/_build/html`. Nothing is fetched."""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

import attnspec

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS / "extensions"), str(DOCS.parent / "backends" / "dask")]  # the second is not installed

project = "attnspec"
author = "The attnspec authors"
project_copyright = "The attnspec authors"
version = release = attnspec.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "api_pages",
    "breaks",
    "clause_links",
    "inline_pictures",
    "mathml",
    "peer_tables",
]
exclude_patterns = ["_build", "extensions", "pictures"]
html_theme = "furo"
html_title = "attnspec"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_math_renderer = "mathml"
pygments_style = "tango"
pygments_dark_style = "monokai"

myst_enable_extensions = ["amsmath", "attrs_block", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

nitpicky = True
nitpick_ignore = [("py:class", "contextlib.nullcontext")]  # the default of a field, not ours to document
smartquotes = False  # `...` is three dots in a shape, and quotes are code
autodoc_typehints = "none"  # docstrings say what the arguments are, with shapes and letters
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 90


def setup(app: Sphinx) -> None:
    """Folders whose index lists its pages in a table of its own."""
    app.connect("source-read", _with_its_folder)


def _with_its_folder(app: Sphinx, docname: str, source: list[str]) -> None:
    """On GitHub such a block would show: the index of a folder gets it here."""
    if docname in ("reports/index", "scale/index"):
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"
