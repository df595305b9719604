"""attnspec itself, on any of its backends, as it comes or compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import alibi, attention, causal, padding, random
from ..backend import Backend
from ..errors import OptionError
from .backends import pick
from .bench_problems import RATE, Problem
from .bench_subjects import Prepared, Subject, UnsuitedError, prepared

__all__ = ["base", "own"]

EAGER, COMPILED = "eager", "compiled"
SEED = 7


def base(spelling: str) -> str:
    """The backend's name of "jax:eager", "torch:compiled" or "numpy"."""
    return spelling.partition(":")[0]


def own(spelling: str, dtype: str, beside: str) -> Subject:
    """attnspec on a backend. Raises `errors.BackendError` or `errors.OptionError` if there is no such one.

    Unless told otherwise it is compiled where arrays cannot be written to, as the users of such a framework do it.
    """
    name, _, mode = spelling.partition(":")
    if mode not in ("", EAGER, COMPILED):
        msg = f"no way {mode!r} to run backend {name!r}. Write {name}, {name}:{EAGER} or {name}:{COMPILED}."
        raise OptionError(msg)
    backend, _ = pick(name, dtype, None)
    by_habit = backend.jit is not None and "in_place" not in backend.capabilities
    compiled = mode == COMPILED or (mode == "" and by_habit)

    def prepare(problem: Problem) -> Prepared:
        return _prepared(backend, problem, compiled)

    return Subject(f"attnspec {spelling}", f"attnspec {beside}", name, prepare)


def _prepared(backend: Backend, problem: Problem, compiled: bool) -> Prepared:
    if problem.case.what == "dropout":
        return _drawn(backend, problem, compiled)
    rule: Any = causal() if problem.causal else None
    if problem.lengths is not None:
        rule = padding(problem.lengths.tolist())
    bias = None if problem.slopes is None else alibi(problem.size.H)
    if problem.pairs is None:
        return prepared(backend, lambda q, k, v: attention(q, k, v, mask=rule, bias=bias), problem, compiled=compiled)
    return prepared(
        backend, lambda q, k, v, pairs: attention(q, k, v, mask=pairs, bias=bias), problem, [problem.pairs],
        compiled=compiled,
    )  # fmt: skip


def _drawn(backend: Backend, problem: Problem, compiled: bool) -> Prepared:
    shape = problem.size.B, problem.size.H, problem.size.Q, problem.size.K
    if not compiled:
        rng, like = random.key(SEED), backend.xp
        drawn: Callable[[], Any] = lambda: random.bernoulli(rng, 1 - RATE, shape, like=like)  # noqa: E731
    elif backend.jit is None:
        raise UnsuitedError(f"backend {backend.name!r} does not compile")
    else:
        words = backend.asarray([0, SEED], dtype="int32")  # an argument, since a compiler folds what is constant
        program: Any = backend.jit(lambda words: random.bernoulli(random.wrap(words), 1 - RATE, shape))
        drawn = lambda: program(words)  # noqa: E731
    return Prepared(lambda: backend.synchronize(drawn()), lambda found: [backend.to_numpy(found)])
