"""Heads that learn what the one in `article_head.py` was built to do: from each noun, look at its article.

Sentences are made at random, and each begins with a word that those which look for nothing look at:

    (none) the big old dog saw a cat near the house

A model ends in one head. Its scores of a word are logits over the words at or before it, and it learns by Adam to put
the weight of a noun on the nearest article before it, that of every other word on "(none)":

    x = dropout(table[word])                        and, with a layer below, x = transformer_layer(x)
    score_ij = (x_i W_Q) . (x_j W_K) / sqrt(M)      j <= i, the causal mask
    loss = mean of -log softmax(score_i)_article

What one layer cannot say. The head alone, told no positions, makes a score of the two words and of nothing else.
Equal words get equal scores, so c equal articles before a noun get at most 1 / c of its weight each: the loss of that
noun is at least log(c), whatever the weights of the model and its width (`limits`).

What two layers can. The causal mask alone is enough: an article that looks back sees what is before it, so that a layer
below makes the second "the" another vector than the first, and the head above can prefer the later one. One layer can,
too, if it is told positions, as the built head is: here by rotary embedding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from .. import (
    Dropout,
    LayerParams,
    attention_weights,
    causal,
    cross_entropy,
    dropout,
    embed,
    random,
    rotary,
    transformer_layer,
    vjp,
)
from .._compat import Array, cast, dtype_name, namespace
from ..backend import Backend
from ..errors import OptionError
from ..host import beside
from ..struct import Struct, arrays_in, with_arrays

__all__ = [
    "NONE", "VOCABULARY", "Batch", "Mode", "Model", "State", "as_it_is", "batch", "evaluate", "limits", "loss",
    "scores", "sentences", "step", "weights",
]  # fmt: skip

# How a function of arrays is computed: `as_it_is`, or with the same bits everywhere, `reproducible.identically`.
Mode: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

NONE = "(none)"
ARTICLES = ("the", "a")
ADJECTIVES = ("fat", "big", "old", "small", "red")
NOUNS = ("cat", "mat", "dog", "house", "bird", "tree", "man")
VERBS = ("sat", "saw", "chased", "liked")
PREPOSITIONS = ("on", "near", "under")
LONGEST = 16  # words of a sentence, so that all batches have one shape and a step is compiled once
VOCABULARY = (NONE, *ARTICLES, *ADJECTIVES, *NOUNS, *VERBS, *PREPOSITIONS)

M, HEADS, HIDDEN = 32, 2, 64
SCALE = 1 / math.sqrt(M)
DROPPED = 0.1
RATE, FORGET_MEAN, FORGET_SQUARE, EPS = 5e-3, 0.9, 0.98, 1e-3


def as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function."""
    return function


def sentences(rng: random.Key, number: int, backend: Backend) -> list[list[str]]:
    """Sentences made of random bits: the same on every backend."""
    drawn = backend.to_numpy(random.bits(rng, (number, 24), like=backend.xp))
    return [_sentence(iter(row)) for row in drawn.tolist()]


def _sentence(draws: Iterator[int]) -> list[str]:
    def one_of(words: tuple[str, ...]) -> str:
        return words[next(draws) % len(words)]

    def perhaps(words: tuple[str, ...]) -> list[str]:
        return [one_of(words)] if next(draws) % 2 else []

    def noun_phrase() -> list[str]:
        return [one_of(ARTICLES), *perhaps(ADJECTIVES), *perhaps(ADJECTIVES), one_of(NOUNS)]

    words = [NONE, *noun_phrase(), one_of(VERBS), *perhaps(PREPOSITIONS), *noun_phrase()]
    return [*words, one_of(PREPOSITIONS), *noun_phrase()] if next(draws) % 2 else words


class Batch(NamedTuple):
    """Sentences as numbers, padded to one length (B, Q). No word sees the padding, which stands behind it."""

    ids: Array  # the place of each word in the vocabulary
    articles: Array  # where each word is to look: a position, 0 for "(none)"
    real: Array  # boolean: no padding


