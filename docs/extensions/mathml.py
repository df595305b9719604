"""Formulas as MathML, made while the site is built: no script, no font and no network where it is read."""

from __future__ import annotations

import re
from html import escape
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

OPENING = ("{", r"\begin", r"\left")
CLOSING = ("}", r"\end", r"\right")
LOGGER = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer `mathml`."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(self: Any, node: nodes.math) -> None:
    self.body.append(_mathml(node, node.astext(), display=False))
    raise nodes.SkipNode


def _block(self: Any, node: nodes.math_block) -> None:
    """Formulas with a `\\qquad` between them are boxes beside each other, below each other on a narrow page."""
    formulas = "".join(f"<div>{_mathml(node, part, display=True)}</div>" for part in _apart(node.astext()))
    self.body.append(f'<div class="formula">{formulas}</div>\n')
    raise nodes.SkipNode


def _apart(formulas: str) -> list[str]:
    """Cut where a `\\qquad` stands outside of all brackets and environments."""
    parts, depth = [""], 0
    for token in re.split(r"(\\[a-zA-Z]+|\\.|[{}])", formulas):
        depth += (token in OPENING) - (token in CLOSING)
        if token == r"\qquad" and not depth:
            parts.append("")
        else:
            parts[-1] += token
    return list(filter(str.strip, parts))


def _mathml(node: nodes.Element, formula: str, *, display: bool) -> str:
    formula = formula.strip()
    try:
        # TeX sets an exponent on nothing, and takes the two digits of \frac12 apart; the converter does neither.
        based = "{}" + formula if formula.startswith(("^", "_")) else formula
        apart = re.sub(r"(\\[td]?frac)\s*(\d)\s*(\d)", r"\1{\2}{\3}", based)
        return str(latex2mathml.tex2mathml(apart, as_block=display))
    except (MathError, LookupError) as error:  # the second is what some malformed formulas end in
        LOGGER.warning("no MathML for %r: %s", formula, error, location=node)
        return f"<code>{escape(formula)}</code>"
