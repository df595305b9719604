"""`attnspec embed`: texts in, the vectors of all-MiniLM-L6-v2 out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import minilm
from ..reproducible import identically
from .backends import numbers, pick
from .digests import digest

__all__ = ["embed"]

BATCH = 32


def embed(
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help='"-": a text per line of the input.')],
    backend: Annotated[str | None, typer.Option(help="Default: $ATTNSPEC_BACKEND, or numpy.")] = None,
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    device: Annotated[str | None, typer.Option(help="As `attnspec backends` lists it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per text and line.")] = False,
    reproducible: Annotated[
        bool, typer.Option("--reproducible", help="The same bits on every backend, and the digest of each embedding.")
    ] = False,
) -> None:
    """Print the embedding of each text: 384 numbers, of length 1, that are close where meanings are."""
    chosen, place = pick(backend, dtype, device)
    model = minilm.load(chosen, dtype=dtype, device=place)
    embeddings = identically(minilm.MiniLM.embeddings) if reproducible else minilm.MiniLM.embeddings
    waiting, done = _texts(texts), []
    while batch := list(islice(waiting, BATCH)):
        tokens = minilm.tokenize(batch)
        vectors = numbers(chosen, embeddings(model, chosen.asarray(tokens.ids, device=place), tokens.lengths))
        for text, row in zip(batch, vectors, strict=True):
            vector, digests = row.tolist(), {"sha256": digest([row])} if reproducible else {}
            if as_json:
                print(json.dumps({"text": text, "embedding": vector} | digests), flush=True)
            else:
                _show(text, vector, digests)
                done.append((text, vector))
    if len(done) > 1:
        _compare(done)


def _texts(arguments: list[str]) -> Iterator[str]:
    for text in arguments:
        if text == "-":
            yield from (line.rstrip("\r\n") for line in sys.stdin)
        else:
            yield text


def _show(text: str, vector: list[float], digests: dict[str, str]) -> None:
    console = Console(highlight=False)
    console.print(Text(text, style="bold"), soft_wrap=True)
    numbers, per_line = [f"{number:10.6f}" for number in vector], max(1, console.width // 10)
    for start in range(0, len(numbers), per_line):
        print("".join(numbers[start : start + per_line]))
    for name, value in digests.items():
        print(name, value)


def _compare(done: list[tuple[str, list[float]]]) -> None:
    """How alike the texts are: the cosine, which for vectors of length 1 is their product."""
    table = Table("", *(str(n) for n in range(len(done))), title="similarity")
    for n, (text, vector) in enumerate(done):
        cosines = (_dot(vector, other) for _, other in done)
        table.add_row(Text(f"{n} {text}"), *(f"{cosine:.4f}" for cosine in cosines))
    Console().print(table)


def _dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
