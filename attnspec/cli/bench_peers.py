"""Who is measured beside whom: attnspec on its backends, what is written by hand there, libraries, and the limit."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import NamedTuple

from ..errors import BackendError, OptionError
from .bench_libraries import LIBRARIES, library
from .bench_limit import FRAMEWORKS as LIMITED
from .bench_limit import limit
from .bench_naive import FRAMEWORKS as BY_HAND
from .bench_naive import naive
from .bench_own import base, own
from .bench_subjects import Subject

__all__ = ["BACKENDS", "PEERS", "Absent", "Field", "field", "find", "named"]

BACKENDS = ("numpy", "torch", "jax")  # measured unless told otherwise, as far as they load
NAIVE, LIMIT = "naive", "limit"
PEERS = (NAIVE, LIMIT, *LIBRARIES)


class Absent(NamedTuple):
    """Who is not measured, and why."""

    name: str
    why: str


class Field(NamedTuple):
    """The subjects, attnspec's first, and who is absent."""

    subjects: list[Subject]
    absent: list[Absent]


def named(text: str) -> list[str]:
    """The peers of a list with commas. Raises `errors.OptionError` for a name that none has."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in PEERS:
            msg = f"no peer {name!r}. There are {', '.join(PEERS)}."
            raise OptionError(msg)
    return names


def field(backends: Sequence[str] | None, against: Sequence[str], dtype: str = "float32") -> Field:
    """attnspec on those backends, and those peers.

    Raises `errors.BackendError` for a backend that was named and does not load; without names those that do not are
    absent.
    """
    subjects: list[Subject] = []
    absent: list[Absent] = []
    for spelling in BACKENDS if backends is None else backends:
        first = next((s.name.partition(" ")[2] for s in subjects if base(_spelling(s)) == base(spelling)), spelling)
        try:
            subjects.append(own(spelling, dtype, first))
        except BackendError as error:
            if backends is not None:
                raise
            absent.append(Absent(spelling, str(error)))
    if not subjects:
        msg = f"none of {', '.join(BACKENDS)} loads; `attnspec backends` says why."
        raise OptionError(msg)
    ours = list(subjects)
    for name in against:
        for peer in _peers(name, ours):
            (subjects if isinstance(peer, Subject) else absent).append(peer)  # type: ignore[arg-type]
    return Field(subjects, absent)


def find(name: str, dtype: str) -> Subject:
    """The subject of that name, in a process of its own."""
    kind, _, of = name.partition(" ")
    if kind == "attnspec":
        return own(of, dtype, of)
    if of:
        return naive(of, name) if kind == NAIVE else limit(of, name)
    return library(name, name)


def _peers(name: str, ours: list[Subject]) -> list[Subject | Absent]:
    """The peer beside each of the backends that it belongs to."""
    if name in LIBRARIES:
        found = LIBRARIES[name]
        missing = [module for module in found.modules if find_spec(module) is None]
        if missing:
            return [Absent(name, f"{' and '.join(missing)} not installed")]
        return [library(name, _beside(found.base(), ours))]
    written, make, why = (BY_HAND, naive, "by hand") if name == NAIVE else (LIMITED, limit, "with its products")
    of_each: list[Subject | Absent] = []
    for backend in dict.fromkeys(base(_spelling(s)) for s in ours):
        if backend in written:
            of_each.append(make(backend, _beside(backend, ours)))
        else:
            of_each.append(Absent(f"{name} {backend}", f"attention {why} is there for {' and '.join(written)}"))
    return of_each


def _beside(backend: str, ours: list[Subject]) -> str:
    """attnspec on that backend, or on the first one."""
    return next((s.name for s in ours if base(_spelling(s)) == backend), ours[0].name)


def _spelling(subject: Subject) -> str:
    return subject.name.partition(" ")[2]
