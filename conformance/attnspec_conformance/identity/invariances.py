"""What has to be the same inside of one environment: however a call is cut into steps, items, heads, rows and parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from attnspec import MultiHeadParams, reproducible

from ..exact_numbers import same
from ..masks import Array
from .problems import FAMILIES, Kind, Operand, filled

Pair = tuple[Any, Any]
H, G, Q, D, E, M = 4, 2, 6, 4, 3, 8


class Arrays:
    """Arrays of a backend, filled with one family of numbers."""

    def __init__(self, backend: Any, family: str, seed: int) -> None:
        self.backend, self.family, self.seed = backend, family, seed

    def __call__(self, *shape: int, kind: Kind = "number") -> Any:
        self.seed += 1
        return self.backend.asarray(filled(Operand(shape, kind), self.family, self.seed))

    def attention(self, *lead: int, Q: int = Q, K: int = 300) -> tuple[Any, Any, Any]:
        """q, k and v."""
        return (
            self(*lead, H, Q, D, kind="q"), self(*lead, G, K, D, kind="k"), self(*lead, G, K, E),
        )  # fmt: skip


def steps(made: Arrays) -> Iterator[Pair]:
    """A query that comes alone, with the keys up to its own, as in the causal call of all."""
    q, k, v = made.attention(Q=300)
    whole = reproducible.attention(q, k, v, mask=reproducible.causal())
    for n in (0, 1, 7, 255, 256, 299):
        alone = reproducible.attention(q[..., n : n + 1, :], k[..., : n + 1, :], v[..., : n + 1, :])
        yield whole[..., n : n + 1, :], alone


def cached_steps(made: Arrays) -> Iterator[Pair]:
    """Decoding with a cache, in two splits, as in the causal call of all rows."""
    shapes = {"wq": (M, H, D), "wk": (M, G, D), "wv": (M, G, E), "wo": (H, E, M)}
    params = MultiHeadParams(**{name: made(*shape, kind="weight") for name, shape in shapes.items()})
    x = made(2, 9, M)
    whole = reproducible.multi_head_attention(params, x, mask=reproducible.causal())
    for cuts in ((0, 5, 6, 7, 8, 9), (0, 1, 4, 9)):
        cache = reproducible.Cache.of(params, capacity=13, lead=(2,))
        for start, stop in pairwise(cuts):
            y, cache = reproducible.multi_head_attention_with_cache(params, x[:, start:stop, :], cache)
            yield whole[:, start:stop, :], y


def items(made: Arrays) -> Iterator[Pair]:
    """Each item of a batch, and each group of heads, by itself."""
    q, k, v = made.attention(3)
    whole = reproducible.attention_with_lse(q, k, v)
    for b in range(3):
        yield tuple(x[b, ...] for x in whole), reproducible.attention_with_lse(q[b, ...], k[b, ...], v[b, ...])
    for g in range(G):
        heads = slice(g * H // G, (g + 1) * H // G)
        one = reproducible.attention_with_lse(q[:, heads, ...], k[:, g : g + 1, ...], v[:, g : g + 1, ...])
        yield tuple(x[:, heads, ...] for x in whole), one
    rows = made(5, M)
    yield reproducible.layer_norm(rows)[3, ...], reproducible.layer_norm(rows[3, ...])


def rows(made: Arrays) -> Iterator[Pair]:
    """Some of the queries."""
    q, k, v = made.attention(2, Q=270, K=40)
    whole = reproducible.attention_with_lse(q, k, v)
    for start, stop in ((0, 1), (3, 8), (250, 270)):
        part = reproducible.attention_with_lse(q[..., start:stop, :], k, v)
        yield (whole[0][..., start:stop, :], whole[1][..., start:stop]), part


def tails(made: Arrays) -> Iterator[Pair]:
    """Masked keys, whatever is in them, and no such keys."""
    q, k, v = made.attention(2)
    for n, junk in ((0, np.nan), (5, -np.inf), (5, 3e38), (256, 1e-45), (299, np.nan)):
        alone = reproducible.attention_with_lse(q, k[..., :n, :], v[..., :n, :])
        tail = made.backend.asarray(np.full((2, G, 300 - n, D), junk, np.float32))
        longer = [made.backend.xp.concat([x[..., :n, :], tail[..., : x.shape[-1]]], axis=-2) for x in (k, v)]
        yield alone, reproducible.attention_with_lse(q, *longer, mask=reproducible.padding(n))


def parts(made: Arrays) -> Iterator[Pair]:
    """Keys in parts of whole chunks, merged in two groupings."""
    q, k, v = made.attention(K=900)
    mask = reproducible.causal(400)
    whole = reproducible.attention_with_lse(q, k, v, mask=mask)
    found = [
        reproducible.partial(q, k[..., a:b, :], v[..., a:b, :], mask=mask, k_positions=range(a, b))
        for a, b in ((0, 256), (256, 768), (768, 900))
    ]
    for grouped in (found, [reproducible.merge(found[:2]), found[2]], [found[0], reproducible.merge(found[1:])]):
        yield whole, reproducible.finish(reproducible.merge(grouped))


INVARIANCES: dict[str, Callable[[Arrays], Iterator[Pair]]] = {
    "a step of decoding is a row of the prefill": steps,
    "steps with a cache are rows of the prefill": cached_steps,
    "items of a batch and heads are by themselves": items,
    "some rows are as among all": rows,
    "what is masked might as well be cut off": tails,
    "parts of the keys merge to the whole": parts,
}


def checked(backend: Any, name: str, family: str, seed: int, *, rounded: bool) -> tuple[int, list[str]]:
    """How many pairs were compared, before the last rounding or as they come, and what was found to differ."""
    count, found = 0, []
    for one, other in _pairs(backend, name, Arrays(backend, family, seed), rounded):
        count += 1
        x, y = (np.asarray(backend.to_numpy(z)).astype(np.float64) for z in (one, other))
        if x.shape != y.shape or not np.all(same(x, y)):
            where = np.argwhere(~same(x, y))[0].tolist() if x.shape == y.shape else "shapes"
            found.append(f"{name}, {family}, pair {count}{', rounded' if rounded else ''}: first at {where}")
    return count, found


def _pairs(backend: Any, name: str, made: Arrays, rounded: bool) -> list[tuple[Array, Array]]:
    def collected() -> list[Pair]:
        return list(INVARIANCES[name](made))

    if rounded:
        pairs = collected()
    else:
        with reproducible.before_rounding():
            pairs = collected()
    return [
        pair
        for one, other in pairs
        for pair in (zip(one, other, strict=True) if isinstance(one, tuple) else [(one, other)])
    ]


def roundings(name: str) -> tuple[bool, ...]:
    """Whether to compare as they come: before the last rounding too, but for steps, each of which hands on its own."""
    return (True,) if INVARIANCES[name] is cached_steps else (False, True)


def all_checked(backend: Any, seed: int) -> Iterator[tuple[str, int, list[str]]]:
    """For each invariance: its name, pairs compared over all families, and what differs."""
    for name in INVARIANCES:
        turns = [(family, rounded) for family in FAMILIES for rounded in roundings(name)]
        results = [checked(backend, name, family, seed, rounded=rounded) for family, rounded in turns]
        yield name, sum(count for count, _ in results), [text for _, found in results for text in found]
