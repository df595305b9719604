"""Words in the pictures of `attnspec.plot`: none breaks a file, is cut, or runs into its neighbour."""

from __future__ import annotations

import warnings
import xml.etree.ElementTree as ET
from itertools import pairwise

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

import attnspec
from attnspec import plot
from attnspec.backend import choose
from attnspec.errors import DTypeError, OptionError
from attnspec.plot_picture import style

SVG = "{http://www.w3.org/2000/svg}"
EYE = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
LONG = "Donaudampfschifffahrtsgesellschaftskapitän"


def texts(picture):
    return [text.text for text in ET.fromstring(picture.svg()).iter(f"{SVG}text")]


def boxes(picture):
    """Where the words of a picture lie once it is laid out, in pixels, and the figure's own box."""
    canvas = FigureCanvasAgg(picture.figure)
    with style():
        canvas.draw()
    (axes,) = picture.figure.axes
    beside = [axes.xaxis.label, axes.yaxis.label, *axes.get_yticklabels(), *axes.get_xticklabels()]
    words = [axes.title, *axes.texts, *(beside if axes.axison else ())]
    return {w: w.get_window_extent(canvas.get_renderer()) for w in words if w.get_text()}, picture.figure.bbox


def inside(lying, figure):
    corners = [corner for one in lying.values() for corner in (one.min, one.max)]
    return (np.asarray(corners) >= figure.min).all() and (np.asarray(corners) <= figure.max).all()


@pytest.mark.parametrize("draw", [plot.heatmap, plot.arcs])
def test_what_looks_like_a_formula_is_written_as_it_is(draw):
    words = ["$x", "$y$", "\\frac{"]
    assert {*words, "$\\frac{$"} <= {*texts(draw(EYE, words, title="$\\frac{$"))}


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("\x1b[0m", "\\x1b[0m"), ("\x00", "\\x00"), ("a\nb", "a\\nb"), ("\t", "\\t"), ("a\r\n", "a\\r\\n"),
        ("\x85\u2028", "\\x85\\u2028"), ("\ud800", "\\ud800"), ("\ufffe", "\\ufffe"), ("-->", "-->"),
        ("]]>&<", "]]>&<"), ("#010203", "#010203"), ("né", "né"), ("👨\u200d👩", "👨\u200d👩"),
    ],
)  # fmt: skip
def test_a_control_character_is_shown_and_breaks_no_file(tmp_path, word, shown):
    for picture in (plot.heatmap(EYE, [word, "b", "c"]), plot.arcs(EYE, [word, "b", "c"])):
        assert shown in texts(picture)
        page = picture.save(tmp_path / "a.html").read_text("utf-8")
        ET.fromstring(page[page.index("<svg") : page.index("</body>")])
    titled = plot.heatmap(EYE, title=f"of {word}")
    assert ET.fromstring(titled.svg()).get("aria-label").endswith(titled.label)
    assert not any(ord(letter) < 32 or letter in "\x85\ud800\ufffe" for letter in titled.label)


def test_a_title_may_have_several_lines():
    picture = plot.heatmap(EYE, title="above\nbelow")
    assert texts(picture)[-2:] == ["above", "below"]
    assert inside(*boxes(picture))


@pytest.mark.parametrize("made", [list, tuple, np.asarray, "torch", "jax"])
def test_numbers_of_tokens_are_names(made):
    ids = [101, 5, 102]
    if isinstance(made, str):
        pytest.importorskip(made)
        made = choose(made).asarray
    named = ["101", "5", "102"]
    assert plot.heatmap(EYE, made(ids)).svg() == plot.heatmap(EYE, named).svg()
    assert plot.heatmap(EYE, keys=made(ids)).svg() == plot.heatmap(EYE, keys=named).svg()
    assert plot.arcs(EYE, made(ids)).svg() == plot.arcs(EYE, named).svg()


def test_no_names_are_not_the_names_of_nothing():
    with pytest.raises(OptionError, match="keys are 0 names"):
        plot.heatmap(EYE, keys=[])
    with pytest.raises(DTypeError, match="tokens are of type int"):
        plot.heatmap(EYE, 3)


@pytest.mark.parametrize("word", ["ordinary", "extraordinarily", LONG])
def test_words_stay_inside_the_picture(word):
    title = f"The head of layer 11 that looks at {word} and at whatever comes after it"
    for names in ({"tokens": [word] * 3}, {"keys": ["a", word, "c"]}, {"tokens": ["a", word, "c"], "title": title}):
        assert inside(*boxes(plot.heatmap(EYE, **names)))


@pytest.mark.parametrize("word", ["ordinary", "EXTRAORDINARILY", LONG])
def test_words_of_arcs_do_not_touch(word):
    picture = plot.arcs(EYE, [word] * 3, title=f"Who looks at {word}, and who does not look at {word}")
    lying, figure = boxes(picture)
    words = [box for text, box in lying.items() if text in picture.figure.axes[0].texts]
    assert len(words) == 3
    assert all(left.x1 < right.x0 for left, right in pairwise(words))
    assert inside(lying, figure)


def test_a_word_or_title_that_is_too_long_ends_with_an_ellipsis():
    picture = plot.heatmap(EYE, [LONG, "b", "c"], title=LONG * 4)
    *_, title = cut = [text for text in texts(picture) if text.endswith("…")]
    assert len(cut) == 3
    assert all((LONG * 4).startswith(text[:-1]) for text in cut)
    assert len(title) > len(cut[0]) > 20
    assert picture.label.endswith(LONG * 4)


def test_letters_that_the_font_lacks_are_left_to_the_reader_of_an_svg(tmp_path):
    words = ["猫", "ねこ", "😀"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert set(words) <= set(texts(plot.heatmap(EYE, words, title="注意")))
        plot.arcs(EYE, words).save(tmp_path / "a.html")
    with pytest.warns(UserWarning, match="missing from font"):
        plot.heatmap(EYE, words).save(tmp_path / "a.png")


def test_wide_letters_are_given_wider_room():
    widths = [plot.heatmap(EYE, [letter * 12] * 3).figure.get_figwidth() for letter in ("a", "猫")]
    assert widths[0] < widths[1]


@pytest.mark.parametrize(
    "settings",
    [{"font.size": 20}, {"axes.grid": True}, {"figure.dpi": 300, "savefig.bbox": "tight"}, {"text.usetex": True},
     {"lines.marker": "o", "image.origin": "lower", "axes.titlelocation": "left"}, {"svg.image_inline": False}],
    ids=lambda settings: next(iter(settings)),
)  # fmt: skip
def test_settings_of_the_user_change_no_picture(tmp_path, settings):
    def drawn(name):
        return [
            plot.heatmap(EYE, list("abc"), title="t").save(tmp_path / f"{name}.svg").read_bytes(),
            plot.heatmap(EYE, list("abc"), title="t").save(tmp_path / f"{name}.png").read_bytes(),
            plot.arcs(EYE, list("abc"), title="t").save(tmp_path / f"{name}.svg").read_bytes(),
            plot.mask_preview(attnspec.causal(), 2, 3, title="t").save(tmp_path / f"{name}.svg").read_bytes(),
        ]

    plain = drawn("plain")
    with matplotlib.rc_context(settings):
        assert drawn("set") == plain
        assert all(matplotlib.rcParams[name] == value for name, value in settings.items())
