"""What the site adds to its pages: links to clauses, tables of peers, formulas, docstrings; and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
import sys
import xml.etree.ElementTree as ET
from io import StringIO
from pathlib import Path

import pytest
from attnspec_conformance.clauses import CLAUSES
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS / "extensions"))  # as docs/conf.py does

from docstring_form import restructured  # noqa: E402


@pytest.fixture
def site(tmp_path):
    """Builds pages with the settings of docs/, pictures beside them: (HTML of each, what it warned of)."""

    def build(pictures=(), **pages):
        source, out = tmp_path / "source", tmp_path / "out"
        source.mkdir()
        for name, text in pages.items():
            (source / f"{name}.md").write_text(text, "utf-8")
        for picture in pictures:
            shutil.copy(picture, source)
        warned = StringIO()
        with docutils_namespace():  # what one build registers is gone before the next
            Sphinx(str(source), str(DOCS), str(out), str(tmp_path / "trees"), "html", None, None, warned).build()
        return {name: (out / f"{name}.html").read_text("utf-8") for name in pages}, warned.getvalue()

    return build


def test_the_name_of_a_clause_leads_to_where_it_stands(site):
    index = "# A page\n\nSee MASK-5 and `MASK-5`, not XMASK-5.\n\n```{toctree}\nclauses\n```\n"
    pages, warned = site(index=index, clauses="# Clauses\n\n**MASK-5.** An empty row is 0.\n")
    assert not warned
    assert re.search(r'<p class="clause" id="mask-5">', pages["clauses"])
    assert pages["index"].count('href="clauses.html#mask-5"') == 2


def test_a_name_that_no_page_has_is_a_warning(site):
    _, warned = site(index="# A page\n\nSee MASK-99.\n")
    assert "index.md:3" in warned
    assert "no page of the specification has the clause MASK-99" in warned


def test_a_formula_is_mathml_and_one_that_is_none_is_a_warning(site):
    pages, warned = site(index="# A page\n\n$x^2$ and\n\n$$\n\\frac12 x\n$$\n\n$\\nosuch$\n")
    assert pages["index"].count("<math") == 2
    assert "<mfrac><mn>1</mn><mn>2</mn></mfrac>" in re.sub(r"\s", "", pages["index"])
    assert "no MathML for '\\\\nosuch'" in warned


def test_formulas_apart_are_boxes_of_their_own_and_one_with_brackets_is_one(site):
    pages, warned = site(index="# A page\n\n$$a = \\{b\\}, \\qquad c \\qquad d$$\n\n$$\\mathrm{x \\qquad y}$$\n")
    formulas = re.findall(r'<div class="formula">(.*?)</div></div>', pages["index"], re.DOTALL)
    boxes = [formula.count("<div><math") for formula in formulas]
    assert not warned
    assert boxes == [3, 1]


def test_a_picture_stands_in_the_page_with_the_ink_of_the_text(site):
    pictures = [DOCS / "spec" / "pictures" / name for name in ("merge.svg", "multihead.svg")]
    pages, warned = site(pictures, index='# A page\n\n![One "&" more](merge.svg)\n\n![Heads](multihead.svg)\n')
    assert not warned
    (one, two) = map(ET.fromstring, re.findall(r'<svg class="attnspec.*?</svg>', pages["index"], re.DOTALL))
    assert "<img" not in pages["index"]
    assert (one.get("aria-label"), two.get("aria-label")) == ('One "&" more', "Heads")
    assert (one.get("style"), two.get("style")) == ("--width: 518px", "--width: 710px")
    assert one.get("width") is two.get("width") is None
    names = [node.get("id") for svg in (one, two) for node in svg.iter() if node.get("id")]
    assert len(names) == len(set(names)) > 50
    told = re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', "".join(ET.tostring(svg, "unicode") for svg in (one, two)))
    assert told
    assert {left or right for left, right in told} <= set(names)


def test_code_in_a_table_may_be_broken_after_a_joint_and_elsewhere_not(site):
    pages, _ = site(index="# A page\n\n`a.b_c`\n\n| x |\n|---|\n| `torch.nn_f(a)` and b.c |\n")
    assert re.findall(r"<code[^>]*>(.*?)</code>", pages["index"]) == [
        '<span class="pre">a.b_c</span>',
        "<wbr>".join(f'<span class="pre">{part}</span>' for part in ("torch.", "nn_", "f(", "a)")),
    ]


def test_a_page_loads_nothing_from_elsewhere(site):
    pages, _ = site(index="# A page\n\n$x$\n")
    assert not re.findall(r'(?:src|rel="stylesheet"[^>]*href)="(https?:)?//', pages["index"])
    assert "mathjax" not in pages["index"].lower().replace("mathjax_ignore", "")


def test_the_table_of_peers_counts_what_the_data_says(site):
    stands = "".join(f"**{name}.** It is.\n\n" for name in CLAUSES)
    pages, warned = site(index=f"# A page\n\n{stands}```{{peers}} MASK\n```\n")
    assert not warned
    peers = json.loads((DOCS / "peers.json").read_text("utf-8"))["peers"].values()
    row = re.search(r"<tr[^>]*>(?:(?!</tr>).)*MASK-5</span>.*?</tr>", pages["index"], re.DOTALL)[0]
    for verdict in ("holds", "differs", "fails", "cannot"):
        count = sum(peer["clauses"]["MASK-5"]["verdict"] == verdict for peer in peers)
        assert re.search(rf'class="verdict-{verdict}">{count or ""}<', row)


def test_a_family_that_nobody_was_asked_for_is_refused(site):
    _, warned = site(index="# A page\n\n```{peers} COLOUR\n```\n")
    assert "docs/peers.json has no clause of the family 'COLOUR'" in warned


DOCSTRING = """What it does.

    import that

    that.does(it)

y_i = sum_j p_ij v_j

Parameters
----------
q : array (..., Q, D)
    With * and |v| and p_ and `code`.
softcap : float

Notes
-----
Source: somebody_else.

* 2 * 3

Examples
--------
>>> 2 ** 3 * 1
8
"""


def test_a_docstring_in_house_form_becomes_restructured_text():
    assert restructured(DOCSTRING) == [
        "What it does.", "",
        ".. code-block:: python", "", "   import that", "   ", "   that.does(it)", "",
        ".. code-block:: text", "   :class: plain-formula", "", "   y_i = sum_j p_ij v_j", "",
        ":Parameters:", "", "   - **q** : array (..., Q, D)", "",
        r"     With \* and \|v\| and p\_ and ``code``.", "", "   - **softcap** : float", "", "",
        ".. rubric:: Notes", "", "Source: somebody_else.", "", r"* 2 \* 3", "",
        ".. rubric:: Examples", "", ">>> 2 ** 3 * 1", "8", "",
    ]  # fmt: skip


def test_a_dataclass_shows_its_fields_with_what_is_noted_beside_them():
    from attnspec import NormParams

    shown = restructured("Gain.", NormParams)
    assert "   - **gamma** (``Array | None``): (M,)" in shown
    assert "   - **eps** (``float``, ``1e-5`` unless given)" in shown
