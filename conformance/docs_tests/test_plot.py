"""Pictures of `attnspec.plot`: what is drawn, what is written, what is refused."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from importlib.util import find_spec
from math import nan

import numpy as np
import pytest

import attnspec
from attnspec import plot
from attnspec.backend import choose
from attnspec.errors import DTypeError, MaskError, MissingModelError, OptionError, ShapeError

SVG = "{http://www.w3.org/2000/svg}"
WORDS = ["the", "cat", "sat"]
WEIGHTS = [[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.125, 0.375, 0.5]]
FRAMEWORKS = {"numpy": "numpy", "torch": "torch", "jax": "jax", "strict": "array_api_strict"}


def texts(picture):
    return [text.text for text in ET.fromstring(picture.svg()).iter(f"{SVG}text")]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_arrays_of_every_framework_give_the_same_picture(name):
    if find_spec(FRAMEWORKS[name]) is None:
        pytest.skip(f"needs {name}")
    backend = choose(name)
    assert plot.heatmap(backend.asarray(WEIGHTS), WORDS).svg() == plot.heatmap(WEIGHTS, WORDS).svg()
    seen = backend.asarray([[True, False], [True, True]])
    assert plot.mask_preview(seen, 2, 2).svg() == plot.mask_preview(attnspec.causal(), 2, 2).svg()


def test_a_tensor_that_records_its_gradient_is_drawn():
    torch = pytest.importorskip("torch")
    weights = torch.tensor(WEIGHTS, dtype=torch.bfloat16, requires_grad=True)
    assert plot.heatmap(weights).svg() == plot.heatmap(WEIGHTS).svg()


def test_a_heatmap_names_rows_and_columns_and_prints_what_is_not_zero():
    shown = texts(plot.heatmap(WEIGHTS, WORDS, keys=["a", "b", "c"], title="one head"))
    assert [word for word in shown if word in WORDS] == WORDS
    assert [word for word in shown if word in {"a", "b", "c"}] == ["a", "b", "c"]
    assert [word for word in shown if word.startswith((".", "1"))] == ["1.0", ".25", ".75", ".12", ".38", ".50"]
    assert shown[-1] == "one head"


def test_a_cell_has_the_colour_of_its_weight_and_none_for_an_exact_zero():
    (image,) = plot.heatmap(WEIGHTS).figure.axes[0].images
    cells = image.to_rgba(image.get_array())
    assert (cells[..., 3] == (np.asarray(WEIGHTS) != 0)).all()
    brightness = cells[..., :3].sum(axis=-1)[np.asarray(WEIGHTS) != 0]
    assert (np.argsort(brightness) == np.argsort(np.asarray(WEIGHTS)[np.asarray(WEIGHTS) != 0])).all()


def test_rows_are_queries_when_there_are_more_keys():
    figure = plot.heatmap([[0.5, 0.5, 0.0], [0.0, 0.25, 0.75]]).figure
    (axes,) = figure.axes
    assert (len(axes.get_yticks()), len(axes.get_xticks())) == (2, 3)
    assert axes.images[0].get_array().shape == (2, 3)


def test_a_weight_that_is_not_a_number_says_so():
    assert "nan" in texts(plot.heatmap([[nan, 0.5]]))


def test_a_grid_has_a_panel_for_each_head_and_a_row_for_each_layer():
    weights = np.full((2, 3, 4, 5), 0.2)
    figure = plot.grid(weights).figure
    assert [axes.get_title() for axes in figure.axes] == [f"layer {n}, head {h}" for n in range(2) for h in range(3)]
    grid = figure.axes[0].get_gridspec()
    assert (grid.nrows, grid.ncols) == (2, 3)
    heads = plot.grid(weights[0], columns=2).figure
    assert [axes.get_title() for axes in heads.axes] == ["head 0", "head 1", "head 2", ""]
    assert not heads.axes[3].axison


def test_panels_show_their_own_head():
    weights = np.zeros((2, 2, 1, 2))
    weights[..., 0, 0] = [[0.1, 0.2], [0.3, 0.4]]
    shown = [axes.images[0].get_array()[0, 0] for axes in plot.grid(weights).figure.axes]
    assert shown == [0.1, 0.2, 0.3, 0.4]


@pytest.mark.parametrize(
    ("mask", "visible"),
    [
        (attnspec.causal(), [[1, 0, 0], [1, 1, 0]]),
        (attnspec.causal(align="end"), [[1, 1, 0], [1, 1, 1]]),
        (attnspec.window(0, 0), [[1, 0, 0], [0, 1, 0]]),
        (~attnspec.padding(1), [[0, 1, 1], [0, 1, 1]]),
        (attnspec.segments([4, 5], [4, 5, 5]), [[1, 0, 0], [0, 1, 1]]),
        (np.asarray([True, False, True]), [[1, 0, 1], [1, 0, 1]]),
    ],
)
def test_a_mask_preview_shows_what_the_weights_show(mask, visible):
    (axes,) = plot.mask_preview(mask, 2, 3).figure.axes
    shown = ~np.ma.getmaskarray(np.ma.masked_invalid(axes.images[0].get_array()))
    assert shown.astype(int).tolist() == visible
    weights = attnspec.attention_weights(np.zeros((2, 1)), np.zeros((3, 1)), mask=mask)
    assert ((weights > 0) == shown).all()


def test_a_mask_that_differs_along_the_batch_has_a_panel_for_each():
    figure = plot.mask_preview(attnspec.causal() & attnspec.padding([3, 1]), 2, 3, title="two").figure
    assert [axes.get_title() for axes in figure.axes] == ["two, [0]", "two, [1]"]
    counts = [int(np.nansum(axes.images[0].get_array())) for axes in figure.axes]
    assert counts == [3, 2]


def test_a_word_of_arcs_whose_weights_are_not_numbers_says_so():
    shown = texts(plot.arcs([[nan, nan], [0.5, 0.5]], ["a", "b"]))
    assert shown.count("nan") == 1
    assert "nan" not in texts(plot.arcs([[0.5, 0.5]] * 2, ["a", "b"]))


def test_arcs_join_each_query_with_the_keys_it_looks_at():
    (axes,) = plot.arcs(WEIGHTS, WORDS, least=0.2).figure.axes
    joined = {(int(arc.xyann[0]), int(arc.xy[0])) for arc in axes.texts if hasattr(arc, "xyann")}
    dots = {int(line.get_xdata()[0]) for line in axes.lines}
    assert (joined, dots) == ({(1, 0), (2, 1)}, {0, 1, 2})


def test_arcs_that_look_ahead_run_below_the_words():
    (axes,) = plot.arcs([[0.0, 1.0], [1.0, 0.0]], ["a", "b"]).figure.axes
    sides = {int(arc.xyann[0]): arc.xy[1] > 0 for arc in axes.texts if hasattr(arc, "xyann")}
    assert sides == {0: False, 1: True}


@pytest.mark.parametrize("suffix", [".svg", ".png", ".html"])
def test_equal_pictures_are_equal_files(tmp_path, suffix):
    paths = [plot.heatmap(WEIGHTS, WORDS).save(tmp_path / f"{n}{suffix}") for n in range(2)]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert paths[0].read_bytes() != plot.heatmap(WEIGHTS[::-1], WORDS).save(tmp_path / f"2{suffix}").read_bytes()


def test_ink_follows_the_page_and_nothing_else_is_loaded(tmp_path):
    svg = plot.heatmap(WEIGHTS, WORDS, title="a < b & c").svg()
    root = ET.fromstring(svg)
    assert root.get("aria-label") == "Attention weights of 3 queries over 3 keys: a < b & c"
    inked = [text.get("style") for text in root.iter(f"{SVG}text") if text.text in WORDS]
    assert len(inked) == 6
    assert all("fill: currentColor" in one for one in inked)
    assert "prefers-color-scheme: dark" in svg
    loaded = [value for node in root.iter() for name, value in node.attrib.items() if name.endswith("href")]
    assert loaded
    assert all(value.startswith(("data:", "#")) for value in loaded)


def test_a_page_of_html_is_one_well_formed_document(tmp_path):
    text = plot.arcs(WEIGHTS, WORDS, title="<cats>").save(tmp_path / "page.html").read_text("utf-8")

    class Tags(HTMLParser):
        open_tags, titles = [], []

        def handle_starttag(self, tag, attributes):
            if tag != "meta":
                self.open_tags.append(tag)

        def handle_endtag(self, tag):
            assert self.open_tags.pop() == tag

        def handle_data(self, data):
            if self.open_tags[-1:] == ["title"]:
                self.titles.append(data)

    Tags().feed(text)
    assert not Tags.open_tags
    assert Tags.titles == ["Which of 3 tokens looks at which: <cats>"]
    assert text.count("<svg") == 1
    assert "<script" not in text


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: plot.heatmap(np.zeros((2, 3, 4))), ShapeError, r"\(2, 3, 4\); one head is \(Q, K\)"),
        (lambda: plot.grid(np.zeros((2, 3))), ShapeError, r"\(2, 3\); heads are \(H, Q, K\)"),
        (lambda: plot.grid(np.zeros((0, 2, 3))), ShapeError, "none of them empty"),
        (lambda: plot.heatmap([[0.5], [0.5, 0.5]]), ShapeError, r"unequal lengths: \(1,\), \(2,\)"),
        (lambda: plot.heatmap([[-3.5, 2.0]]), OptionError, "a weight is -3.5; .* before the softmax"),
        (lambda: plot.heatmap([["cat"]]), OptionError, "a weight is 'cat'"),
        (lambda: plot.heatmap([[None]]), OptionError, "a weight is None"),
        (lambda: plot.arcs([[b"x"]], ["a"]), OptionError, "a weight is b'x'"),
        (lambda: plot.heatmap(WEIGHTS, ["a", "b"]), OptionError, r"tokens are 2 names, \['a', 'b'\]; .* have 3"),
        (lambda: plot.heatmap(WEIGHTS, WORDS, keys=["a"]), OptionError, "keys are 1 names"),
        (lambda: plot.grid([WEIGHTS], titles=["a", "b"]), OptionError, "1 panels need a title each, got 2"),
        (lambda: plot.arcs(np.zeros((2, 3)), WORDS), ShapeError, r"\(2, 3\); arcs join the tokens of one sequence"),
        (lambda: plot.mask_preview(np.ones((2, 3)), 2, 3), MaskError, "float64"),
        (lambda: plot.mask_preview(np.ones((2, 3), bool), 4, 3), ShapeError, r"\(2, 3\) .* to Q=4, K=3"),
        (lambda: plot.mask_preview(attnspec.causal(), 0, 3), ShapeError, "Q=0 queries and K=3"),
        (lambda: plot.heatmap(object()), ShapeError, r"shape \(\)"),
        (lambda: plot.heatmap(Opaque()), DTypeError, "a Opaque, which has no `tolist`"),
        (lambda: plot.heatmap(WEIGHTS).save("a.gif"), OptionError, r".html or .svg or .png, got 'a.gif'"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_was_passed_and_what_was_needed(call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_an_array_without_numbers_is_refused_in_words():
    torch = pytest.importorskip("torch")
    says = r"whose numbers cannot be read .* outside"
    with pytest.raises(DTypeError, match=rf"weights are a Tensor {says}"):
        plot.heatmap(torch.zeros(2, 3, device="meta"))
    with pytest.raises(DTypeError, match=rf"mask is a Tensor {says}"):
        plot.mask_preview(torch.ones(2, 3, device="meta", dtype=torch.bool), 2, 3)
    with pytest.raises(DTypeError, match=rf"tokens are a Tensor {says}"):
        plot.heatmap(WEIGHTS, torch.zeros(3, device="meta"))


@pytest.mark.parametrize(
    ("transform", "says", "draw"),
    [
        ("jit", "weights are", plot.heatmap),
        ("vmap", "weights are", plot.heatmap),
        ("grad", "weights are", plot.heatmap),
        ("jit", "mask is", lambda x: plot.mask_preview(x == 0, 2, 3)),
        ("vmap", "mask is", lambda x: plot.mask_preview(x == 0, 2, 3)),
    ],
)
def test_inside_a_transform_nothing_is_drawn(transform, says, draw):
    jax = pytest.importorskip("jax")
    x = jax.numpy.zeros((2, 2, 3) if transform == "vmap" else (2, 3))
    with pytest.raises(DTypeError, match=rf"{says} a \w+ whose numbers cannot be read .* outside"):
        getattr(jax, transform)(lambda x: draw(x) and x.sum())(x)


class Opaque:
    """What has an array's attributes and nothing to read it by."""

    dtype, shape, ndim = "float32", (1, 1), 2


def test_without_matplotlib_a_picture_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingModelError, match=r"attnspec\[plot\]"):
        plot.heatmap(WEIGHTS)


def test_drawing_leaves_pyplot_and_the_settings_alone():
    program = """
import sys, matplotlib
def settings():  # asking for the backend would import pyplot
    return {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != "backend"}
before = settings()
from attnspec import plot
plot.heatmap([[1.0]]).svg()
assert settings() == before
assert "matplotlib.pyplot" not in sys.modules
"""
    assert subprocess.run([sys.executable, "-W", "error", "-c", program]).returncode == 0


def test_attnspec_is_imported_without_it():
    program = "import sys, attnspec; sys.exit(any(n.startswith(('matplotlib', 'attnspec.plot')) for n in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
