"""attnspec's functions with the work divided: each shard apart, by public functions alone, and the parts merged.

What a distributed attention does without anything to send. So the promises that carry it (parts merge, rules read
positions, dropout says which part it is of) are judged on every backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import attnspec
from attnspec import Request, reproducible
from attnspec.request import make_request
from attnspec.shards import Tile, from_the_start, layout, options_of
from attnspec.struct import arrays_in

from .masks import Array
from .trials import Shards

Answer = tuple[Array, Array]
Functions = Mapping[str, Callable[..., Any]]


def divided(shards: Shards, *, to_the_bit: bool = False) -> Functions:
    """Functions like attnspec's that compute each shard by itself; `to_the_bit`: in reproducible mode."""
    merged = _merged_to_the_bit if to_the_bit else _merged

    def with_lse(*arrays: Array, **options: Any) -> Answer:
        whole = make_request(*arrays, **options)
        if shards.along in ("heads", "batch"):
            out, lse = _by_heads(whole, shards, reproducible if to_the_bit else attnspec)
        else:
            out, lse = _by_rows(from_the_start(whole), shards, merged)
        return (out[0, ...], lse[0, ...]) if whole.headless else (out, lse)

    return {"lse": with_lse, "out": lambda *arrays, **options: with_lse(*arrays, **options)[0]}


def _by_heads(whole: Request, shards: Shards, functions: Any) -> Answer:
    """Blocks of the heads, or of the first axis of the batch, each attended to by itself."""
    axes = (*whole.axes.lead, whole.axes.H)
    axis = len(axes) - 1 if shards.along == "heads" else 0
    size = axes[axis] // shards.n
    answers = []
    for n in range(shards.n):
        block = [slice(0, length) for length in axes]
        block[axis] = slice(n * size, (n + 1) * size)
        part = whole.part(tuple(block))
        answers.append(functions.attention_with_lse(part.q, part.k, part.v, **options_of(part)))
    outs, lses = zip(*answers, strict=True)
    return whole.xp.concat(list(outs), axis=axis), whole.xp.concat(list(lses), axis=axis)


def _by_rows(whole: Request, shards: Shards, merged: Callable[[list[Request]], Answer]) -> Answer:
    """Shards of queries, or all of them, each of which is told of one shard of keys after the other."""
    arrays, lies = arrays_in("", whole), layout(whole)
    of_queries = shards.n if shards.along == "sequence" else 1
    Q, K = whole.axes.Q // of_queries, whole.axes.K // shards.n
    answers = []
    for i in range(of_queries):
        tiles = (Tile(i * Q, Q, j * K, K, 0, 0) for j in range(shards.n))
        first, *others = (tile.request(whole, arrays, lies) for tile in tiles)
        answers.append(merged([replace(first, sink=whole.sink), *others]))
    outs, lses = zip(*answers, strict=True)
    return whole.xp.concat(list(outs), axis=-2), whole.xp.concat(list(lses), axis=-1)


def _merged(parts: list[Request]) -> Answer:
    return attnspec.merge_attention(
        [attnspec.attention_with_lse(part.q, part.k, part.v, **options_of(part)) for part in parts]
    )


def _merged_to_the_bit(parts: list[Request]) -> Answer:
    found = [reproducible.partial(part.q, part.k, part.v, **options_of(part)) for part in parts]
    return reproducible.finish(reproducible.merge(found))
