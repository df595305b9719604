"""What no implementation on a framework's own matrix product can beat: the products alone, tile by tile.

Forward two products for each tile that a query sees anything of, S = Q K^T and S V; with gradients the five of the
backward pass as well: Q K^T again, G V^T, P^T G, dS K and dS^T Q. Tiles have 512 x 512 scores, rows of heads that
share a key head lie in one tile, and small heads are multiplied together. A few queries read k and v once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import product
from typing import Any

from ..backend import choose
from .bench_problems import Problem
from .bench_subjects import Prepared, Subject, UnsuitedError

__all__ = ["FRAMEWORKS", "limit"]

SIDE = 512
SMALL = 2**16  # scores of a head
FEW = 16  # rows: with fewer a product costs what reading its larger factor costs
FRAMEWORKS = ("numpy", "torch")


def limit(name: str, beside: str) -> Subject:
    """The matrix products of NumPy or torch."""

    def prepare(problem: Problem) -> Prepared:
        if problem.case.what not in ("attention", "gradients"):
            raise UnsuitedError("it has no matrix product")
        module = choose("numpy").xp if name == "numpy" else import_module(name)
        steps = list(_steps(module, choose(name).asarray, problem))

        def call() -> None:
            for function, arguments, out in steps:
                function(*arguments, **out)

        return Prepared(call, lambda found: [])

    return Subject(f"limit {name}", beside, name, prepare)


def _steps(module: Any, array: Callable[..., Any], problem: Problem) -> Iterator[tuple[Any, tuple[Any, ...], Any]]:
    """Functions, their arguments, and where they write to."""
    B, H, G, Q, K, *_ = problem.size
    shared, backward = H // G, problem.case.what == "gradients"
    if shared * Q < FEW:
        for x in (problem.k, problem.v):
            flat = array(x.reshape(-1))
            yield module.dot, (flat, flat), {}
        return
    buffers: dict[tuple[Any, ...], Any] = {}

    def multiplied(a: Any, b: Any, where: str = "rows") -> tuple[Any, tuple[Any, ...], Any]:
        place = (where, *a.shape[:-1], b.shape[-1])  # scores are read while rows are written
        if place not in buffers:
            buffers[place] = module.empty(place[1:], dtype=a.dtype)
        return module.matmul, (a, b), {"out": buffers[place]}

    k, v = array(problem.k), array(problem.v)
    heads: list[Any] = list(product(range(B), range(G)))
    if shared * Q * K <= SMALL:
        heads = [slice(None)]
    for rows, keys in tiles(problem, max(1, SIDE // shared)):
        stacked = (x[:, :, rows].reshape(B, G, -1, x.shape[-1]) for x in (problem.q, problem.g))
        q, g = (array(x) for x in stacked)
        for head in heads:
            one_q, one_k, one_v, one_g = q[head], k[head][..., keys, :], v[head][..., keys, :], g[head]
            scores = multiplied(one_q, one_k.mT, "scores")
            s = scores[2]["out"]
            yield scores
            yield multiplied(s, one_v)
            if backward:
                yield scores
                yield multiplied(one_g, one_v.mT, "cotangents")
                yield multiplied(s.mT, one_g)
                yield multiplied(s, one_k)
                yield multiplied(s.mT, one_q)


def tiles(problem: Problem, rows: int) -> list[tuple[slice, slice]]:
    """Blocks of queries and keys of which some pair is visible, as far as a rule says so."""
    size = problem.size
    last = size.K if problem.lengths is None else int(problem.lengths.max())
    return [
        (slice(i, min(i + rows, size.Q)), slice(j, min(j + SIDE, last)))
        for i in range(0, size.Q, rows)
        for j in range(0, last, SIDE)
        if not problem.causal or j <= min(i + rows, size.Q) - 1
    ]
