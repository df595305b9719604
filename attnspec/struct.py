"""Frozen dataclasses that every framework sees through.

Parameters, caches, masks, biases and random keys are `Struct`s: their arrays are pytree leaves, so `jax.jit`,
`jax.grad`, `torch.func.vmap` and friends take them as arguments; numbers, strings and None are static, except
fields with the metadata `LEAF` (a random key's words, a cache's length), which are leaves whatever they hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any, ClassVar, TypeVar

from ._compat import Array, is_array
from .host import announce

T = TypeVar("T", bound="Struct")

LEAF = {"leaf": True}  # metadata of a field that is a leaf even when it holds a Python number


class Struct:
    """Base of the frozen dataclasses. Nothing here looks at a leaf: tree maps put odd things there."""

    # The fields that were leaves when the struct was taken apart, if it has been: a transform that puts a number in
    # place of an array means a leaf, whatever it looks like.
    _leaves: ClassVar[tuple[str, ...] | None] = None

    def __post_init__(self) -> None:
        announce(type(self))


def arrays_in(name: str, value: Any) -> dict[str, Array]:
    """The arrays that a value holds, by dotted name; Structs, tuples, lists and dictionaries are looked into."""
    found: dict[str, Array] = {}
    _collect(found, name, value)
    return found


def _collect(found: dict[str, Array], name: str, value: Any) -> None:
    parts = _parts(value)
    if parts is not None:
        for part, x in parts.items():
            if x is not None:
                _collect(found, f"{name}.{part}", x)
    elif is_array(value):
        found[name] = value


def with_arrays(name: str, value: Any, arrays: Mapping[str, Any]) -> Any:
    """The value with other things in the places that `arrays_in(name, value)` names; the rest stays."""
    parts = _parts(value)
    if parts is None:
        return arrays.get(name, value)
    made = {part: with_arrays(f"{name}.{part}", x, arrays) for part, x in parts.items()}
    if isinstance(value, Struct):
        struct = type(value)(**made)
        object.__setattr__(struct, "_leaves", value._leaves)
        return struct
    if isinstance(value, dict):
        return dict(zip(value, made.values(), strict=True))
    return value._make(made.values()) if hasattr(value, "_make") else type(value)(made.values())


def _parts(value: Any) -> dict[Any, Any] | None:
    """What a tree holds, by name; None for what is no tree."""
    if isinstance(value, Struct):
        return {f.name: getattr(value, f.name) for f in fields(value)}  # type: ignore[arg-type]
    if isinstance(value, dict):
        return value
    return dict(enumerate(value)) if isinstance(value, tuple | list) else None


def flatten(struct: Struct) -> tuple[tuple[Any, ...], tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]]:
    """(children, (their names, the static fields)), as JAX and torch want it."""
    names: list[str] = []
    children: list[Any] = []
    static: list[tuple[str, Any]] = []
    for f in fields(struct):  # type: ignore[arg-type]
        value = getattr(struct, f.name)
        if _is_leaf(f, value) if struct._leaves is None else f.name in struct._leaves:
            names.append(f.name)
            children.append(value)
        else:
            static.append((f.name, value))
    return tuple(children), (tuple(names), tuple(static))


def unflatten(cls: type[T], aux: tuple[tuple[str, ...], tuple[tuple[str, Any], ...]], children: Any) -> T:
    """The struct that `flatten` took apart, with other children."""
    names, static = aux
    struct = cls(**dict(zip(names, children, strict=True)), **dict(static))
    object.__setattr__(struct, "_leaves", names)
    return struct


def _is_leaf(f: Field[Any], value: object) -> bool:
    return bool(f.metadata.get("leaf")) or not _is_plain(value)


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | range)