def batch(texts: list[list[str]], backend: Backend, device: Any = None) -> Batch:
    """The sentences as arrays of `backend`."""
    unknown = sorted({word for text in texts for word in text} - set(VOCABULARY))
    if unknown:
        msg = f"the model learns {len(VOCABULARY) - 1} words, {', '.join(unknown)} is none of them. It knows: "
        raise OptionError(f"{msg}{', '.join(VOCABULARY[1:])}.")
    Q = max(LONGEST, *map(len, texts))

    def array(rows: list[list[Any]], padding: Any) -> Array:
        return backend.asarray([row + [padding] * (Q - len(row)) for row in rows], device=device)

    return Batch(
        array([list(map(VOCABULARY.index, text)) for text in texts], 0),
        array([_articles(text) for text in texts], 0),
        array([[True] * len(text) for text in texts], False),
    )


def _articles(text: list[str]) -> list[int]:
    """For each noun the position of the nearest article before it, 0 for the rest."""
    latest, found = 0, []
    for position, word in enumerate(text):
        latest = position if word in ARTICLES else latest
        found.append(latest if word in NOUNS else 0)
    return found


@dataclass(frozen=True)
class Model(Struct):
    """The words' vectors, the layers below the head, and the head's two matrices."""

    table: Array  # (V, M)
    layers: tuple[LayerParams, ...]
    wq: Array  # (M, M)
    wk: Array  # (M, M)
    positions: bool

    @classmethod
    def init(cls, rng: random.Key, *, layers: int, positions: bool, dtype: str, like: Any) -> Model:
        """Normal numbers, drawn in float32 whatever the dtype: a wider run starts where a float32 one does."""
        for_table, for_wq, for_wk, *for_layers = random.split(rng, 3 + layers)

        def normal(rng: random.Key, rows: int, scale: float) -> Array:
            return scale * random.normal(rng, (rows, M), like=like)

        drawn = cls(
            normal(for_table, len(VOCABULARY), 1.0),
            tuple(
                LayerParams.init(
                    r, model_width=M, heads=HEADS, hidden_width=HIDDEN, order="post", use_bias=False, like=like
                )
                for r in for_layers
            ),
            normal(for_wq, M, SCALE),
            normal(for_wk, M, SCALE),
            positions,
        )
        wanted = getattr(namespace(drawn.table), dtype)
        model: Model = _each(lambda x: cast(x, wanted), drawn)
        return model


def scores(model: Model, ids: Array, rng: random.Key | None = None) -> Array:
    """The head's logits, ids (B, Q) -> (B, Q, K), -inf for words that are still to come. Nothing drops without rng."""
    q, k = _queries_and_keys(model, ids, rng)
    places = _places(ids)
    return namespace(q).where(places <= places[:, None], (q @ k.mT)[..., 0, :, :] * SCALE, -math.inf)


def weights(model: Model, examples: Batch) -> Array:
    """Where each word looks, the softmax of these scores: (B, Q, K)."""
    return attention_weights(*_queries_and_keys(model, examples.ids, None), mask=causal())[..., 0, :, :]


def _queries_and_keys(model: Model, ids: Array, rng: random.Key | None) -> tuple[Array, Array]:
    """Those of the last head, (B, H, Q, D) with H = 1 and D = M."""
    for_x, for_weights, for_residual = (None,) * 3 if rng is None else random.split(rng, 3)
    x = embed(model.table, ids)  # (B, Q, M)
    x = x if for_x is None else dropout(x, DROPPED, for_x)
    for n, layer in enumerate(model.layers):
        x = transformer_layer(
            layer, x, mask=causal(), dropout=_dropout(for_weights, n), residual_dropout=_dropout(for_residual, n)
        )
    q, k = ((x @ w)[..., None, :, :] for w in (model.wq, model.wk))
    return (rotary(q, _places(ids)), rotary(k, _places(ids))) if model.positions else (q, k)


