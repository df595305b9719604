"""One attention head, built by hand: from a noun it looks to the articles before it.

In "the fat cat sat on the mat" it connects "cat" with the first "the" and "mat" with the second. Every number
in it can be read. A word at position p becomes the vector

    x = (article, noun, 1, p, 0 .. 1 .. 0)          M = 4 + number of distinct words

with 1 for "is an article", 1 for "is a noun", its position, and a 1 in the place of the word itself. The
head's matrices only pick and weigh these:

    query   (LIKING * noun, NEARNESS, -NEARNESS * p)     "an article, at or before me, rather near"
    key     (article, p, 1)                              "an article (or not), at position p"
    value   x                                            the whole word

so that the score of the word at i for the word at j is

    q_i . k_j = LIKING * noun_i * article_j - NEARNESS * (i - j)

"At or before me" is the causal mask. Queries and keys have D = 3 numbers, values have E = M: the widths are
independent. Softmax alone would make every word look somewhere; the sink, one more score in the denominator,
takes the attention of words that look for nothing.

A single head is dumb. "mat" also looks a little at the first "the", which belongs to "cat": nearness is all
it knows. And words do not look at themselves: what a word knew before reaches the next layer through the
residual path only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import MultiHeadParams, causal, multi_head_attention, multi_head_weights
from .._compat import Array
from ..backend import Backend

__all__ = ["NOUNS", "ArticleHead", "build", "distinct", "is_article", "is_noun"]

LIKING, NEARNESS, SINK = 10.0, 0.4, 6.0

ARTICLE, NOUN, ONE, POSITION = range(4)

ARTICLES = frozenset({"a", "an", "the"})
NOUNS = frozenset(
    {
        "apple", "ball", "bed", "bird", "book", "box", "boy", "car", "cat", "chair", "child", "city",
        "dog", "door", "egg", "elephant", "fish", "fox", "garden", "girl", "hat", "head", "hill", "horse",
        "house", "king", "man", "mat", "model", "moon", "mouse", "owl", "queen", "rat", "river", "road",
        "sea", "sentence", "ship", "sky", "star", "street", "sun", "table", "token", "train", "tree",
        "water", "woman", "word", "world",
    }
)  # fmt: skip


class ArticleHead(NamedTuple):
    """The head's parameters, its sink, and the words it is shown, `x (Q, M)`."""

    params: MultiHeadParams
    sink: Array
    x: Array

    def weights(self) -> Array:
        """How much each word looks at each: `(Q, K)`."""
        return multi_head_weights(self.params, self.x, mask=causal(), scale=1.0, sink=self.sink)[0, :, :]

    def outputs(self) -> Array:
        """What each word receives: `(Q, M)`, the words it looks at, in the proportions of its weights."""
        return multi_head_attention(self.params, self.x, mask=causal(), scale=1.0, sink=self.sink)


def build(words: list[str], nouns: frozenset[str], backend: Backend, dtype: str, device: Any) -> ArticleHead:
    """The head and its input as arrays of `backend`."""

    def array(rows: Any) -> Array:
        return backend.asarray(rows, dtype=dtype, device=device)

    x = _vectors(words, nouns)
    M = len(x[0])
    wq = _zeros(M, 3)
    wq[NOUN][0], wq[ONE][1], wq[POSITION][2] = LIKING, NEARNESS, -NEARNESS
    wk = _zeros(M, 3)
    wk[ARTICLE][0], wk[POSITION][1], wk[ONE][2] = 1.0, 1.0, 1.0
    whole = _zeros(M, M)
    for m in range(M):
        whole[m][m] = 1.0
    params = MultiHeadParams(
        wq=array([[row] for row in wq]),  # (M, H, D) with H = 1
        wk=array([[row] for row in wk]),
        wv=array([[row] for row in whole]),
        wo=array([whole]),  # (H, E, M)
        bq=None,
        bk=None,
        bv=None,
        bo=None,
    )
    return ArticleHead(params, array([SINK]), array(x))


def is_article(word: str) -> bool:
    """Whether the head takes this word for an article."""
    return _bare(word) in ARTICLES


def is_noun(word: str, nouns: frozenset[str]) -> bool:
    """Whether the head takes this word for a noun: it knows a list, and no grammar."""
    return _bare(word) in nouns


def distinct(words: list[str]) -> list[str]:
    """The words in the order of their places in x, after the first four numbers."""
    return list(dict.fromkeys(map(_bare, words)))


def _vectors(words: list[str], nouns: frozenset[str]) -> list[list[float]]:
    places = distinct(words)
    return [
        [
            float(is_article(word)),
            float(is_noun(word, nouns)),
            1.0,
            float(p),
            *(float(_bare(word) == place) for place in places),
        ]
        for p, word in enumerate(words)
    ]


def _zeros(rows: int, columns: int) -> list[list[float]]:
    return [[0.0] * columns for _ in range(rows)]


def _bare(word: str) -> str:
    return word.strip(".,;:!?\"'()").lower()
