"""`attnspec demo --train`: the heads of `learned_head.py` trained on every backend, from the same random keys.

Every backend sees the same sentences, starts with the same weights and drops the same entries, so that its losses may
differ by rounding alone. A run in float64 shows how much rounding there is. With `--reproducible` they don't differ:
each function of arrays, the optimiser's step included, is computed by `reproducible.identically`, and digests of all
parameters and losses say so.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from .. import random
from .._compat import Array
from ..backend import Backend, choose
from ..struct import arrays_in
from . import article_head, digests
from .backends import DEFAULT, numbers
from .compare import Work
from .heatmap import Panel
from .learned_head import (
    NONE,
    Batch,
    Mode,
    Model,
    Score,
    State,
    as_it_is,
    batch,
    evaluate,
    limits,
    sentences,
    step,
    weights,
)

__all__ = [
    "FEWER_STEPS", "KINDS", "STEPS", "Kind", "Lesson", "School", "Training", "compiled", "largest_difference",
    "lesson", "looks", "panels", "train",
]  # fmt: skip

STEPS, SENTENCES, HELD_OUT = 200, 32, 256
FEWER_STEPS = 50  # in reproducible mode, which takes longer
SEED = 0
REFERENCE = "float64"
DIGESTS = ("parameters, SHA-256", "losses, SHA-256")  # of the models of all kinds, one after the other


class Kind(NamedTuple):
    """One of the models that are compared: the layers below its head, and whether the head is told positions."""

    title: str
    layers: int
    positions: bool


KINDS = (
    Kind("one layer", layers=0, positions=False),
    Kind("one layer, told positions", layers=0, positions=True),
    Kind("two layers", layers=1, positions=False),
)


class Lesson(NamedTuple):
    """What a training is made of.

    For each step the sentences and a key for dropout; sentences kept back; the start; and how functions are computed.
    """

    batches: list[Batch]
    keys: list[random.Key]
    texts: list[list[str]]
    start: Callable[[Kind], State]
    mode: Mode


class Training(NamedTuple):
    """What came out: the model, the loss before each step, and how good it is on the sentences that were kept back."""

    model: Model
    losses: list[float]
    score: Score


def lesson(backend: Backend, steps: int, dtype: str = "float32", device: Any = None, mode: Mode = as_it_is) -> Lesson:
    """The same on every backend."""
    for_model, for_sentences, for_dropout, for_texts = random.split(random.key(SEED), 4)
    like = backend.asarray([0.0], dtype="float32", device=device)

    def start(kind: Kind) -> State:
        model = mode(Model.init)(for_model, layers=kind.layers, positions=kind.positions, dtype=dtype, like=like)
        return State.of(model, backend, device)

    texts = sentences(for_sentences, steps * SENTENCES, backend)
    return Lesson(
        [batch(texts[n : n + SENTENCES], backend, device) for n in range(0, len(texts), SENTENCES)],
        [random.fold_in(for_dropout, n) for n in range(steps)],
        sentences(for_texts, HELD_OUT, backend),
        start,
        mode,
    )


def train(kind: Kind, given: Lesson, backend: Backend, after: Callable[[], Any], device: Any = None) -> Training:
    """All the steps; `after` is called after each of them."""
    state, take, losses = given.start(kind), compiled(backend, given.mode), []
    for examples, rng in zip(given.batches, given.keys, strict=True):
        state, value = take(state, examples, rng)
        losses.append(float(numbers(backend, value)))
        after()
    score = evaluate(state.model, batch(given.texts, backend, device), backend, given.mode)
    return Training(state.model, losses, score)


def compiled(backend: Backend, mode: Mode = as_it_is) -> Callable[..., tuple[State, Array]]:
    """`step`, compiled where operations one by one are slow: in frameworks that never write to an array."""
    take = mode(step)
    return take if backend.jit is None or "in_place" in backend.capabilities else backend.jit(take)


def largest_difference(curves: list[list[float]]) -> float:
    """Between the losses of any two trainings at the same step."""
    return float(max(max(at) - min(at) for at in zip(*curves, strict=True)))


def looks(
    models: list[Model],
    words: list[str],
    backend: Backend,
    dtype: str = "float32",
    device: Any = None,
    mode: Mode = as_it_is,
) -> tuple[Array, ...]:
    """Where each of the words looks: by the head that was built, and by those of the models."""
    built = article_head.build(words, article_head.NOUNS, backend, dtype, device)
    text, n = batch([[NONE, *words]], backend, device), 1 + len(words)
    of_built = mode(article_head.ArticleHead.weights)(built)
    return of_built, *(mode(weights)(model, text)[0, :n, :n] for model in models)


def panels(words: list[str], built: Any, *learnt: Any) -> list[Panel]:
    """The results of `looks`, a model of each kind, as pictures. In all of them the column "(none)" comes last."""
    rows = [[[*row, max(0.0, 1.0 - sum(row))] for row in built.tolist()]]
    rows += [[[*row[1:], row[0]] for row in weights.tolist()[1:]] for weights in learnt]
    titles = ["built by hand", *(kind.title for kind in KINDS)]
    return [Panel(title, words, [*words, NONE], r) for title, r in zip(titles, rows, strict=True)]


class School:
    """Trains on one backend after another, and remembers what is to be shown."""

    def __init__(self, words: list[str], steps: int, dtype: str, mode: Mode = as_it_is) -> None:
        self.words, self.steps, self.dtype, self.mode = [word.lower() for word in words], steps, dtype, mode
        self.trainings: dict[str, list[Training]] = {}
        self.digests: dict[str, list[str]] = {}
        self.seconds: dict[str, float] = {}
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)

    def prepare(self, backend: Backend, device: Any) -> Work:
        """Train, and return what computes where the heads look: the built one and those that have learnt."""
        batch([[NONE, *self.words]], backend, device)  # unknown words are refused before anything is learnt
        learnt = self._trained(backend.name, backend, self.dtype, device, self.mode)
        models = [training.model for training in learnt]
        if self.mode is not as_it_is:
            parameters = (numbers(backend, x) for x in arrays_in("", models).values())
            losses = [loss for training in learnt for loss in training.losses]
            self.digests[backend.name] = [digests.digest(parameters), digests.digest_of_floats(losses)]
        return lambda: looks(models, self.words, backend, self.dtype, device, self.mode)

    def _trained(self, name: str, backend: Backend, dtype: str, device: Any, mode: Mode = as_it_is) -> list[Training]:
        task = self.progress.add_task(name, total=len(KINDS) * self.steps)
        began = perf_counter()
        given = lesson(backend, self.steps, dtype, device, mode)
        learnt = [train(kind, given, backend, lambda: self.progress.advance(task), device) for kind in KINDS]
        self.trainings[name], self.seconds[name] = learnt, perf_counter() - began
        return learnt

    def panels(self, *results: Any) -> list[Panel]:
        """The built head and the learnt ones."""
        return panels(self.words, *results)

    def notes(self, *results: Any) -> list[Any]:
        """The losses side by side, what each head has learnt, and what one head can't."""
        names = list(self.trainings)
        if self.dtype != REFERENCE:
            self._trained(REFERENCE, choose(DEFAULT), REFERENCE, None)
        reach = limits(lesson(choose(DEFAULT), steps=0).texts)
        return [
            self._losses(names),
            self._learnt(names),
            f"One layer that is told no positions gives equal words equal weights: on these {HELD_OUT} sentences its "
            f"loss is at least {reach.loss:.4f}, and it finds at most {reach.found:.1%} of the articles.",
            *(digests.tabulate(f"After {self.steps} steps", DIGESTS, self.digests) if self.digests else ()),
        ]

    def _losses(self, names: list[str]) -> Table:
        titles = (f"{name}, {self.seconds[name]:.0f} s" for name in names)
        table = Table("step", *titles, "largest difference", title=f"Losses of the model of {KINDS[-1].title}")
        curves = [self.trainings[name][-1].losses for name in names]
        for n in sorted({min(2**row, self.steps) for row in range(self.steps.bit_length() + 1)}):
            at = [losses[n - 1] for losses in curves]
            table.add_row(str(n), *(f"{x:.6f}" for x in at), f"{max(at) - min(at):.1e}")
        return table

    def _learnt(self, names: list[str]) -> Table:
        rounded = REFERENCE in self.trainings
        table = Table("", "loss", "articles found", "backends apart", *[f"apart from {REFERENCE}"] * rounded)
        table.title = f"After {self.steps} steps, on {HELD_OUT} other sentences; the largest differences of all steps"
        for n, kind in enumerate(KINDS):
            score = self.trainings[names[0]][n].score
            curves = [self.trainings[name][n].losses for name in names]
            row = [f"{largest_difference(curves):.1e}" if len(names) > 1 else "nothing to compare"]
            if rounded:
                exact = self.trainings[REFERENCE][n].losses
                row.append(f"{max(largest_difference([curve, exact]) for curve in curves):.1e}")
            table.add_row(kind.title, f"{score.loss:.4f}", f"{score.found:.1%}", *row)
        return table
