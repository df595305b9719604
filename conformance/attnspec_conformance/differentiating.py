"""Functions to differentiate, on a backend and by the oracle; how gradients are asked for, and compared.

Central differences. Along a direction, F(h) = sum g . y(x + h t) gives D(h) = (F(h) - F(-h)) / 2h and, by Richardson,
R(h) = (4 D(h) - D(2h)) / 3, which is off by h^4 F'''''/30 and by higher powers. R(2h) is off by 16 times that, so the
difference of the two is 15 times what R(h) is off by, and all of it is allowed. F errs by E, the bound of y and the
rounding of the sum with g; so D(h) errs by E / h, and R(h) by (4 E / h + E / 2h) / 3 = 3 E / 2h.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

import attnspec
from attnspec.struct import arrays_in, with_arrays

from .judges import all_of, near
from .masks import Array
from .oracle_layers import Value
from .problems import normal
from .trials import Verdict
from .values import allowed, unit

Pulled = Callable[[Mapping[str, Value]], Mapping[str, Value]]


@dataclass(frozen=True, eq=False)
class Case:
    """A function of trees of arrays, and what the oracle says of it.

    `function` takes a backend and the trees in its arrays. `results` are by their paths in what it returns ("" for a
    single array), and `pull` leads from their cotangents to the gradients, by their paths in `args`: "0.wq", "1".
    `fixed` are those in which central differences take no step, since the function is not smooth in them.
    """

    dtype: str
    args: tuple[Any, ...]
    function: Callable[..., Any]
    results: Mapping[str, Value]
    pull: Pulled
    fixed: tuple[str, ...] = ()


def named(tree: Any) -> dict[str, Any]:
    """The arrays of a tree by their paths."""
    return {name[1:]: x for name, x in arrays_in("", tree).items()}


class Flat:
    """The case on a backend, as a function from floating arrays to a tuple of arrays."""

    def __init__(self, backend: Any, case: Case) -> None:
        self.backend, self.case = backend, case
        given = named(case.args)
        self.made = {n: self._asarray(x) for n, x in given.items()}
        self.names = [n for n, x in given.items() if x.dtype.kind == "f"]
        self.floats = [self.made[n] for n in self.names]
        self.cotangents = [self._cotangent(n, name) for n, name in enumerate(case.results)]

    def __call__(self, *floats: Any) -> tuple[Any, ...]:
        arrays = self.made | dict(zip(self.names, floats, strict=True))
        result = self.case.function(
            self.backend, *with_arrays("", self.case.args, {f".{n}": x for n, x in arrays.items()})
        )
        found = named(result)
        return tuple(found[name] for name in self.case.results)

    def _asarray(self, x: Array) -> Any:
        return self.backend.asarray(x, dtype=self.case.dtype if x.dtype.kind == "f" else None)

    def _cotangent(self, n: int, name: str) -> Array:
        value = self.case.results[name]
        return normal(60 + n, *value.exact.shape, dtype=self.case.dtype)

    def pulled(
        self, how: Callable[..., Any], changed: Mapping[str, Array] | None = None
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Results, and gradients for the cotangents, by `how(function, floats, cotangents)`; at other arguments."""
        made = self.made | {n: self._asarray(x) for n, x in (changed or {}).items()}
        floats = [made[n] for n in self.names]
        results, gradients = how(self, floats, [self._asarray(g) for g in self.cotangents])
        return (
            {name: self.plain(x) for name, x in zip(self.case.results, results, strict=True)},
            {name: self.plain(x) for name, x in zip(self.names, gradients, strict=True)},
        )

    def plain(self, x: Any) -> Array:
        """In NumPy's float64."""
        return np.asarray(self.backend.to_numpy(x)).astype(np.float64)

    def wanted(self) -> dict[str, Value]:
        """The gradients by the oracle; exact zeros for what it does not name, since no result depends on that."""
        given = (Value.given(g) for g in self.cotangents)
        pulled = self.case.pull(dict(zip(self.case.results, given, strict=True)))
        nothing = {n: Value.given(np.zeros(x.shape)) for n, x in named(self.case.args).items() if n in self.names}
        return nothing | dict(pulled)


def by_tape(function: Callable[..., Any], floats: Sequence[Any], cotangents: Sequence[Any]) -> Any:
    """(results, gradients) by `attnspec.vjp`."""
    results, pullback = attnspec.vjp(function, *floats)
    given = (_as(g, x) for g, x in zip(cotangents, results, strict=True))
    return results, pullback(tuple(given))


