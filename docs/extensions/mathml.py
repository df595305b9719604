"""Formulas as MathML, made while the site is built: no script, no font and no network where it is read."""

from __future__ import annotations

from html import escape
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

LOGGER = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer `mathml`."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(self: Any, node: nodes.math) -> None:
    self.body.append(_mathml(node, display=False))
    raise nodes.SkipNode


def _block(self: Any, node: nodes.math_block) -> None:
    self.body.append(f'<div class="formula">{_mathml(node, display=True)}</div>\n')
    raise nodes.SkipNode


def _mathml(node: nodes.Element, *, display: bool) -> str:
    formula = node.astext().strip()
    try:
        # TeX sets an exponent on nothing; the converter wants something there.
        based = "{}" + formula if formula.startswith(("^", "_")) else formula
        return str(latex2mathml.tex2mathml(based, as_block=display))
    except (MathError, LookupError) as error:  # the second is what some malformed formulas end in
        LOGGER.warning("no MathML for %r: %s", formula, error, location=node)
        return f"<code>{escape(formula)}</code>"