def _places(ids: Array) -> Array:
    return namespace(ids).arange(ids.shape[-1], **beside(ids))


def _dropout(rng: random.Key | None, layer: int) -> Dropout | None:
    return None if rng is None else Dropout(DROPPED, random.fold_in(rng, layer))


def loss(model: Model, examples: Batch, rng: random.Key | None = None) -> Array:
    """The mean over the real words of -log(weight where they are to look)."""
    losses = cross_entropy(scores(model, examples.ids, rng), examples.articles, mask=examples.real)
    xp = namespace(losses)
    return xp.sum(losses) / xp.sum(xp.astype(examples.real, losses.dtype))


class State(NamedTuple):
    """A model in training: with it go Adam's averages of the gradients and of their squares, as trees like it."""

    model: Model
    mean: Model
    square: Model
    started: tuple[Array, Array]  # 0-d: what is left of their start at 0 in each of the two, FORGET**steps

    @classmethod
    def of(cls, model: Model, backend: Backend, device: Any = None) -> State:
        """Before the first step."""
        blank = _each(lambda x: 0 * x, model)
        all_of_it = backend.asarray(1.0, dtype=dtype_name(model.table), device=device)
        return cls(model, blank, blank, (all_of_it, all_of_it))


def step(state: State, examples: Batch, rng: random.Key) -> tuple[State, Array]:
    """One step of training, and the loss before it: a function of arrays alone, so that it can be compiled."""
    value, pullback = vjp(lambda model: loss(model, examples, rng), state.model)
    (gradients,) = pullback()
    return _adam(state, gradients), value


def _adam(state: State, gradients: Model) -> State:
    """model - RATE mean / (sqrt(square) + EPS), both averages freed of their start at 0 (Kingma, Ba, 2015)."""
    mean = _each(lambda m, g: FORGET_MEAN * m + (1 - FORGET_MEAN) * g, state.mean, gradients)
    square = _each(lambda s, g: FORGET_SQUARE * s + (1 - FORGET_SQUARE) * g * g, state.square, gradients)
    of_mean, of_square = FORGET_MEAN * state.started[0], FORGET_SQUARE * state.started[1]
    rate, unbiased, xp = RATE / (1 - of_mean), 1 / (1 - of_square), namespace(of_mean)
    model = _each(lambda x, m, s: x - rate * m / (xp.sqrt(unbiased * s) + EPS), state.model, mean, square)
    return State(model, mean, square, (of_mean, of_square))


def _each(function: Callable[..., Array], *trees: Any) -> Any:
    """The tree of `function`'s results for the arrays that stand in the same place of each tree."""
    arrays = [arrays_in("", tree) for tree in trees]
    return with_arrays("", trees[0], {name: function(*(a[name] for a in arrays)) for name in arrays[0]})


class Score(NamedTuple):
    """How good a model is, or can be, on given sentences."""

    loss: float
    found: float  # the share of nouns with more than half of their weight on their article


def evaluate(model: Model, examples: Batch, backend: Backend, mode: Mode = as_it_is) -> Score:
    """Without dropout."""
    looks = backend.to_numpy(mode(weights)(model, examples)).tolist()
    articles = backend.to_numpy(examples.articles).tolist()
    found = [
        row[article] > 0.5
        for rows, places in zip(looks, articles, strict=True)
        for row, article in zip(rows, places, strict=True)
        if article
    ]
    return Score(float(backend.to_numpy(mode(loss)(model, examples))), sum(found) / len(found))


def limits(texts: list[list[str]]) -> Score:
    """The least loss and the most articles that one head without positions can reach, at any width."""
    equal = [
        text[:position].count(text[article])
        for text in texts
        for position, article in enumerate(_articles(text))
        if article
    ]
    words = sum(map(len, texts))
    return Score(sum(map(math.log, equal)) / words, equal.count(1) / len(equal))
