"""Large pictures of `attnspec.plot`: as many parts as can be seen, no larger than can be looked at."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.collections import LineCollection

import attnspec
from attnspec import plot
from attnspec.errors import DTypeError, OptionError
from attnspec.plot_panels import LARGEST


def parts(picture):
    """Everything that is drawn; ticks are made when they are asked for."""
    return len(picture.figure.findobj())


def lines(axes):
    return sum(len(one.get_segments()) for one in axes.collections if isinstance(one, LineCollection))


def test_the_lines_between_cells_are_one_part_that_the_layout_does_not_measure():
    (axes,) = plot.heatmap(np.full((4, 5), 0.2)).figure.axes
    (one,) = axes.collections
    assert lines(axes) == 5 + 6
    assert not one.get_in_layout()
    assert not axes.lines


def test_numbers_are_not_measured_either():
    (axes,) = plot.heatmap(np.full((4, 5), 0.2)).figure.axes
    assert len(axes.texts) == 20
    assert not any(one.get_in_layout() for one in axes.texts)


def test_cells_that_are_too_small_have_no_lines():
    (axes,) = plot.heatmap(np.full((200, 200), 0.005)).figure.axes
    assert not axes.collections


def test_the_parts_of_a_picture_do_not_grow_with_the_sequence():
    assert parts(plot.heatmap(np.zeros((1024, 1024)))) < 1.5 * parts(plot.heatmap(np.zeros((256, 256))))


def test_inner_panels_of_a_grid_have_no_names():
    axes = plot.grid(np.full((2, 3, 4, 5), 0.2)).figure.axes
    assert [len(one.get_yticks()) for one in axes] == [4, 0, 0, 4, 0, 0]
    assert [len(one.get_xticks()) for one in axes] == [0, 0, 0, 5, 5, 5]
    below = plot.grid(np.full((3, 4, 5), 0.2), columns=2).figure.axes
    assert [len(one.get_xticks()) for one in below[:3]] == [0, 5, 5]


def test_a_mask_that_differs_in_batch_and_heads_has_a_row_for_each_of_the_batch():
    axes = plot.mask_preview(np.ones((2, 3, 4, 5), bool), 4, 5).figure.axes
    assert (axes[0].get_gridspec().nrows, axes[0].get_gridspec().ncols) == (2, 3)
    assert [len(one.get_yticks()) for one in axes] == [4, 0, 0, 4, 0, 0]


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plot.heatmap(np.zeros((512, 3))),
        lambda: plot.heatmap(np.zeros((3, 512)), title="a title " * 40),
        lambda: plot.heatmap(np.zeros((3, 3)), ["long word " * 40] * 3),
        lambda: plot.grid(np.zeros((6, 12, 64, 64)), ["twelve chars"] * 64),
        lambda: plot.grid(np.zeros((64, 5, 7))),
        lambda: plot.mask_preview(np.ones((8, 12, 16, 16), bool), 16, 16),
        lambda: plot.mask_preview(attnspec.padding(list(range(1, 65))), 3, 64),
        lambda: plot.arcs(np.eye(40), ["a long word"] * 40),
    ],
)
def test_no_picture_is_larger_than_can_be_looked_at(draw):
    assert max(draw().figure.get_size_inches()) <= LARGEST


def test_a_panel_that_would_be_too_small_is_refused():
    with pytest.raises(OptionError, match=r"1600 panels in 40 columns .* fewer"):
        plot.grid(np.zeros((40, 40, 2, 2)))
    with pytest.raises(OptionError, match=r"80 tokens .* `plot.heatmap`"):
        plot.arcs(np.eye(80), ["a"] * 80)


@pytest.mark.parametrize("columns", [0, -1, 1.5, True, "2"])
def test_columns_are_a_whole_number_from_1(columns):
    with pytest.raises((OptionError, DTypeError), match=r"columns.*whole number"):
        plot.grid(np.zeros((2, 3, 3)), columns=columns)


def test_more_columns_than_panels_leave_no_room_empty():
    assert len(plot.grid(np.zeros((2, 3, 3)), columns=100).figure.axes) == 2


@pytest.mark.parametrize("Q", [4.0, True, None, "4"])
def test_a_mask_is_drawn_for_whole_numbers_of_queries_and_keys(Q):
    with pytest.raises(DTypeError, match=r"Q=.*whole number"):
        plot.mask_preview(attnspec.causal(), Q, 4)
    with pytest.raises(DTypeError, match=r"K=.*whole number"):
        plot.mask_preview(attnspec.causal(), 4, Q)
    assert plot.mask_preview(attnspec.causal(), np.int64(4), 4).label.startswith("Mask of 4 queries")