def by_framework(backend: Any) -> Callable[..., Any]:
    """The same by the framework's own reverse mode."""

    def pulled(function: Callable[..., Any], floats: Sequence[Any], cotangents: Sequence[Any]) -> Any:
        results, pull = backend.vjp(function, *floats)
        return results, pull(tuple(_as(g, x) for g, x in zip(cotangents, results, strict=True)))

    return pulled


def compiled(backend: Any, how: Callable[..., Any]) -> Callable[..., Any]:
    """The same as one compiled program, made once for each function."""

    @cache
    def program(function: Callable[..., Any], n: int) -> Callable[..., Any]:
        return backend.jit(lambda *arrays: how(function, arrays[:n], arrays[n:]))  # type: ignore[no-any-return]

    return lambda function, floats, cotangents: program(function, len(floats))(*floats, *cotangents)


def quick(backend: Any, how: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled where the eager way is the slower one."""
    return how if _is_quick(backend) else compiled(backend, how)


def _is_quick(backend: Any) -> bool:
    """A framework whose arrays cannot be written to compiles each operation for each shape, so it had better all."""
    return "jit" not in backend.capabilities or "in_place" in backend.capabilities


def _as(g: Any, x: Any) -> Any:
    """The cotangent in the dtype of the result: lse is wider than half types."""
    return g if g.dtype == x.dtype else g.astype(x.dtype) if hasattr(g, "astype") else g.to(x.dtype)


@dataclass(frozen=True)
class Found:
    """What a backend computed: results and gradients by their paths, in NumPy."""

    flat: Flat
    results: Mapping[str, Array]
    gradients: Mapping[str, Array]

    def against_the_oracle(self) -> Verdict:
        """Results and gradients, each within its bound."""
        case, wanted = self.flat.case, self.flat.wanted()
        parts = [(name or "y", self.results[name], value) for name, value in case.results.items()]
        parts += [(f"gradient of {name}", x, wanted[name]) for name, x in self.gradients.items()]
        bounded = ((name, x, allowed(value, case.dtype)) for name, x, value in parts)
        return all_of(near(name, x, value.exact, value.error) for name, x, value in bounded)


def found(backend: Any, case: Case, how: Callable[..., Any] | None = None) -> Found:
    """By `attnspec.vjp` in the backend's quickest way, or as asked."""
    flat = Flat(backend, case)
    return Found(flat, *flat.pulled(quick(backend, by_tape) if how is None else how))


STEP = 2.0**-9


def against_central_differences(found: Found) -> Verdict:
    """The gradients along one direction against differences of the function itself, both in float64."""
    flat, gradients = found.flat, found.gradients
    directions = {n: normal(90 + i, *np.shape(flat.made[n])).astype(np.float64) for i, n in enumerate(flat.names)}
    directions |= {n: np.zeros_like(directions[n]) for n in flat.case.fixed if n in directions}
    along = sum(float(np.sum(directions[n] * gradients[n])) for n in flat.names)
    function = flat if _is_quick(flat.backend) else flat.backend.jit(lambda *floats: flat(*floats))
    numbers = named(flat.case.args)

    def at(step: float) -> float:
        moved = (np.asarray(numbers[n] + step * directions[n], np.float64) for n in flat.names)
        results = map(flat.plain, function(*map(flat.backend.asarray, moved)))
        return sum(float(np.sum(g * _finite(y))) for g, y in zip(flat.cotangents, results, strict=True))

    slopes = [(at(h) - at(-h)) / (2 * h) for h in (STEP, 2 * STEP, 4 * STEP)]
    fine, coarse = ((4 * one - two) / 3 for one, two in pairwise(slopes))
    noise, u = 0.0, unit("float64")
    for g, y in zip(flat.cotangents, flat.case.results.values(), strict=True):
        noise += float(np.sum(np.abs(g) * (2 * y.error + (y.exact.size + 2) * u * np.abs(_finite(y.exact)))))
    of_sum = sum(float(np.sum(np.abs(directions[n] * gradients[n]))) for n in flat.names)
    bound = abs(fine - coarse) + 1.5 * noise / STEP + sum(map(np.size, gradients.values())) * u * of_sum
    return near("the derivative along a direction", np.array(along), np.array(fine), np.array(bound))


def _finite(x: Array) -> Array:
    """Without the lse of rows that see nothing, which does not move."""
    return np.where(np.isfinite(x), x, 0.0)
