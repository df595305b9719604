"""Attention as it is written by hand in each framework, whole matrices at a time, and its own random masks."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from ..backend import choose
from .bench_problems import RATE, Problem
from .bench_subjects import Prepared, Subject, UnsuitedError, prepared

__all__ = ["FRAMEWORKS", "naive"]


def naive(name: str, beside: str) -> Subject:
    """The dense formula in NumPy, torch or JAX; compiled in JAX."""
    return Subject(f"naive {name}", beside, name, FRAMEWORKS[name], matrices=3)


def _numpy(problem: Problem) -> Prepared:
    np = choose("numpy").xp
    if problem.case.what == "dropout":
        rng, shape = np.random.default_rng(0), _shape(problem)
        return Prepared(lambda: rng.random(shape, dtype="float32") < 1 - RATE, lambda found: [found])
    times, scale, visible, bias = _heads(problem), problem.size.D**-0.5, problem.visible(), problem.bias()

    def weights(q: Any, k: Any) -> Any:
        s = q @ k.swapaxes(-1, -2) * scale
        if bias is not None:
            s = s + bias
        if visible is not None:
            s = np.where(visible, s, -np.inf)
        e = np.exp(s - s.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    def attend(q: Any, k: Any, v: Any) -> Any:
        k, v = (np.repeat(x, times, axis=-3) if times > 1 else x for x in (k, v))
        return weights(q, k) @ v

    def with_gradients() -> Any:
        q, k, v, g = problem.q, problem.k, problem.v, problem.g
        p = weights(q, k)
        dp = g @ v.swapaxes(-1, -2)
        ds = p * (dp - (dp * p).sum(axis=-1, keepdims=True)) * scale
        return p @ v, ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ g

    if problem.case.what != "gradients":
        return prepared(choose("numpy"), attend, problem)
    if times > 1:
        raise UnsuitedError("its gradients are written for heads that share nothing")
    return Prepared(with_gradients, list)


def _torch(problem: Problem) -> Prepared:
    backend, torch = choose("torch"), import_module("torch")
    if problem.case.what == "dropout":
        ones = torch.ones(_shape(problem))
        return Prepared(lambda: torch.nn.functional.dropout(ones, RATE), lambda found: [backend.to_numpy(found)])
    times, scale, extras, named = _heads(problem), problem.size.D**-0.5, *_extras(problem)

    def attend(q: Any, k: Any, v: Any, *arrays: Any) -> Any:
        given = dict(zip(named, arrays, strict=True))
        if times > 1:
            k, v = (torch.repeat_interleave(x, times, dim=-3) for x in (k, v))
        s = q @ k.mT * scale
        if "bias" in given:
            s = s + given["bias"]
        if "visible" in given:
            s = s.masked_fill(~given["visible"], -torch.inf)
        return torch.softmax(s, dim=-1) @ v

    return prepared(backend, attend, problem, extras)


def _jax(problem: Problem) -> Prepared:
    backend, jax, jnp = choose("jax"), import_module("jax"), import_module("jax.numpy")
    if problem.case.what == "dropout":
        shape, rng = _shape(problem), jax.random.key(7)
        program = jax.jit(lambda rng: jax.random.bernoulli(rng, 1 - RATE, shape))
        return Prepared(lambda: backend.synchronize(program(rng)), lambda found: [backend.to_numpy(found)])
    times, scale, extras, named = _heads(problem), problem.size.D**-0.5, *_extras(problem)

    def attend(q: Any, k: Any, v: Any, *arrays: Any) -> Any:
        given = dict(zip(named, arrays, strict=True))
        if times > 1:
            k, v = (jnp.repeat(x, times, axis=-3) for x in (k, v))
        s = q @ k.mT * scale
        if "bias" in given:
            s = s + given["bias"]
        if "visible" in given:
            s = jnp.where(given["visible"], s, -jnp.inf)
        return jax.nn.softmax(s, axis=-1) @ v

    return prepared(backend, attend, problem, extras, compiled=True)


FRAMEWORKS: dict[str, Callable[[Problem], Prepared]] = {"numpy": _numpy, "torch": _torch, "jax": _jax}


def _shape(problem: Problem) -> tuple[int, ...]:
    return problem.size.B, problem.size.H, problem.size.Q, problem.size.K


def _heads(problem: Problem) -> int:
    return problem.size.H // problem.size.G


def _extras(problem: Problem) -> tuple[list[Any], list[str]]:
    """What is visible and what is added, as far as there is any, and the names of those arrays."""
    both = {"visible": problem.visible(), "bias": problem.bias()}
    given = {name: x for name, x in both.items() if x is not None}
    return list(given.values()), list(given)
