"""How the arrays of one attention call lie along its axes, and the call that a part of them makes.

What every distributed attention needs before it sends anything. A sequence is split by splitting every array that has
an entry for each query or for each key: q, k, v, positions, ids of segments, array masks and biases. What no rule says
an array lies along, everybody has whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from ._compat import Array, Namespace, namespace
from .errors import OptionError
from .host import beside
from .positional import Alibi, Relative
from .request import Request
from .rule_arrays import clamped, widened_ints
from .rules import And, ArrayMask, Not, Or, Padding, Rule, Segments, Window
from .struct import Struct, arrays_in, with_arrays
from .terms import ArrayBias, Sum

Arrays = dict[str, Any]
Bounds = tuple[Any, Any]  # the least and the greatest of some positions


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
    """How each array of the request lies, by its name in `arrays_in("", request)`.

    Raises `errors.OptionError` for somebody else's rule, which does not say.
    """
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
    """The same call as parts of it read it: rules count from the first key, arrays hold what is to be split."""
    ahead, xp, place = request.axes.K - request.axes.Q, request.xp, beside(request.q)

    def counted(option: Any) -> Any:
        if not isinstance(option, Struct):
            return option
        changed = {f.name: counted(getattr(option, f.name)) for f in fields(option)}  # type: ignore[arg-type]
        if changed.get("align") == "end":
            changed |= {"align": "start", "offset": _later(changed["offset"], ahead)}
        if isinstance(option, Segments):
            lists = {name: x for name, x in changed.items() if isinstance(x, tuple)}
            changed |= {name: xp.asarray(x, dtype=xp.int32, **place) for name, x in lists.items()}
        if isinstance(option, Alibi) and isinstance(option.slopes, tuple):
            changed["slopes"] = xp.asarray(option.slopes, dtype=getattr(xp, option.dtype), **place)
        return type(option)(**changed)

    scores, dropout = request.axes.scores, request.dropout
    return replace(
        request, mask=counted(request.mask), bias=counted(request.bias),
        dropout=None if dropout is None else dropout.part(scores, (0,) * len(scores), scores),
    )  # fmt: skip


def _later(offset: Any, ahead: int) -> Any:
    if isinstance(offset, tuple):
        return tuple(n + ahead for n in offset)
    return offset + ahead if isinstance(offset, int) else widened_ints(offset) + ahead


@dataclass(frozen=True)
class Tile:
    """Some queries of a shard and some keys of a shard. Where programs are recorded, places may be arrays."""

    q: Any  # the first query, in its shard
    Q: int
    k: Any
    K: int
    q_shard: Any  # the first query of the shard, in the call
    k_shard: Any

    def request(self, whole: Request, arrays: Arrays, lies: Mapping[str, Lies]) -> Request:
        """The call of these queries and keys. The sink belongs to whoever starts the sums."""
        arrays = {name: self.of(x, lies[name]) for name, x in arrays.items()}
        own: Request = with_arrays("", whole, arrays)
        axes = replace(whole.axes, Q=self.Q, K=self.K)
        request = replace(own, axes=axes, sink=None)
        if request.dropout is not None:
            starts = (*(0,) * (len(axes.scores) - 2), self.q_shard + self.q, self.k_shard + self.k)
            request = replace(request, dropout=request.dropout.part(axes.scores, starts, axes.scores))
        if request.mask is None and request.bias is None:
            return replace(request, q_positions=None, k_positions=None)
        return replace(
            request,
            q_positions=_positions(request.q, request.q_positions, self.q_shard + self.q, self.Q),
            k_positions=_positions(request.q, request.k_positions, self.k_shard + self.k, self.K),
        )

    def of(self, x: Array, lies: Lies) -> Array:
        """What belongs to them of an array that is here for a shard; a row of scores is here whole."""
        if lies.queries is None and lies.keys is None:  # one without axes would become a number
            return x
        places = [slice(None)] * x.ndim
        for axis, start, size in zip(range(x.ndim), self.starts(x, lies), self.sizes(x, lies), strict=True):
            places[axis] = slice(start, start + size)
        return x[tuple(places)]

    def starts(self, x: Array, lies: Lies) -> list[Any]:
        """Where they begin along each axis of such an array."""
        starts: list[Any] = [0] * x.ndim
        if lies.queries is not None:
            starts[lies.queries] = self.q
        if lies.keys is not None:
            starts[lies.keys] = self.k if lies.queries is None else self.k + self.k_shard
        return starts

    def sizes(self, x: Array, lies: Lies) -> list[int]:
        """How much of each axis of such an array is theirs."""
        sizes = list(x.shape)
        for axis, size in ((lies.queries, self.Q), (lies.keys, self.K)):
            if axis is not None:
                sizes[axis] = size
        return sizes


def _positions(like: Array, positions: Any, start: Any, size: int) -> Any:
    if positions is not None and not isinstance(positions, range):
        return positions
    first = (positions.start if isinstance(positions, range) else 0) + start
    if isinstance(first, int):
        return range(first, first + size)
    xp = namespace(like)
    return xp.arange(size, dtype=xp.int32, **beside(like)) + first


def may_see(request: Request) -> Any:
    """Whether any query may see any key, by the least and the greatest positions; None: nothing hides them."""
    if request.mask is None:
        return None
    if not (request.axes.Q and request.axes.K):
        return False
    xp = request.xp
    positions: tuple[Any, Any] = request.q_positions, request.k_positions
    q, k = ((x[0], x[-1]) if isinstance(x, range) else (xp.min(x), xp.max(x)) for x in positions)
    return _may_see(request.mask, q, k, request)


def _may_see(rule: Rule, q: Bounds, k: Bounds, request: Request) -> Any:
    if isinstance(rule, And | Or):
        a, b = (_may_see(x, q, k, request) for x in (rule.a, rule.b))
        return a & b if isinstance(rule, And) else a | b
    if isinstance(rule, Padding):
        return k[0] < _bounds(request.xp, rule.lengths)[1]
    if isinstance(rule, Window):
        (least, most), seen = _bounds(request.xp, rule.offset), True
        if rule.right is not None:
            seen &= k[0] - q[1] <= most + clamped(rule.right)
        if rule.left is not None:
            seen &= k[1] - q[0] >= least - clamped(rule.left)
        return seen
    return True


def _bounds(xp: Namespace, x: Any) -> Bounds:
    """The least and the greatest of what a rule holds."""
    if isinstance(x, int | tuple):
        numbers = [clamped(n) for n in (x if isinstance(x, tuple) else (x,))]
        return min(numbers), max(numbers)
    x = widened_ints(x)
    return xp.min(x), xp.max(x)


# What a Request and the functions of attnspec call alike.
OPTIONS = ("mask", "bias", "scale", "softcap", "sink", "dropout", "q_positions", "k_positions")


def options_of(request: Request) -> dict[str, Any]:
    """The options of a call, to be handed on."""
    return {name: getattr(request, name) for name in OPTIONS}
