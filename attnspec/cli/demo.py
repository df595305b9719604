"""`attnspec demo`: what attention looks at, on every backend."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console

from .. import minilm
from ..backend import Backend
from ..errors import OptionError
from ..reproducible import identically
from . import article_head, digests, stack
from .compare import Work, on_every_backend, tabulate
from .heatmap import Panel, save, show
from .learned_head import Mode, as_it_is
from .train import FEWER_STEPS, STEPS, School

__all__ = ["demo"]

SENTENCE = "the fat cat sat on the mat"
A_LITTLE = 0.005


class Model(StrEnum):
    """Whose head is shown."""

    article = "article"
    minilm = "minilm"


class _Exhibit(NamedTuple):
    """Something to compute on a backend, and how to show what came out of it."""

    prepare: Callable[[Backend, Any], Work]
    panels: Callable[..., list[Panel]]
    notes: Callable[..., list[Any]]
    waiting: AbstractContextManager[Any] | None = None  # what is shown until it is there


def demo(
    text: Annotated[str, typer.Argument(help="Words with spaces between them.")] = SENTENCE,
    model: Annotated[Model, typer.Option(help="The head built by hand, or one of all-MiniLM-L6-v2.")] = Model.article,
    layer: Annotated[int, typer.Option(help="With --model minilm; 0 is the first.")] = 0,
    head: Annotated[int, typer.Option(help="With --model minilm; 0 is the first.")] = 0,
    layers: Annotated[
        int | None, typer.Option("--stack", metavar="N", help="How N stacked layers connect words.")
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="Heads that learn what the built one does.")] = False,
    steps: Annotated[
        int | None, typer.Option(help=f"With --train; {STEPS}, with --reproducible {FEWER_STEPS}.", show_default=False)
    ] = None,
    reproducible: Annotated[
        bool, typer.Option("--reproducible", help="With --train: the same bits on every backend, and their digests.")
    ] = False,
    noun: Annotated[list[str] | None, typer.Option(help="A further noun for the built head; repeatable.")] = None,
    backend: Annotated[list[str] | None, typer.Option(help="Only this backend; repeatable.")] = None,
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    device: Annotated[str | None, typer.Option(help="As `attnspec backends` lists it.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Write the picture to this file too.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write the picture to this file too.")] = None,
) -> None:
    """Show which words a head looks at, computed on every installed backend, and how far these are apart."""
    if reproducible and not train:
        raise OptionError("--reproducible goes with --train. Leave it out: every demo ends with a reproducible result.")
    if train:
        if layers is not None or model is Model.minilm or noun:
            raise OptionError("--train has models and words of its own. Leave out --stack, --model and --noun.")
        steps = steps if steps is not None else FEWER_STEPS if reproducible else STEPS
        exhibit = _train(_words(text), steps, dtype, identically if reproducible else as_it_is)
    elif layers is not None:
        if model is Model.minilm:
            raise OptionError("--stack shows layers of its own. Leave out --stack, or --model minilm.")
        exhibit = _stack(_words(text), layers, dtype)
    elif model is Model.minilm:
        exhibit = _minilm(text, layer, head, dtype)
    else:
        exhibit = _article(_words(text), article_head.NOUNS | {word.lower() for word in noun or ()}, dtype)

    with exhibit.waiting or Console(stderr=True).status("running"):
        outcomes, refusals = on_every_backend(exhibit.prepare, backend or [], dtype, device)
        results = outcomes[0].results
        panels, notes = exhibit.panels(*results), exhibit.notes(*results)
        names = [outcome.backend for outcome in outcomes]
        same = [] if train else digests.everywhere(text.split(), names, dtype, device)

    console = Console(highlight=False)
    for panel in panels:
        show(console, panel)
        console.print()
    for note in notes:
        console.print(note, markup=False)
    console.print()
    console.print(tabulate(outcomes))
    for reason in refusals:
        console.print(str(reason), markup=False)
    for line in same:
        console.print(line, markup=False)
    for path in (svg, png):
        if path is not None:
            save(path, panels)


def _words(text: str) -> list[str]:
    words = text.split()
    if not words:
        raise OptionError(f"the demo needs words, got {text!r}.")
    return words


def _article(words: list[str], nouns: frozenset[str], dtype: str) -> _Exhibit:
    """The head built by hand. Its heatmap has one more column: what the sink takes."""

    def prepare(backend: Backend, place: Any) -> Work:
        built = article_head.build(words, nouns, backend, dtype, place)
        return lambda: (built.weights(), built.outputs())

    def panels(weights: Any, outputs: Any) -> list[Panel]:
        rows = [[*row, max(0.0, 1.0 - sum(row))] for row in weights.tolist()]
        return [Panel("which words each word looks at", words, [*words, "(none)"], rows)]

    def notes(weights: Any, outputs: Any) -> list[str]:
        rows = weights.tolist()
        looking = [i for i, word in enumerate(words) if article_head.is_noun(word, nouns)]
        lines = [_looks(words, i, rows[i], outputs[i].tolist()) for i in looking]
        if not looking:
            lines.append("No noun that this head knows: name one with --noun, or try the default text.")
        most = max(rows[i][i] for i in range(len(words)))
        lines.append(f"A word looks at itself at most {most:.4f}: keeping what it was is the residual path's part.")
        return lines

    return _Exhibit(prepare, panels, notes)


def _looks(words: list[str], i: int, row: list[float], output: list[float]) -> str:
    """One noun: where it looks, most first, and which word its output is made of."""
    seen = sorted((j for j in range(i + 1) if row[j] > A_LITTLE), key=lambda j: -row[j])
    if not seen:
        return f'"{words[i]}" (word {i}) finds no article.'
    first, *others = (f'"{words[j]}" (word {j}, {row[j]:.2f})' for j in seen)
    also = f" and a little at {', '.join(others)}" if others else ""
    received = output[4:]
    largest = max(range(len(received)), key=received.__getitem__)
    word = article_head.distinct(words)[largest]
    return f'"{words[i]}" (word {i}) looks at {first}{also}, and receives {received[largest]:.2f} of "{word}".'


def _minilm(text: str, layer: int, head: int, dtype: str) -> _Exhibit:
    """One head of the published encoder."""
    if not 0 <= head < minilm.HEADS:
        msg = f"a layer has heads 0 to {minilm.HEADS - 1}, got head={head}. Choose one of them."
        raise OptionError(msg)
    tokens = minilm.tokenize([text])
    words = tokens.words[0]

    def prepare(backend: Backend, place: Any) -> Work:
        model = minilm.load(backend, dtype=dtype, device=place)
        ids = backend.asarray(tokens.ids, device=place)
        return lambda: (model.attention_weights(layer, ids, tokens.lengths)[0, head, :, :],)

    def panels(weights: Any) -> list[Panel]:
        return [Panel(f"all-MiniLM-L6-v2, layer {layer}, head {head}", words, words, weights.tolist())]

    def notes(weights: Any) -> list[str]:
        rows = weights.tolist()
        favourite = [max(range(len(row)), key=row.__getitem__) for row in rows]
        return [f'"{words[i]}" looks most at "{words[j]}" ({rows[i][j]:.2f})' for i, j in enumerate(favourite)]

    return _Exhibit(prepare, panels, notes)


def _stack(words: list[str], layers: int, dtype: str) -> _Exhibit:
    """Layers with a narrow window: how far a change of one word gets."""
    if layers < 1:
        raise OptionError(f"--stack needs at least one layer, got {layers}.")

    def prepare(backend: Backend, place: Any) -> Work:
        return stack.measure(len(words), layers, backend, dtype, place)

    def panels(influence: Any) -> list[Panel]:
        return stack.panels(words, influence.tolist())

    def notes(influence: Any) -> list[str]:
        return stack.notes(words, influence.tolist())

    return _Exhibit(prepare, panels, notes)


def _train(words: list[str], steps: int, dtype: str, mode: Mode) -> _Exhibit:
    """Heads in training, beside the built one."""
    if steps < 1:
        raise OptionError(f"--train needs at least one step, got {steps}.")
    school = School(words, steps, dtype, mode)
    return _Exhibit(school.prepare, school.panels, school.notes, school.progress)
