"""Make a failing call smaller while it still fails: fewer rows and heads, fewer options, rounder numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from time import monotonic
from typing import Any

import numpy as np

from .. import masks
from ..masks import Array
from ..problems import rounded
from ..trials import Call

Indices = Sequence[int]

# The last axes of each array; leading axes stand before them, and a missing one or one of size 1 is broadcast.
AXES = {
    "q": "HQD", "k": "GKD", "v": "GKE", "bias": "HQK", "sink": "H", "dout": "HQE", "dlse": "HQ",
    "q_positions": "Q", "k_positions": "K",
}  # fmt: skip
MASK_AXES = {"array": "HQK", "offset": "", "lengths": "", "q_ids": "Q", "k_ids": "K"}
FLOATS = ("q", "k", "v", "bias", "sink", "dout", "dlse")
PLAIN = {
    f.name: f.default
    for f in fields(Call)
    if f.name not in (*"qkv", "dout", "dlse", "dtype", "bias_dtype", "want")
}  # fmt: skip
# Options that a clause is about, by how its name begins: without them it would be another's fault that is shown.
ABOUT = {
    "MASK": ("mask", "bias"), "SCORE-1": ("scale",), "SCORE-4": ("softcap", "bias"), "SCORE-5": ("bias",),
    "SOFTMAX-2": ("sink",), "DROPOUT": ("dropout",), "SHAPE-4": ("layout",), "PATH": ("implementation",),
}  # fmt: skip


def shrink(call: Call, fails: Callable[[Call], bool], seconds: float, clauses: Iterable[str] = ()) -> Call:
    """The smallest call found in the time given; it keeps the options that these clauses are about.

    `fails` is asked of calls only that are as legal as the first one.
    """
    until = monotonic() + seconds
    kept = {
        option for clause in clauses for name, options in ABOUT.items() if clause.startswith(name) for option in options
    }
    steps: tuple[Callable[[Call], Iterator[Call]], ...] = (
        _shorter_lead, _fewer_heads, *(partial(_shorter, axis) for axis in "QKED"), partial(_fewer_options, kept),
        _squeezed, _rounder,
    )  # fmt: skip
    before = None
    while call is not before:
        before = call
        for step in steps:
            call = _exhausted(step, call, fails, until)
    return call


def _exhausted(step: Callable[[Call], Iterator[Call]], call: Call, fails: Callable[[Call], bool], until: float) -> Call:
    """The call after as many of these steps as still fail."""
    found: Call | None = call
    while found is not None:
        call = found
        found = next((smaller for smaller in step(call) if monotonic() < until and fails(smaller)), None)
    return call


def _shorter_lead(call: Call) -> Iterator[Call]:
    lead = np.broadcast_shapes(*(x.shape[:-3] for x in (call.q, call.k, call.v)))
    for back, size in enumerate(reversed(lead), 1):
        for kept in _parts(size):
            yield _taken(call, {back: kept})


def _fewer_heads(call: Call) -> Iterator[Call]:
    G, H = _heads(call.k), _heads(call.q)
    ratio = H // G if G else 1
    for kept in _parts(G):
        yield _taken(call, {"G": kept, "H": [g * ratio + r for g in kept for r in range(ratio)]})
    for kept in _parts(ratio):
        yield _taken(call, {"H": [g * ratio + r for g in range(G) for r in kept]})


def _shorter(axis: str, call: Call) -> Iterator[Call]:
    sizes = {"Q": call.q.shape[-2], "K": call.k.shape[-2], "D": call.q.shape[-1], "E": call.v.shape[-1]}
    for kept in _parts(sizes[axis]):
        yield _taken(call, {axis: kept})


def _fewer_options(kept: Collection[str], call: Call) -> Iterator[Call]:
    for name, default in PLAIN.items():
        given = getattr(call, name)
        if name not in kept and (isinstance(given, np.ndarray) or given != default):
            yield call.but(**{name: default})
    if isinstance(call.mask, masks.Both | masks.Either):
        yield call.but(mask=call.mask.one)
        yield call.but(mask=call.mask.other)
    if call.want == "lse":
        yield call.but(want="out")


def _heads(x: Array) -> int:
    return int(x.shape[-3]) if x.ndim > 2 else 1


def _parts(size: int) -> Iterator[Indices]:
    """Each half of an axis, then all but one of its entries."""
    if size > 1:
        yield range(size // 2)
        yield range(size // 2, size)
    if 2 < size <= 8:
        for left_out in range(size):
            yield [n for n in range(size) if n != left_out]


def _taken(call: Call, kept: dict[str | int, Indices]) -> Call:
    """The call with these entries of its axes: letters for the last ones, numbers for leading ones from the right."""
    arrays = {name: getattr(call, name) for name in AXES}
    changes: dict[str, Any] = {
        name: _take(np.asarray(x, np.int32) if isinstance(x, range) else x, AXES[name], kept)
        for name, x in arrays.items()
        if x is not None
    }
    return call.but(**changes, mask=_on_arrays(call.mask, lambda name, x: _take(x, MASK_AXES[name], kept)))


def _take(x: Array, letters: str, kept: dict[str | int, Indices]) -> Array:
    x = np.asarray(x)
    for axis, indices in kept.items():
        back = len(letters) + axis if isinstance(axis, int) else len(letters) - letters.find(axis)
        if (isinstance(axis, int) or axis in letters) and x.ndim >= back and x.shape[-back] > 1:
            x = np.take(x, indices, axis=-back)
    return x


def _on_arrays(mask: masks.Mask | None, change: Callable[[str, Array], Array]) -> Any:
    """The mask with every array in it changed."""
    if mask is None:
        return None
    parts = {f.name: getattr(mask, f.name) for f in fields(mask)}
    for name, part in parts.items():
        if name in MASK_AXES and isinstance(part, np.ndarray | np.generic):
            parts[name] = change(name, part)
        elif isinstance(part, masks.Mask):
            parts[name] = _on_arrays(part, change)
    return type(mask)(**parts)


def _squeezed(call: Call) -> Iterator[Call]:
    """Without leading axes of size 1 that q, k and v have in common, the head axis included."""
    ones = min(map(_leading_ones, (call.q, call.k, call.v)))
    if ones:
        changes = {name: _drop(getattr(call, name), len(AXES[name])) for name in AXES if name not in "qkv"}
        changes |= {name: getattr(call, name)[(0,) * ones] for name in "qkv"}
        yield call.but(**changes, mask=_on_arrays(call.mask, lambda name, x: _drop(x, len(MASK_AXES[name]))))


def _leading_ones(x: Array) -> int:
    lead: list[int] = list(x.shape[:-2])
    return next((n for n, size in enumerate(lead) if size != 1), len(lead))


def _drop(x: Any, least: int) -> Any:
    while isinstance(x, np.ndarray) and x.ndim > max(least - 1, 0) and x.ndim and x.shape[0] == 1:
        x = x[0]
    return x


def _rounder(call: Call) -> Iterator[Call]:
    """With numbers that are easier to read, the easiest first."""
    for name in FLOATS:
        x = getattr(call, name)
        if x is None or not np.size(x):
            continue
        dtype = (call.bias_dtype if name == "bias" else None) or call.dtype
        with np.errstate(all="ignore"):
            for simple in (np.zeros_like(x), np.ones_like(x), *(np.round(x, digits) for digits in range(3))):
                easier = rounded(np.where(np.isfinite(x), simple, x) + 0.0, dtype)  # + 0.0: no negative zeros
                if _digits(easier) < _digits(x) and (np.isfinite(easier) == np.isfinite(x)).all():
                    yield call.but(**{name: easier})


def _digits(x: Array) -> int:
    return sum(len(repr(float(number))) if math.isfinite(number) else 1 for number in np.ravel(x)[:512])
