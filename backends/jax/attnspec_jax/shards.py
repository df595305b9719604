"""How the arrays of one attention call lie along its axes, and the call that a part of them makes.

A sequence is split over an axis of a mesh by splitting every array that has an entry for each query or for each key:
q, k, v, positions, ids of segments, array masks and biases. What no rule says an array lies along, each device has
whole.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attnspec.errors import OptionError
from attnspec.positional import Alibi, Relative
from attnspec.request import Request
from attnspec.rule_arrays import clamped, widened_ints
from attnspec.rules import And, ArrayMask, Not, Or, Padding, Rule, Segments, Window
from attnspec.struct import Struct, arrays_in, with_arrays
from attnspec.terms import ArrayBias, Sum

Arrays = dict[str, Any]


class Lies(NamedTuple):
    """Which axis of an array, counted from the end, is that of the queries, of the keys, of the heads."""

    queries: int | None = None
    keys: int | None = None
    heads: int | None = None


_SCORES = Lies(-2, -1, -3)
_OWN = {
    ".q": Lies(queries=-2, heads=-3), ".k": Lies(keys=-2, heads=-3), ".v": Lies(keys=-2, heads=-3),
    ".q_positions": Lies(queries=-1), ".k_positions": Lies(keys=-1), ".sink": Lies(heads=-1),
}  # fmt: skip
_HELD: dict[type, dict[str, Lies]] = {
    Window: {}, Padding: {}, And: {}, Or: {}, Not: {}, Sum: {},
    Segments: {"q_ids": Lies(queries=-1), "k_ids": Lies(keys=-1)},
    ArrayMask: {"array": _SCORES}, ArrayBias: {"array": _SCORES},
    Alibi: {"slopes": Lies(heads=-1)}, Relative: {"table": Lies(heads=-2)},
}  # fmt: skip


def layout(request: Request) -> dict[str, Lies]:
    """How each array of the request lies, by its name in `arrays_in("", request)`."""
    known = _OWN | _held(".mask", request.mask) | _held(".bias", request.bias)
    found = {}
    for name, x in arrays_in("", request).items():
        lies = known.get(name, Lies())
        # An axis of length 1 is broadcast, but those of q, k and v.
        own = name in (".q", ".k", ".v")
        found[name] = Lies(*(p if p is not None and x.ndim >= -p and (own or x.shape[p] > 1) else None for p in lies))
    return found


def _held(name: str, option: Any) -> dict[str, Lies]:
    if not isinstance(option, Struct):
        return {}
    if type(option) not in _HELD:
        msg = (
            f"{name[1:].partition('.')[0]} holds a {type(option).__name__}, which does not say how it is split over "
            "devices; attnspec's own rules and arrays are needed."
        )
        raise OptionError(msg)
    held = {f"{name}.{field}": lies for field, lies in _HELD[type(option)].items()}
    for f in fields(option):  # type: ignore[arg-type]
        held |= _held(f"{name}.{f.name}", getattr(option, f.name))
    return held


def from_the_start(request: Request) -> Request:
    """The same call with rules that count from the first key, and with arrays for what is to be split."""
    ahead = request.axes.K - request.axes.Q
    return replace(request, mask=_from_the_start(request.mask, ahead), bias=_from_the_start(request.bias, ahead))


def _from_the_start(option: Any, ahead: int) -> Any:
    if not isinstance(option, Struct):
        return option
    changed = {f.name: _from_the_start(getattr(option, f.name), ahead) for f in fields(option)}  # type: ignore[arg-type]
    if getattr(option, "align", "start") == "end":
        changed |= {"align": "start", "offset": _later(changed["offset"], ahead)}
    if isinstance(option, Segments):
        changed = {name: jnp.asarray(x, jnp.int32) if isinstance(x, tuple) else x for name, x in changed.items()}
    if isinstance(option, Alibi) and isinstance(option.slopes, tuple):
        changed["slopes"] = jnp.asarray(option.slopes, option.dtype)
    return type(option)(**changed)


def _later(offset: Any, ahead: int) -> Any:
    if isinstance(offset, tuple):
        return tuple(n + ahead for n in offset)
    return offset + ahead if isinstance(offset, int) else widened_ints(offset) + ahead


@dataclass(frozen=True)
class Tile:
    """Some queries of a shard and some keys of a shard."""

    q: Any  # the first query, in its shard
    Q: int
    k: Any
    K: int
    q_shard: Any  # the first query of the shard, in the call
    k_shard: Any

    def of(self, x: Any, lies: Lies) -> Any:
        """What belongs to them of an array that a device has of a shard; a row of scores it has whole."""
        sizes = list(x.shape)
        for place, size in ((lies.queries, self.Q), (lies.keys, self.K)):
            if place is not None:
                sizes[place] = size
        return x if sizes == list(x.shape) else jax.lax.dynamic_slice(x, self._starts(x, lies), sizes)

    def put(self, whole: Any, x: Any, lies: Lies) -> Any:
        """`whole` with x in that place."""
        return jax.lax.dynamic_update_slice(whole, x, self._starts(whole, lies))

    def _starts(self, x: Any, lies: Lies) -> list[Any]:
        starts = [0] * x.ndim
        if lies.queries is not None:
            starts[lies.queries] = self.q
        if lies.keys is not None:
            starts[lies.keys] = self.k if lies.queries is None else self.k + self.k_shard
        return starts

    def request(self, whole: Request, arrays: Arrays, lies: dict[str, Lies]) -> Request:
        """The call of these queries and keys. The sink belongs to whoever starts the sums."""
        arrays = {name: self.of(x, lies[name]) for name, x in arrays.items()}
        own: Request = with_arrays("", whole, arrays)
        request = replace(own, axes=replace(whole.axes, Q=self.Q, K=self.K), sink=None)
        if request.mask is None and request.bias is None:
            return replace(request, q_positions=None, k_positions=None)
        return replace(
            request,
            q_positions=_positions(request.q_positions, self.q_shard + self.q, self.Q),
            k_positions=_positions(request.k_positions, self.k_shard + self.k, self.K),
        )


def _positions(positions: Any, start: Any, size: int) -> Any:
    if positions is not None and not isinstance(positions, range):
        return positions
    first = positions.start if isinstance(positions, range) else 0
    return jnp.arange(size, dtype=jnp.int32) + (first + start)


def may_see(request: Request) -> Any:
    """Whether any query may see any key, by the least and the greatest positions; None: nothing hides them."""
    if request.mask is None:
        return None
    positions: tuple[Any, Any] = request.q_positions, request.k_positions
    q, k = ((x.min(), x.max()) for x in positions)
    return _may_see(request.mask, q, k)


def _may_see(rule: Rule, q: tuple[Any, Any], k: tuple[Any, Any]) -> Any:
    if isinstance(rule, And | Or):
        a, b = (_may_see(x, q, k) for x in (rule.a, rule.b))
        return a & b if isinstance(rule, And) else a | b
    if isinstance(rule, Padding):
        return k[0] < jnp.max(jnp.asarray(clamped(rule.lengths)))
    if isinstance(rule, Window):
        offset, seen = jnp.asarray(clamped(rule.offset)), jnp.asarray(True)
        if rule.right is not None:
            seen &= k[0] - q[1] <= jnp.max(offset) + clamped(rule.right)
        if rule.left is not None:
            seen &= k[1] - q[0] >= jnp.min(offset) - clamped(rule.left)
        return seen
    return jnp.asarray(True)
