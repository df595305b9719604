"""What is measured beside each other: a subject, and how a function of arrays becomes a call that can be timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

from ..backend import Backend, choose
from .bench_problems import Problem

__all__ = ["BHSD", "BSHD", "Attend", "Prepared", "Subject", "UnsuitedError", "prepared"]

BHSD, BSHD = (0, 1, 2, 3), (0, 2, 1, 3)  # how a library wants its axes, said by those of ours

Attend: TypeAlias = Callable[..., Any]


class UnsuitedError(Exception):
    """What a subject cannot be asked; the text is the reason that is shown."""


class Prepared(NamedTuple):
    """A call of no arguments, and what makes NumPy arrays in the layout of attnspec of its result."""

    call: Callable[[], Any]
    results: Callable[[Any], list[Any]]


@dataclass(frozen=True)
class Subject:
    """One implementation.

    beside
        The subject that its ratios are taken to.
    library
        Whose version is reported.
    prepare
        Makes a call of a problem; raises `UnsuitedError`.
    matrices
        Arrays of B x H x Q x K that it holds at once, in a forward pass.
    """

    name: str
    beside: str
    library: str
    prepare: Callable[[Problem], Prepared]
    matrices: int = 0

    def held(self, problem: Problem) -> int:
        """Bytes of those arrays."""
        passes = 2 if problem.case.what == "gradients" else 1
        itemsize: int = problem.k.itemsize
        return self.matrices * passes * problem.size.scores * itemsize


def prepared(
    backend: Backend,
    attend: Attend,
    problem: Problem,
    extras: Sequence[Any] = (),
    *,
    layout: tuple[int, ...] = BHSD,
    compiled: bool = False,
) -> Prepared:
    """The call of `attend(q, k, v, *extras)`, or of it and its gradients, on arrays that are made beforehand.

    `extras` are NumPy arrays: masks and biases. They are arguments, since a compiler folds what is constant.
    """
    np = choose("numpy").xp
    q, k, v, g = (
        backend.asarray(np.ascontiguousarray(x.transpose(layout))) for x in (problem.q, problem.k, problem.v, problem.g)
    )
    more = [backend.asarray(x) for x in extras]
    if problem.case.what == "gradients":
        program, given = _differentiated(backend, attend), (q, k, v, g, *more)
    else:
        program, given = attend, (q, k, v, *more)
    if compiled:
        program = _compiled(backend, program, given)

    def call() -> Any:
        result = program(*given)
        return tuple(map(backend.synchronize, result if isinstance(result, tuple) else (result,)))

    return Prepared(call, lambda found: [backend.to_numpy(x).transpose(layout) for x in found])


def _differentiated(backend: Backend, attend: Attend) -> Attend:
    """(out, dq, dk, dv) of q, k, v and a cotangent, by what the users of the framework call."""
    if backend.name == "torch":
        return _recorded(attend)
    vjp = backend.vjp
    if vjp is None:
        raise UnsuitedError(f"backend {backend.name!r} has no gradients")

    def both(q: Any, k: Any, v: Any, g: Any, *extras: Any) -> Any:
        out, pullback = vjp(lambda q, k, v: attend(q, k, v, *extras), q, k, v)
        return out, *pullback(g)

    return both


def _recorded(attend: Attend) -> Attend:
    torch = import_module("torch")

    def both(q: Any, k: Any, v: Any, g: Any, *extras: Any) -> Any:
        wanted = [x.requires_grad_() for x in (q, k, v)]
        out = attend(*wanted, *extras)
        return out.detach(), *torch.autograd.grad(out, wanted, g)

    return both


def _compiled(backend: Backend, program: Attend, given: Sequence[Any]) -> Attend:
    """Compiled before the call, and without one where the framework can, so that its memory is that of the call."""
    if backend.jit is None:
        raise UnsuitedError(f"backend {backend.name!r} does not compile")
    jitted = backend.jit(program)
    if hasattr(jitted, "lower"):
        return jitted.lower(*given).compile()  # type: ignore[no-any-return]
    jitted(*given)
    return jitted  # type: ignore[no-any-return]
