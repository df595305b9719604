"""Reproducible mode on the command line: digests of results, which two frameworks or two machines can compare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from struct import pack
from typing import Any

from rich.table import Table

from .. import LayerParams, alibi, attention_with_lse, causal, random, reproducible, transformer_layer
from .._compat import Array
from ..backend import Backend
from ..errors import AttnspecError
from ..request import Dropout
from . import article_head
from .backends import numbers, pick

__all__ = ["SHOWN", "digest", "digest_of_floats", "everywhere", "tabulate"]

SHOWN = 16  # hexadecimal digits of a digest in a table

SEED, DROPPED, SOFTCAP = 7, 0.25, 5.0
HEADS, HEAD_WIDTH, HIDDEN = 2, 8, 32


def digest(arrays: Iterable[Any]) -> str:
    """SHA-256 of NumPy arrays, one after the other, as little-endian float32 numbers; float64 ones as float64."""
    sha = sha256()
    for x in arrays:
        sha.update(x.astype("<f8" if x.dtype == "float64" else "<f4").tobytes())
    return sha.hexdigest()


def digest_of_floats(numbers: Sequence[float]) -> str:
    """The same of Python's numbers, as float64, which hold those of every dtype."""
    return sha256(pack(f"<{len(numbers)}d", *numbers)).hexdigest()


def tabulate(title: str, columns: Sequence[str], found: Mapping[str, Sequence[str]]) -> list[Any]:
    """A row for each backend, and whether all of them are equal."""
    table = Table("backend", *columns, title=title)
    for name, digests in found.items():
        table.add_row(name, *(x[:SHOWN] for x in digests))
    if len(found) < 2:
        return [table]
    equal = len({tuple(digests) for digests in found.values()}) == 1
    return [table, f"The digests are {'equal' if equal else 'NOT equal'} on {', '.join(found)}."]


def everywhere(words: list[str], names: Iterable[str], dtype: str, device: str | None) -> list[Any]:
    """What reproducible mode makes of the words on each backend, as a table of digests; and why not on the others."""
    found: dict[str, Sequence[str]] = {}
    refusals = []
    for name in names:
        backend, place = pick(name, dtype, device)
        try:
            results = _computed(words, backend, dtype, place)
        except AttnspecError as error:
            refusals.append(f"{name}: {error}")
        else:
            found[name] = [digest(numbers(backend, x) for x in results)]
    return [*tabulate("Reproducible mode: a layer, and attention over it", ["SHA-256"], found), *refusals]


def _computed(words: list[str], backend: Backend, dtype: str, device: Any) -> tuple[Array, ...]:
    """Of the words as the head that was built by hand has them."""
    x = article_head.build(words, article_head.NOUNS, backend, dtype, device).x
    for_layer, for_dropout = random.split(random.key(SEED))
    layer = reproducible.LayerParams.init(
        for_layer, model_width=x.shape[-1], heads=HEADS, head_width=HEAD_WIDTH, hidden_width=HIDDEN, order="pre",
        dtype=dtype, like=x,
    )  # fmt: skip
    results: tuple[Array, ...] = reproducible.identically(_layer_and_attention)(layer, x, for_dropout)
    return results


def _layer_and_attention(layer: LayerParams, x: Array, rng: random.Key) -> tuple[Array, Array, Array]:
    """x (Q, M) through a layer, and attention of one head over the result, with everything that changes scores."""
    for_layer, for_attention = (Dropout(DROPPED, r) for r in random.split(rng))
    y = transformer_layer(layer, x, mask=causal(), dropout=for_layer)
    rows = y[None, :, :]
    out, lse = attention_with_lse(
        rows, rows, rows, mask=causal(), bias=alibi(1), softcap=SOFTCAP, dropout=for_attention
    )
    return y, out, lse
