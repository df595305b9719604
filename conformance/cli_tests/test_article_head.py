"""The head built by hand does what its docstring says."""

from __future__ import annotations

import numpy as np
import pytest

from attnspec.cli import article_head
from attnspec.cli.backends import pick

WORDS = ["the", "fat", "cat", "sat", "on", "the", "mat"]
THE, CAT, SECOND_THE, MAT = 0, 2, 5, 6


@pytest.fixture
def head(name):
    backend, _ = pick(name, "float64", None)
    return backend, article_head.build(WORDS, article_head.NOUNS, backend, "float64", None)


def test_nouns_look_at_the_articles_before_them(head):
    backend, built = head
    weights = backend.to_numpy(built.weights())
    assert weights[CAT, THE] > 0.9
    assert weights[MAT, SECOND_THE] > 0.8


def test_a_single_head_is_dumb(head):
    backend, built = head
    weights = backend.to_numpy(built.weights())
    assert 0.05 < weights[MAT, THE] < 0.2
    assert weights.diagonal().max() < 0.01


def test_words_that_look_for_nothing_leave_their_attention_to_the_sink(head):
    backend, built = head
    weights = backend.to_numpy(built.weights())
    others = [i for i in range(len(WORDS)) if i not in (CAT, MAT)]
    assert weights[others].sum(axis=1).max() < 0.02


def test_nobody_looks_ahead(head):
    backend, built = head
    assert not np.triu(backend.to_numpy(built.weights()), k=1).any()


def test_scores_are_those_of_the_formula(head):
    backend, built = head
    i, j = np.indices((len(WORDS), len(WORDS)))
    noun = np.array([article_head.is_noun(word, article_head.NOUNS) for word in WORDS])
    article = np.array([article_head.is_article(word) for word in WORDS])
    scores = article_head.LIKING * np.outer(noun, article) - article_head.NEARNESS * (i - j)
    terms = np.where(j <= i, np.exp(scores), 0)
    expected = terms / (terms.sum(axis=1, keepdims=True) + np.exp(article_head.SINK))
    np.testing.assert_allclose(backend.to_numpy(built.weights()), expected, rtol=0, atol=1e-15)


def test_a_noun_receives_the_article(head):
    backend, built = head
    outputs = backend.to_numpy(built.outputs())
    received = dict(zip(article_head.distinct(WORDS), outputs[MAT, 4:], strict=True))
    assert max(received, key=received.get) == "the"
    assert received["the"] > 0.95


def test_queries_are_narrower_than_values(head):
    _, built = head
    assert built.params.wq.shape[-1] == built.params.wk.shape[-1] == 3
    assert built.params.wv.shape[-1] == len(article_head.distinct(WORDS)) + 4


def test_punctuation_and_case_do_not_matter():
    assert article_head.is_article("The")
    assert article_head.is_noun("Mat.", article_head.NOUNS)
    assert not article_head.is_noun("sat", article_head.NOUNS)
