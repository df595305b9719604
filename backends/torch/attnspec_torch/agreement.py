"""What the ranks of a group tell each other before anything is computed, so that all of them take, or refuse, one call.

Each rank describes what it was given. From all descriptions every rank makes the undivided call, without numbers, and
checks that: so what is wrong with the arrays of one rank, or with those of all together, is the same error everywhere,
and nobody waits for somebody who has refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.distributed.tensor import DTensor

from attnspec._compat import SIGNED, dtype_name, is_array
from attnspec.errors import AttnspecError, DTypeError, OptionError, ShapeError
from attnspec.request import Dropout, Request, make_request
from attnspec.rules import Segments, as_mask
from attnspec.shapes import together
from attnspec.shards import OPTIONS, Lies, from_the_start, layout, options_of
from attnspec.struct import Struct, arrays_in, with_arrays
from attnspec.terms import as_bias

from .wires import Shape, Wires

# Rows from one on, how many, and the position of the first; None: their positions are to be looked up.
Run = tuple[int, int, int | None]
Positions: TypeAlias = range | torch.Tensor | None


@dataclass(frozen=True)
class Call:
    """One call of a group, as one of its ranks has it.

    The rules of `request` speak of the whole sequence, its arrays are those of the rank. The runs of each rank are its
    queries, and its keys, in pieces of consecutive positions.
    """

    request: Request
    lies: dict[str, Lies]
    Q: tuple[int, ...]  # of each rank
    K: tuple[int, ...]
    q_runs: list[list[Run]]
    k_runs: list[list[Run]]

    def q_start(self, rank: int) -> int:
        """Where the queries of a rank begin in the sequence of all ranks."""
        return sum(self.Q[:rank])

    def k_start(self, rank: int) -> int:
        """Where its keys begin."""
        return sum(self.K[:rank])


def agreed(
    wires: Wires, q: Any, k: Any, v: Any, options: Mapping[str, Any], static: Mapping[str, Any], *, whole_queries: bool
) -> Call:
    """The call, if all ranks make it; else the same error on every rank.

    `static` has to be the same everywhere. `whole_queries`: each rank has all queries, and some of the keys.
    """
    said: Told | tuple[type[AttnspecError], str]
    cause = None
    try:
        request = _own(q, k, v, options)
        said = _told(request, options, static)
    except AttnspecError as error:
        cause = error
        said = type(error), str(error)
    everybody = []
    for rank, heard in enumerate(wires.gather_objects(said)):
        if not isinstance(heard, Told):
            kind, msg = heard
            raise kind(f"rank {rank}: {msg}") from cause
        everybody.append(heard)
    return _together(request, everybody, wires.me, whole_queries=whole_queries)


def _own(q: Any, k: Any, v: Any, options: Mapping[str, Any]) -> Request:
    """A rank's arguments, as far as they can be checked without the others'."""
    held = {"q": q, "k": k, "v": v} | {n: x for name in OPTIONS for n, x in arrays_in(name, options[name]).items()}
    for name, x in held.items():
        if isinstance(x, DTensor):
            msg = f"{name} is a DTensor; each rank passes its own shard. Use {name}.to_local()."
            raise DTypeError(msg)
        if not isinstance(x, torch.Tensor):
            msg = f"{name} is a {type(x).__name__}; torch tensors travel over a process group. Use torch.as_tensor."
            raise DTypeError(msg)
    request = make_request(q, k, v, **{name: options[name] for name in ("scale", "softcap", "sink")})
    mask, bias = options["mask"], options["bias"]
    request = replace(
        request,
        mask=None if mask is None else _with_tensors_for_ids(as_mask(mask), request.q),
        bias=None if bias is None else as_bias(bias).computed_in(dtype_name(request.q)),
        dropout=Dropout.checked(options["dropout"]),
        q_positions=_positions("q_positions", options["q_positions"], request.axes.Q, request.q),
        k_positions=_positions("k_positions", options["k_positions"], request.axes.K, request.q),
    )
    together(**{name[1:]: x for name, x in arrays_in("", request).items()})
    return request


def _with_tensors_for_ids(option: Any, like: torch.Tensor) -> Any:
    """Lists of ids differ from rank to rank, as arrays do."""
    if not isinstance(option, Struct):
        return option
    held = {f.name: _with_tensors_for_ids(getattr(option, f.name), like) for f in fields(option)}  # type: ignore[arg-type]
    if isinstance(option, Segments):
        lists = {name: x for name, x in held.items() if isinstance(x, tuple)}
        held |= {name: torch.tensor(x, dtype=torch.int32, device=like.device) for name, x in lists.items()}
    return type(option)(**held)


def _positions(name: str, x: Any, length: int, like: torch.Tensor) -> torch.Tensor | None:
    if x is None:
        return None
    if isinstance(x, range):
        x = torch.arange(x.start, x.stop, x.step, device=like.device)
    if not is_array(x) or dtype_name(x) not in SIGNED:
        got = dtype_name(x) if is_array(x) else type(x).__name__
        msg = f"{name} are {got}; a tensor of signed integers or a range is needed."
        raise DTypeError(msg)
    if x.shape[-1:] != (length,):
        msg = f"{name} have shape {tuple(x.shape)}; one for each of the {length} rows of this rank is needed."
        raise ShapeError(msg)
    return x.long()


@dataclass(frozen=True)
class Told:
    """What one rank was given. Runs are None where positions are not consecutive, [] where none were given."""

    shapes: dict[str, Shape]
    dtypes: dict[str, str]
    static: dict[str, str]
    differentiated: tuple[str, ...]
    q_runs: list[Run] | None
    k_runs: list[Run] | None


def _told(request: Request, options: Mapping[str, Any], static: Mapping[str, Any]) -> Told:
    layout(request)  # refuses somebody else's rules
    arrays = arrays_in("", request)
    blank = with_arrays("", request, dict.fromkeys(arrays))
    watched = [name[1:] for name, x in arrays.items() if x.requires_grad and torch.is_grad_enabled()]
    return Told(
        {name: tuple(x.shape) for name, x in arrays.items()},
        {name: dtype_name(x) for name, x in arrays.items()},
        {name: repr(x) for name, x in ({name: getattr(blank, name) for name in OPTIONS} | dict(static)).items()},
        tuple(watched),
        _runs(options["q_positions"], request.q_positions),
        _runs(options["k_positions"], request.k_positions),
    )


_RUNS = 4  # positions in so many pieces are told apart; in more they are looked up


def _runs(given: Any, positions: torch.Tensor | None) -> list[Run] | None:
    if positions is None:
        return []
    if isinstance(given, range) and given.step == 1:
        return [(0, len(given), given.start)]
    if positions.ndim != 1:
        return None
    breaks = torch.nonzero(positions.diff() != 1)[:_RUNS, 0] + 1
    starts = [0, *breaks.tolist()]
    if len(starts) > _RUNS or not len(positions):
        return None if len(positions) else [(0, 0, 0)]
    ends = [*starts[1:], len(positions)]
    firsts = positions[starts].tolist()
    return [(start, end - start, first) for start, end, first in zip(starts, ends, firsts, strict=True)]


def _together(request: Request, everybody: Sequence[Told], me: int, *, whole_queries: bool) -> Call:
    """The call of all ranks, checked without its numbers."""
    _check_alike(everybody)
    arrays = arrays_in("", request)
    shapes = {name: [told.shapes[name] for told in everybody] for name in arrays}
    Q, K = (tuple(shape[-2] for shape in shapes[name]) for name in (".q", ".k"))
    # Where axes would be if none was broadcast: one of length 1 may be a rank's share of a longer one.
    places = layout(with_arrays("", request, {n: torch.empty((2,) * x.ndim, device="meta") for n, x in arrays.items()}))
    wholes = {n: _Whole.of(n, places[n], shapes[n], None if whole_queries else Q, K) for n in arrays}
    blank = {n: torch.empty(wholes[n].shape, dtype=x.dtype, device="meta") for n, x in arrays.items()}
    undivided = with_arrays("", request, blank)
    checked = make_request(undivided.q, undivided.k, undivided.v, **options_of(undivided))
    placed = not (request.mask is None and request.bias is None)
    k_runs = _of_all_ranks([told.k_runs if placed else [] for told in everybody], K)
    q_runs = _of_all_ranks([told.q_runs if placed else [] for told in everybody], Q)
    if whole_queries:
        q_runs = q_runs[:1] * len(everybody)
    spread = {n: x.expand(*x.shape[:-2], Q[me], x.shape[-1]) for n, x in arrays.items() if wholes[n].spread}
    own = from_the_start(
        replace(
            with_arrays("", request, spread),
            axes=checked.axes,
            dropout=None if checked.dropout is None else request.dropout,
            q_positions=request.q_positions if _are_looked_up(q_runs) else None,
            k_positions=request.k_positions if _are_looked_up(k_runs) else None,
        )
    )
    own = replace(own, axes=replace(checked.axes, Q=Q[me], K=K[me]))
    lies = layout(own) | {n: wholes[n].lies(x) for n, x in layout(undivided).items()}
    return Call(own, {n: lies[n] for n in arrays_in("", own)}, Q, K, q_runs, k_runs)


def _check_alike(everybody: Sequence[Told]) -> None:
    """Raise unless the ranks differ in shapes and positions alone."""
    first = everybody[0]
    for rank, told in enumerate(everybody):
        for name in told.static:
            if told.static[name] != first.static[name]:
                _refuse(f"{name}={told.static[name]}", rank, f"{name}={first.static[name]}")
        for name in sorted(told.dtypes.keys() | first.dtypes.keys()):
            one, other = (
                f"{name[1:]} of dtype {x.dtypes[name]} and rank {len(x.shapes[name])}" if name in x.dtypes else
                f"no array {name[1:]}" for x in (told, first)
            )  # fmt: skip
            if one != other:
                _refuse(one, rank, other)
        if told.differentiated != first.differentiated:
            one, other = (f"gradients of {', '.join(x.differentiated) or 'nothing'}" for x in (told, first))
            _refuse(one, rank, other)


def _refuse(one: str, rank: int, other: str) -> None:
    msg = f"all ranks make the same call: rank {rank} has {one}, rank 0 has {other}. Pass the same on every rank."
    raise OptionError(msg)


class _Whole(NamedTuple):
    """An array of the undivided call: its shape, and along which axes, counted from the end, ranks have a share of it.

    spread: one row of scores for all queries, with all columns.
    """

    shape: Shape
    queries: int | None = None
    keys: int | None = None
    spread: bool = False

    @classmethod
    def of(cls, name: str, at: Lies, shapes: Sequence[Shape], Q: Shape | None, K: Shape) -> _Whole:
        """From the shapes on the ranks, which have Q queries (None: all have all of them) and K keys."""
        of_keys = () if at.keys is None else tuple(shape[at.keys] for shape in shapes)
        of_queries = () if at.queries is None else tuple(shape[at.queries] for shape in shapes)
        all_columns = set(of_keys) == {sum(K)}
        rows, columns = of_queries == Q, of_keys == K
        if rows and (not columns or all_columns or set(of_keys) == {1}):
            return cls(_joined(name, shapes, at.queries), queries=at.queries)
        if columns and not (rows and set(of_queries) != {1}):
            return cls(_joined(name, shapes, at.keys), keys=at.keys)
        shape = _joined(name, shapes, None)
        if not columns and (not all_columns or set(of_keys) == {1}):
            return cls(shape)
        if Q is None or (len(shape) > 1 and shape[-2] != 1):
            msg = f"{name[1:]} has the shape {shape} on every rank; the ranks have K={K} keys. Pass " + (
                "the columns of the rank's own keys."
                if Q is None
                else f"rows of the rank's own queries, with columns for all {sum(K)} keys."
            )
            raise ShapeError(msg)
        return cls((*shape[:-2], sum(Q), shape[-1]), queries=-2, spread=True)

    def lies(self, found: Lies) -> Lies:
        """How the array of a rank lies, given how that of the call does."""
        return Lies(self.queries, self.keys if self.queries is None else found.keys, found.heads)


def _joined(name: str, shapes: Sequence[Shape], along: int | None) -> Shape:
    """The shape of all together."""
    first = list(shapes[0])
    for rank, shape in enumerate(shapes):
        for axis in range(-len(first), 0):
            if axis != along and shape[axis] != first[axis]:
                msg = (
                    f"{name[1:]} has shape {shape} on rank {rank} and {tuple(first)} on rank 0, which do not make one "
                    "array: ranks have entries for their own queries or keys, rows of scores for their own queries "
                    "and all keys, and are alike otherwise."
                )
                raise ShapeError(msg)
    if along is not None:
        first[along] = sum(shape[along] for shape in shapes)
    return tuple(first)


def _of_all_ranks(told: Sequence[list[Run] | None], lengths: Shape) -> list[list[Run]]:
    """The runs of each rank; without positions the order of the ranks is that of the sequence."""
    found: list[list[Run]] = []
    for rank, (runs, length) in enumerate(zip(told, lengths, strict=True)):
        if None in told:
            runs = [(0, length, None)]
        found.append([run for run in runs or [(0, length, sum(lengths[:rank]))] if run[1]])
    return found


def _are_looked_up(runs: list[list[Run]]) -> bool:
    return any(first is None for of_rank in runs for _, _, first in of_rank)


def positions_of(runs: Sequence[Run], device: torch.device) -> Positions:
    """The positions of runs, one after another; None if they are to be looked up."""
    ranges = []
    for _, size, first in runs:
        if first is None:
            return None
        ranges.append(range(first, first + size))
    if all(one.stop == other.start for one, other in pairwise(ranges)):
        return range(ranges[0].start, ranges[-1].stop) if ranges else range(0)
    return torch.cat([torch.arange(x.start, x.stop, device=device) for x in ranges])
