"""Pictures of the specification that show computed numbers: scores, masks, dropout, activations, loss, tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
from drawing import BLUE, COLOURS, GREEN, ORANGE, bare, drawn, save

import attnspec
from attnspec import plot, random
from attnspec.plot_panels import cells, label
from attnspec.plot_picture import INK, Picture, blank, style
from attnspec.shapes import Span

WORDS = ["the", "fat", "cat", "sat", "down"]
Q, K = 4, 6
MASKS = {
    "causal()": attnspec.causal(),
    'causal(align="end")': attnspec.causal(align="end"),
    "window(1, 1)": attnspec.window(1, 1),
    "padding(4)": attnspec.padding(4),
    "segments": attnspec.segments([0, 0, 1, 1], [0, 0, 0, 1, 1, 1]),
    "causal & padding(2)": attnspec.causal() & attnspec.padding(2),
}


def masks() -> None:
    """Each panel is the picture that `plot.mask_preview` makes, painted into one figure."""
    with style():
        figure, axes = blank(6.6, 3.6, 2, 3)
        for one, (name, mask) in zip(axes, MASKS.items(), strict=True):
            seen = attnspec.attention_weights(np.zeros((Q, 1)), np.zeros((K, 1)), mask=mask) > 0
            paint(one, np.where(seen, BLUE, ""), name)
        axes[3].set(ylabel="query", xlabel="key")
    save("spec", "masks", Picture(figure, "Six masks of 4 queries and 6 keys"))


def paint(axes: Any, colours: np.ndarray, title: str) -> None:
    """Cells of the given colours; "" is none."""
    rows, columns = colours.shape
    number = {colour: (n + 0.5) / len(COLOURS) for n, colour in enumerate(COLOURS)}
    cells(axes, [[number.get(colour, 0) for colour in row] for row in colours.tolist()], list(COLOURS))
    label(axes, list(map(str, range(rows))), list(map(str, range(columns))), cell=1)
    axes.set(title=title)


def lines(axes: Any, title: str, xlabel: str) -> None:
    """A plot of curves, each of which is named in its own colour."""
    axes.set(title=title, xlabel=xlabel)
    bare(axes)
    axes.axhline(0, color=INK, linewidth=0.4)
    for line in axes.legend(frameon=False, labelcolor="linecolor", handlelength=0).get_lines():
        line.set_visible(False)  # of no length it would still be a dot


def softcap(axes: Any) -> None:
    s = np.linspace(-15, 15, 61)
    axes.plot(s, s, color=ORANGE, linewidth=1, linestyle="--", label="without")
    axes.plot(s, 5 * np.tanh(s / 5), color=BLUE, label="softcap=5")
    axes.set(ylim=(-9, 9))
    lines(axes, "softcap", "scale * (q . k)")


def alibi(axes: Any) -> None:
    positions = np.arange(13)
    zeros = np.zeros((2, 13, 1))
    # Scores of 0 and one softmax away: the log of the weights is the bias, up to a constant that lse has.
    weights = attnspec.attention_weights(zeros, zeros, bias=attnspec.alibi(2))
    bias = np.log(weights[:, 12]) - np.log(weights[:, 12, 12:])
    for h, (row, colour) in enumerate(zip(bias, COLOURS, strict=False)):
        axes.plot(positions, row, ".-", color=colour, label=f"head {h}")
    lines(axes, "alibi(2), query 12", "key")


def dropout() -> None:
    rng = random.key(3)
    x = random.normal(rng, (2, 5, 8), like=np.zeros(1))
    p = attnspec.attention_weights(x[0], x[1], scale=0.2)
    rate = 0.25
    kept = random.bernoulli(rng, 1 - rate, p.shape, like=p)
    titles = ["weights", f"after dropout, rate {rate}"]
    save("spec", "dropout", plot.grid([p, np.where(kept, p / (1 - rate), 0)], WORDS, titles=titles))


def activations(axes: Any) -> None:
    x = np.linspace(-4, 4, 81)
    own = attnspec.FeedForwardParams(np.ones((1, 1)), np.ones((1, 1)))
    for name, colour in zip(("relu", "gelu", "gelu_tanh", "silu"), COLOURS, strict=True):
        params = attnspec.FeedForwardParams(own.w_in, own.w_out, activation=name)
        dashes = "--" if name == "gelu_tanh" else "-"
        y = attnspec.feed_forward(params, x[:, None])[:, 0]
        axes.plot(x, y, color=colour, linewidth=1.4, linestyle=dashes, label=name)
    lines(axes, "", "x")


def loss(axes: Any) -> None:
    margin = np.linspace(-5, 5, 51)
    logits = np.stack([margin, np.zeros_like(margin)], axis=-1)
    labels = np.zeros(len(margin), dtype="int64")
    value, pullback = attnspec.vjp(lambda z: attnspec.cross_entropy(z, labels), logits)
    (slope,) = pullback(np.ones_like(value))
    axes.plot(margin, value, color=BLUE, label="loss")
    axes.plot(margin, slope[:, 0], color=ORANGE, label="its slope")
    lines(axes, "", "logit of the right class less that of the other")


def tiles(axes: Any) -> None:
    n, size = 12, 4
    rule = attnspec.causal()
    colours = np.full((n, n), "", dtype="U7")
    for i in range(0, n, size):
        for j in range(0, n, size):
            q, k = (Span(at, size, n, np.arange(at, at + size), (at, at + size)) for at in (i, j))
            status = rule.status(q, k)
            seen = rule.tile(q, k, xp=np, device=None)
            if status != "none":
                colours[i : i + size, j : j + size] = np.where(seen, BLUE if status == "all" else GREEN, "")
            axes.text(j + size / 2, i + size / 2, status, ha="center", va="center", zorder=3, size=11)
    paint(axes, colours, "")
    for edge in range(size, n, size):
        axes.axhline(edge, color=INK, linewidth=1.4)
        axes.axvline(edge, color=INK, linewidth=1.4)
    axes.set(xlabel="key", ylabel="query")


def shards(axes: Any, title: str, worker_of_row: list[int]) -> None:
    n = len(worker_of_row)
    seen = np.tri(n, dtype=bool)
    owner = np.asarray(COLOURS, dtype="U7")[worker_of_row][:, None]
    paint(axes, np.where(seen, owner, ""), title)
    for w, colour in enumerate(COLOURS):
        pairs = seen[np.asarray(worker_of_row) == w].sum()
        axes.text(n - 0.4, 1 + 1.3 * w, f"worker {w}: {pairs} pairs", color=colour, ha="right", va="center")
    axes.set(xlabel="key", ylabel="query")


def gradients() -> None:
    n, bad = 5, 2
    q, k, v, g = random.normal(random.key(0), (4, n, 3), like=np.zeros(1))
    k[bad, 0] = np.nan
    _, pullback = attnspec.vjp(lambda *x: attnspec.attention(*x, mask=attnspec.causal()), q, k, v)
    panels = {"visible": np.where(np.tri(n, dtype=bool), np.where(np.arange(n) == bad, ORANGE, BLUE), "")}
    for name, gradient in zip(("dq", "dk", "dv"), pullback(g), strict=True):
        panels[name] = np.where(np.isnan(gradient), ORANGE, BLUE)
    with style():
        figure, axes = blank(6.6, 2.0, 1, 4)
        for one, (title, colours) in zip(axes, panels.items(), strict=True):
            paint(one, colours, title)
            one.set(xlabel="key" if title == "visible" else "width")
        axes[0].set(ylabel="query")
    save("spec", "gradients", Picture(figure, "Which gradients a key that is NaN makes NaN"))


def cache() -> None:
    steps = {"prefill": (0, 4), "step": (4, 1), "next step": (5, 1)}
    with style():
        figure, axes = blank(7.2, 1.9, 1, 3)
        for one, (name, (length, rows)) in zip(axes, steps.items(), strict=True):
            seen = attnspec.attention_weights(
                np.zeros((rows, 1)), np.zeros((8, 1)), mask=attnspec.causal(length) & attnspec.padding(length + rows)
            )
            paint(one, np.where(seen > 0, BLUE, ""), name)
            one.set_yticks([i + 0.5 for i in range(rows)], range(length, length + rows))
        axes[0].set(ylabel="position")
        axes[1].set(xlabel="row of the cache")
    save("spec", "cache", Picture(figure, "A prefill and two decode steps as masks over a cache"))


if __name__ == "__main__":
    save("spec", "scores", drawn("A softcap, and ALiBi", (6.6, 2.6), softcap, alibi))
    masks()
    dropout()
    save("spec", "feed_forward", drawn("Four activations", (4.6, 2.8), activations))
    save("spec", "loss", drawn("Cross-entropy of two classes", (4.6, 2.8), loss))
    save("spec", "tiles", drawn("A causal call in tiles", (3.4, 3.4), tiles))
    in_order = [row // 4 for row in range(16)]
    zigzag = [min(row // 2, 7 - row // 2) for row in range(16)]
    both = (lambda axes: shards(axes, "in order", in_order), lambda axes: shards(axes, "zigzag", zigzag))
    save("spec", "shards", drawn("Causal attention on 4 workers", (7.4, 3.7), *both))
    gradients()
    cache()
