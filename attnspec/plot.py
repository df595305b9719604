"""Pictures of attention: heatmaps, grids of heads and layers, masks, arcs between tokens.

Needs matplotlib (`pip install 'attnspec[plot]'`), and `import attnspec` does not import it. Weights and masks may be
arrays of any framework, on any device, or nested lists. Colours are matplotlib's viridis, which all kinds of sight can
read, and mean the same in every picture: from 0 (dark) to 1 (bright); an exact 0 has no colour.

Names and titles are written as they are, a dollar as a dollar; control characters as in Python (`\\x1b`), and an
ellipsis ends what is too long. No picture is wider or higher than 30 inches: where there are many cells they are small,
and small cells have neither numbers nor lines between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from ._compat import Array
from .errors import OptionError, ShapeError
from .masks import Mask
from .plot_panels import LARGER, LARGEST, LINE, TITLE, beside_each_other, number, sheet
from .plot_picture import INK, VISIBLE, Picture, blank, settle, style
from .plot_values import (
    Rows,
    between_0_and_1,
    names_of,
    nested,
    room,
    shape_of,
    shortened,
    titled,
    visible_pairs,
    whole,
)

__all__ = ["Picture", "arcs", "grid", "heatmap", "mask_preview", "number"]

APART, SQUEEZED = 0.8, 0.5  # inches from word to word in `arcs`: of short words, and at least


def heatmap(
    weights: Any,
    tokens: Sequence[str | int] | Array | None = None,
    *,
    keys: Sequence[str | int] | Array | None = None,
    title: str = "",
    down: str = "looks",
    across: str = "at",
) -> Picture:
    """The weights of one head: a row for each query, a column for each key, each number on its colour.

    Parameters
    ----------
    weights : (Q, K), an array of any framework or nested lists
        Numbers between 0 and 1, as `attnspec.attention_weights` gives them.
    tokens : Q strings, or numbers of tokens
        The names of the rows, and of the columns unless `keys` are given; 0, 1, ... if left out.
    keys : K strings, or numbers of tokens
    title : str
    down, across : str
        What is written beside the rows and below the columns.

    Returns
    -------
    Picture
        With `save(path)` for .svg, .png and .html.

    Raises
    ------
    errors.ShapeError, errors.OptionError, errors.DTypeError, errors.MissingModelError
        For other shapes, numbers outside 0 .. 1 or that cannot be read (inside `jit`), panels that are too many for
        one picture, and without matplotlib.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> from attnspec import plot
    >>> weights = attnspec.attention_weights(np.eye(3), np.eye(3), mask=attnspec.causal())
    >>> plot.heatmap(weights, ["the", "fat", "cat"]).label
    'Attention weights of 3 queries over 3 keys'
    """
    values = nested(weights)
    if len(shape_of(values)) != 2:
        msg = f"weights have shape {shape_of(values)}; one head is (Q, K). Take one head, or use `plot.grid`."
        raise ShapeError(msg)
    return grid([values], tokens, keys=keys, titles=[title], down=down, across=across)


def grid(
    weights: Any,
    tokens: Sequence[str | int] | Array | None = None,
    *,
    keys: Sequence[str | int] | Array | None = None,
    titles: Sequence[str] | None = None,
    columns: int | None = None,
    down: str = "looks",
    across: str = "at",
) -> Picture:
    """The weights of many heads side by side, those of several layers below each other.

    Parameters
    ----------
    weights : (H, Q, K) or (layers, H, Q, K)
        Arrays of any framework or nested lists.
    tokens, keys, down, across
        As in `heatmap`, for all panels.
    titles : a string for each panel
        "head 0", or "layer 0, head 0", and so on, if left out.
    columns : int
        Panels beside each other. If left out, H for layers, else at most 4 and as many as fit a page; of very many
        panels a square.

    Returns
    -------
    Picture

    Raises
    ------
    As `heatmap`.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> from attnspec import plot
    >>> q = k = np.zeros((2, 3, 4, 8))  # 2 layers of 3 heads
    >>> plot.grid(attnspec.attention_weights(q, k), ["a", "cat", "sat", "down"]).label
    'Attention weights of 6 heads, 4 queries over 4 keys'
    """
    values = nested(weights)
    shape = shape_of(values)
    if len(shape) not in (3, 4) or 0 in shape:
        msg = f"weights have shape {shape}; heads are (H, Q, K), layers (layers, H, Q, K), none of them empty."
        raise ShapeError(msg)
    *outer, Q, K = shape
    panels = values if len(outer) == 1 else [head for layer in values for head in layer]
    for head in panels:
        between_0_and_1(head)
    if titles is None:
        titles = [_place(("layer", "head")[-len(outer) :], index) for index in product(*map(range, outer))]
    if len(titles) != len(panels):
        msg = f"{len(panels)} panels need a title each, got {len(titles)}."
        raise OptionError(msg)
    titles = [titled(title) for title in titles]
    names = names_of(tokens, keys, Q, K)
    cell = max(0.12, min(0.62, (12 if len(panels) == 1 else 3.0 if len(panels) <= 4 else 1.8) / max(Q, K)))
    if columns is None:
        columns = outer[-1] if len(outer) == 2 else beside_each_other(len(panels), cell * K)
    elif whole("columns", columns) < 1:
        msg = f"columns={columns!r}: a whole number from 1 is needed."
        raise OptionError(msg)
    layout = sheet(columns, cell, names, titles)
    with style(formulas=False):
        figure, axes = layout.panels()
        for one, head in zip(axes, panels, strict=True):
            layout.fill(one, head, "viridis", numbers=True)
        axes[0].set_ylabel(titled(down))
        axes[-1].set_xlabel(titled(across))
        if layout.long:
            settle(figure)
    heads = f"{len(panels)} heads, " if len(panels) > 1 else ""
    about = f"Attention weights of {heads}{Q} queries over {K} keys"
    return Picture(figure, _described(about, "" if heads else titles[0]))


def mask_preview(
    mask: Mask | Array,
    Q: int,
    K: int,
    *,
    tokens: Sequence[str | int] | Array | None = None,
    keys: Sequence[str | int] | Array | None = None,
    title: str = "",
) -> Picture:
    """Which keys each query may attend to: a filled cell is visible, an empty one is not.

    A mask that differs along the batch or the heads gets a panel for each, with its place as the title; if along both,
    the heads stand beside each other.

    Parameters
    ----------
    mask : Mask, or boolean array broadcast from the right to (..., H, Q, K)
        True = may attend.
    Q, K : int
        Queries and keys.
    tokens, keys
        As in `heatmap`.
    title : str

    Returns
    -------
    Picture

    Raises
    ------
    errors.MaskError, errors.ShapeError, errors.DTypeError, errors.OptionError, errors.MissingModelError
        For what is no mask, does not fit Q and K, cannot be read (inside `jit`), is too much for one picture, and
        without matplotlib.

    Examples
    --------
    >>> import attnspec
    >>> from attnspec import plot
    >>> plot.mask_preview(attnspec.causal() & attnspec.padding([4, 2]), Q=4, K=4).label
    'Mask of 4 queries and 4 keys, 17 of 32 pairs visible'
    """
    Q, K, title = whole("Q", Q), whole("K", K), titled(title)
    seen = visible_pairs(mask, Q, K)
    cell = max(0.12, min(0.3, 3.6 / max(Q, K)))
    titles = [", ".join(filter(None, (title, str([*place]) if place else ""))) for place, _ in seen]
    heads = {place[-1] for place, _ in seen if len(place) > 1}
    columns = len(heads) or beside_each_other(len(seen), cell * K)
    layout = sheet(columns, cell, names_of(tokens, keys, Q, K), titles)
    with style(formulas=False):
        figure, axes = layout.panels()
        for one, (_, pairs) in zip(axes, seen, strict=True):
            layout.fill(one, pairs, [VISIBLE, VISIBLE])
        axes[0].set_ylabel("query")
        axes[-1].set_xlabel("key")
        if layout.long:
            settle(figure)
    visible = sum(pair for _, pairs in seen for row in pairs for pair in row)
    about = f"Mask of {Q} queries and {K} keys, {visible:.0f} of {len(seen) * Q * K} pairs visible"
    return Picture(figure, _described(about, title))


def arcs(weights: Any, tokens: Sequence[str | int] | Array, *, least: float = 0.05, title: str = "") -> Picture:
    """Which token looks at which: an arc from each query to its keys, as thick and as dark as the weight.

    Arcs above the words look back, arcs below look ahead, a dot is a word that looks at itself. "nan" stands above a
    word some of whose weights are not numbers.

    Parameters
    ----------
    weights : (Q, Q)
        Of one sequence that attends to itself.
    tokens : Q strings, or numbers of tokens
    least : float
        Smaller weights are not drawn.
    title : str

    Returns
    -------
    Picture

    Raises
    ------
    As `heatmap`.

    Examples
    --------
    >>> from attnspec import plot
    >>> plot.arcs([[1.0, 0.0], [0.75, 0.25]], ["the", "cat"]).label
    'Which of 2 tokens looks at which'
    """
    values = nested(weights)
    shape = shape_of(values)
    if len(shape) != 2 or shape[0] != shape[1] or not shape[0]:
        msg = f"weights have shape {shape}; arcs join the tokens of one sequence, (Q, Q). Otherwise use `plot.heatmap`."
        raise ShapeError(msg)
    between_0_and_1(values)
    words, title = [shortened(word) for word in names_of(tokens, None, *shape)[0]], titled(title)
    unit = min(max(APART, room(words) + 0.15), (LARGEST - 0.4) / len(words))
    if unit < SQUEEZED:
        msg = f"{len(words)} tokens are more than fit a picture of {LARGEST} inches. Take fewer, or `plot.heatmap`."
        raise OptionError(msg)
    words = [shortened(word, unit - 0.1) for word in words]
    width = max(unit * len(words), min(TITLE, LARGER * room([title])))
    # An arc over n words is 0.275 n high.
    back, ahead = (max((0.275 * side * (i - j) for i, j, _ in _linked(values, least)), default=0) for side in (1, -1))
    low, high = -0.35 - max(0, ahead), 0.4 + max(0, back)
    with style(formulas=False):
        figure, (axes,) = blank(width + 0.4, unit * (high - low) + 0.3 + LINE * title.count("\n"))
        for j, word in enumerate(words):
            axes.text(j, 0, word, ha="center", va="center")
            if any(weight != weight for weight in values[j]):
                axes.text(j, 0.24, "nan", ha="center", va="center", color=INK, fontsize=7)
        for i, j, weight in _linked(values, least):
            _arc(axes, i, j, weight)
        axes.set_title(shortened(title, width / LARGER))
        axes.set(xlim=(-0.6, len(words) - 0.4), ylim=(low, high), aspect="equal")
        axes.axis("off")
    about = f"Which of {len(words)} tokens looks at which"
    return Picture(figure, _described(about, title))


def _linked(values: Rows, least: float) -> Iterator[tuple[int, int, float]]:
    for i, row in enumerate(values):
        for j, weight in enumerate(row):
            if weight >= least:
                yield i, j, weight


def _arc(axes: Any, i: int, j: int, weight: float) -> None:
    """Half an ellipse from word i, with an arrow's head at word j."""
    if i == j:
        axes.plot([i], [0.24], marker="o", markersize=2 + 5 * weight, color=VISIBLE, alpha=0.4 + 0.6 * weight)
        return
    side = 1 if j < i else -1
    curve = {"arrowstyle": "-|>,head_length=0.3,head_width=0.15", "connectionstyle": "arc3,rad=0.55"}
    axes.annotate(
        "", (j, 0.14 * side), (i, 0.14 * side),
        arrowprops={**curve, "color": VISIBLE, "linewidth": 0.4 + 2.6 * weight, "alpha": 0.4 + 0.6 * weight,
                    "shrinkA": 0, "shrinkB": 0},
    )  # fmt: skip


def _place(axes: Sequence[str], index: Sequence[int]) -> str:
    return ", ".join(f"{axis} {n}" for axis, n in zip(axes, index, strict=True))


def _described(about: str, title: str) -> str:
    return f"{about}: {' '.join(title.split(chr(10)))}" if title else about
