"""Pictures of attention: heatmaps, grids of heads and layers, masks, arcs between tokens.

Needs matplotlib (`pip install 'attnspec[plot]'`), and `import attnspec` does not import it. Weights and masks may be
arrays of any framework, on any device, or nested lists. Colours are matplotlib's viridis, which all kinds of sight can
read, and mean the same in every picture: from 0 (dark) to 1 (bright); an exact 0 has no colour.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from ._compat import Array, namespace
from .backend import choose
from .errors import OptionError, ShapeError
from .host import beside
from .masks import Mask, as_mask
from .plot_panels import cells, label, number, panels_of
from .plot_picture import VISIBLE, Picture, blank, style
from .plot_values import Rows, between_0_and_1, names_of, nested, shape_of
from .shapes import Span, broadcasts_to
from .struct import arrays_in

__all__ = ["Picture", "arcs", "grid", "heatmap", "mask_preview", "number"]

READABLE = 0.4  # inches: in smaller cells there is no room for a number
WIDEST = 12  # inches: more is hard to read on a page


def heatmap(
    weights: Any,
    tokens: Sequence[str] | None = None,
    *,
    keys: Sequence[str] | None = None,
    title: str = "",
    down: str = "looks",
    across: str = "at",
) -> Picture:
    """The weights of one head: a row for each query, a column for each key, each number on its colour.

    Parameters
    ----------
    weights : (Q, K), an array of any framework or nested lists
        Numbers between 0 and 1, as `attnspec.attention_weights` gives them.
    tokens : Q strings
        The names of the rows, and of the columns unless `keys` are given; numbers if left out.
    keys : K strings
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
        For other shapes, numbers outside 0 .. 1, what is no array, and without matplotlib.

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
    tokens: Sequence[str] | None = None,
    *,
    keys: Sequence[str] | None = None,
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
        Panels beside each other. If left out, H for layers, else at most 4 and as many as fit a page.

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
    rows_of, columns_of = names_of(tokens, keys, Q, K)
    cell = max(0.12, min(0.62, (12 if len(panels) == 1 else 3.0 if len(panels) <= 4 else 1.8) / max(Q, K)))
    width, height = cell * K + 0.9, cell * Q + 1.0
    if columns is None:
        fit = max(1, min(4, int(WIDEST / width)))  # then as even as it goes
        columns = outer[-1] if len(outer) == 2 else math.ceil(len(panels) / math.ceil(len(panels) / fit))
    with style():
        figure, axes = panels_of(len(panels), columns, width, height)
        for n, (one, title, head) in enumerate(zip(axes, titles, panels, strict=True)):
            cells(one, head, "viridis", numbers=cell > READABLE)
            one.set_title(title)
            label(one, rows_of, columns_of, cell, left=n % columns == 0, bottom=n + columns >= len(panels))
        axes[0].set_ylabel(down)
        axes[len(axes) - 1].set_xlabel(across)
    heads = f"{len(panels)} heads, " if len(panels) > 1 else ""
    about = f"Attention weights of {heads}{Q} queries over {K} keys"
    return Picture(figure, f"{about}: {', '.join(filter(None, titles))}" if any(titles) and not heads else about)


def mask_preview(
    mask: Mask | Array,
    Q: int,
    K: int,
    *,
    tokens: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    title: str = "",
) -> Picture:
    """Which keys each query may attend to: a filled cell is visible, an empty one is not.

    A mask that differs along the batch or the heads gets a panel for each, with its place as the title.

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
    errors.MaskError, errors.ShapeError, errors.MissingModelError
        For what is no mask, does not fit Q and K, and without matplotlib.

    Examples
    --------
    >>> import attnspec
    >>> from attnspec import plot
    >>> plot.mask_preview(attnspec.causal() & attnspec.padding([4, 2]), Q=4, K=4).label
    'Mask of 4 queries and 4 keys, 17 of 32 pairs visible'
    """
    seen = _visible(mask, Q, K)
    rows_of, columns_of = names_of(tokens, keys, Q, K)
    cell = max(0.12, min(0.3, 3.6 / max(Q, K)))
    with style():
        figure, axes = panels_of(len(seen), min(len(seen), 4), cell * K + 0.9, cell * Q + 0.9)
        for one, (place, pairs) in zip(axes, seen, strict=True):
            cells(one, pairs, [VISIBLE, VISIBLE])
            one.set_title(", ".join(filter(None, (title, place))))
            label(one, rows_of, columns_of, cell)
        axes[0].set_ylabel("query")
        axes[len(axes) - 1].set_xlabel("key")
    visible = sum(pair for _, pairs in seen for row in pairs for pair in row)
    about = f"Mask of {Q} queries and {K} keys, {visible:.0f} of {len(seen) * Q * K} pairs visible"
    return Picture(figure, f"{about}: {title}" if title else about)


def arcs(weights: Any, tokens: Sequence[str], *, least: float = 0.05, title: str = "") -> Picture:
    """Which token looks at which: an arc from each query to its keys, as thick and as dark as the weight.

    Arcs above the words look back, arcs below look ahead, a dot is a word that looks at itself.

    Parameters
    ----------
    weights : (Q, Q)
        Of one sequence that attends to itself.
    tokens : Q strings
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
    words, _ = names_of(tokens, None, *shape)
    # An arc over n words is 0.275 n high.
    back, ahead = (max((0.275 * side * (i - j) for i, j, _ in _linked(values, least)), default=0) for side in (1, -1))
    low, high = -0.35 - max(0, ahead), 0.4 + max(0, back)
    with style():
        figure, (axes,) = blank(0.8 * len(words) + 0.4, 0.8 * (high - low) + 0.3)
        for j, word in enumerate(words):
            axes.text(j, 0, word, ha="center", va="center")
        for i, j, weight in _linked(values, least):
            _arc(axes, i, j, weight)
        axes.set_title(title)
        axes.set(xlim=(-0.6, len(words) - 0.4), ylim=(low, high), aspect="equal")
        axes.axis("off")
    about = f"Which of {len(words)} tokens looks at which"
    return Picture(figure, f"{about}: {title}" if title else about)


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


def _visible(mask: Mask | Array, Q: int, K: int) -> list[tuple[str, Rows]]:
    """The pairs of the mask, (place, 0s and 1s) for each place of its leading axes."""
    if Q < 1 or K < 1:
        msg = f"a mask of Q={Q} queries and K={K} keys has no pair to show. Both need to be 1 or more."
        raise ShapeError(msg)
    rule = as_mask(mask)
    held = list(arrays_in("mask", rule).values())
    like = held[0] if held else choose("numpy").asarray(0)
    xp = namespace(like)
    q, k = (Span(0, n, n, xp.arange(n, **beside(like)), (0, n)) for n in (Q, K))
    tile = rule.tile(q, k, xp=xp, device=beside(like).get("device"))
    if not broadcasts_to(tile.shape[-2:], (Q, K)):
        msg = f"the mask is {tuple(tile.shape[-2:])} in its last axes, which does not broadcast to Q={Q}, K={K}."
        raise ShapeError(msg)
    lead = tuple(tile.shape[:-2])
    pairs = nested(xp.astype(xp.reshape(xp.broadcast_to(tile, (*lead, Q, K)), (-1, Q, K)), xp.float32))
    counted = [n for n, length in enumerate(lead) if length > 1]
    places = [str([index[n] for n in counted]) if counted else "" for index in product(*map(range, lead))]
    return list(zip(places, pairs, strict=True))
