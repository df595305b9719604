"""What stacked layers connect, measured: change one word's vector, run the layers, see whose vectors move.

Under a narrow window a layer lets a word see itself and one neighbour. Two layers reach two words back,
because the neighbour has seen its own neighbour; the residual path keeps what was there. So influence spreads
by one word a layer.
"""

from __future__ import annotations

from typing import Any

from .. import LayerParams, random, transformer_layer, window
from .._compat import Array, namespace
from ..backend import Backend
from .compare import Work
from .heatmap import Panel

__all__ = ["measure", "notes", "panels"]

M, HEADS, HIDDEN = 16, 2, 32
LEFT = 1
SEED = 7
MOST_PANELS = 4


def measure(words: int, layers: int, backend: Backend, dtype: str, device: Any) -> Work:
    """The work whose result is `(N, Q, K)`: how far, after N layers, word i moves when word j is changed.

    Each change is a call of its own and of the same shape, so that a word which the change cannot reach stays
    the same to the bit, and its entry is exactly 0.
    """
    for_x, for_change, *for_layers = random.split(random.key(SEED), 2 + layers)
    like = backend.asarray([0.0], dtype=dtype, device=device)
    x = random.normal(for_x, (words, M), dtype=dtype, like=like)
    change = random.normal(for_change, (M,), dtype=dtype, like=like)
    stack = [
        LayerParams.init(rng, model_width=M, heads=HEADS, hidden_width=HIDDEN, order="pre", dtype=dtype, like=like)
        for rng in for_layers
    ]
    xp = namespace(x)

    def work() -> tuple[Array, ...]:
        unchanged = _run(stack, x)
        moved = []
        for j in range(words):
            one = backend.asarray([[float(i == j)] for i in range(words)], dtype=dtype, device=device)
            changed = _run(stack, x + one * change)
            moved.append([xp.max(xp.abs(a - b), axis=-1) for a, b in zip(changed, unchanged, strict=True)])
        depths = [xp.stack([column[n] for column in moved], axis=-1) for n in range(layers)]
        return (xp.stack(depths, axis=0),)

    return work


def panels(words: list[str], influence: list[list[list[float]]]) -> list[Panel]:
    """The first, the last and some depths between, each row as shares of what moves that word."""
    last = len(influence)
    shown = sorted({1 + round(n * (last - 1) / (MOST_PANELS - 1)) for n in range(MOST_PANELS)})
    return [
        Panel(
            f"after {depth} layer{'s' * (depth > 1)}: {_connected(influence[depth - 1])} pairs connected",
            words,
            words,
            [[value / sum(row) for value in row] for row in influence[depth - 1]],
            down="moves",
            across="when this word is changed",
        )
        for depth in shown
    ]


def notes(words: list[str], influence: list[list[list[float]]]) -> list[str]:
    """How the connections fill up, and when the last word first depends on the first one."""
    possible = len(words) * (len(words) + 1) // 2
    counts = ", ".join(str(_connected(depth)) for depth in influence)
    lines = [
        f"A layer lets a word see itself and the word before it: window({LEFT}, 0). Each word was changed, "
        "one at a time, and every layer's output compared to the bit.",
        f"Of {possible} pairs (a word and one at or before it), connected after 1, 2, ... layers: {counts}.",
    ]
    first = next((n for n, depth in enumerate(influence, 1) if depth[-1][0] > 0), None)
    if first is None:
        lines.append(f'"{words[-1]}" does not depend on "{words[0]}" after {len(influence)} layers.')
    else:
        lines.append(f'"{words[-1]}" depends on "{words[0]}" from layer {first} on.')
    return lines


def _connected(influence: list[list[float]]) -> int:
    """How many pairs of words are connected: the change of one moved the other."""
    return sum(value > 0 for row in influence for value in row)


def _run(stack: list[LayerParams], x: Array) -> list[Array]:
    """The state after each layer."""
    states = []
    for layer in stack:
        x = transformer_layer(layer, x, mask=window(LEFT, 0))
        states.append(x)
    return states
