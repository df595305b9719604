"""Attention of one sequence over many devices: `attention` and `attention_with_lse` with a mesh and one of its axes.

Over batch and heads nothing of this is needed: `attnspec.attention` under `jax.jit` is partitioned as its arrays are.
What each way sends and holds: docs/scale/jax.md.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from attnspec.errors import DTypeError, OptionError, ShapeError
from attnspec.masks import Mask
from attnspec.reproducible.steady import CHUNK
from attnspec.request import Dropout, Request, make_request
from attnspec.shards import Lies, from_the_start, layout
from attnspec.struct import arrays_in, with_arrays
from attnspec.terms import Bias

from .exchange import SplitKeys, all_to_all
from .host import scope
from .ring import Ring

__all__ = ["attention", "attention_with_lse"]

Way = Literal["ring", "all_to_all", "split_keys"]
WAYS: tuple[Way, ...] = ("ring", "all_to_all", "split_keys")


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    mesh: Mesh,
    axis: str,
    how: Way = "ring",
    reproducible: bool = False,
    mask: Mask | jax.Array | None = None,
    bias: Bias | jax.Array | None = None,
    scale: float | jax.Array | None = None,
    softcap: float | jax.Array | None = None,
    sink: float | jax.Array | None = None,
    dropout: Dropout | None = None,
    q_positions: jax.Array | range | None = None,
    k_positions: jax.Array | range | None = None,
) -> jax.Array:
    """`attnspec.attention` of a sequence that is split over the devices along an axis of a mesh.

    out_i = sum_j p_ij v_j, as there: the arguments are those of the undivided call, and so is the result. With n
    devices along the axis, none of them ever holds more than its n-th part of the rows of q, k, v and of the result,
    and a part of the same size that is visiting.

    Parameters
    ----------
    q, k, v, mask, bias, scale, softcap, sink, dropout, q_positions, k_positions
        As in `attnspec.attention`. The axes Q and K are multiples of n; pad them, and mask the padding by
        `attnspec.padding`. Masks and biases are attnspec's rules, or arrays.
    mesh : jax.sharding.Mesh
        Further axes of it may split batch and heads, as the arrays say.
    axis : str
        The name of the axis over which the sequence is split.
    how : "ring", "all_to_all" or "split_keys"
        "ring": keys and values travel from device to device, each round hidden behind the computation of the one
        before; rounds in which no query can see a key are not computed. Any number of heads.
        "all_to_all" ("Ulysses"): every device attends with some of the heads to the whole sequence. H and G are
        multiples of n.
        "split_keys": for few queries and a long cache. q and the result are whole on every device, k and v are split.
    reproducible : bool
        The bits of `attnspec.reproducible.attention`, for any n. In "ring" and "split_keys" each device has a multiple
        of 256 keys; there every device takes in the keys in their order, and nobody differentiates.

    Returns
    -------
    array (..., H, Q, E)
        Split as q is.

    Raises
    ------
    errors.ShapeError, errors.DTypeError, errors.MaskError, errors.DeviceError, errors.OptionError
        As `attnspec.attention`; and for axes that do not divide into n shards, for an axis that the mesh lacks, for a
        rule of somebody else's, before anything is computed.

    Notes
    -----
    `q_positions` and `k_positions` say where the rows stand in the whole sequence, in any order. Under a causal mask a
    zigzag order, in which device i holds pieces i and 2 n - 1 - i of 2 n, gives all devices the same to compute.
    Reverse mode keeps no round: it stores out and two numbers for each row, and sends the keys round once more.
    Sources: Liu, Zaharia, Abbeel, "Ring Attention with Blockwise Transformers", 2023; Jacobs et al., "DeepSpeed
    Ulysses", 2023; Dao et al., "Flash-Decoding", 2023.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, attnspec
    >>> from attnspec_jax import sharded
    >>> mesh = jax.make_mesh((len(jax.devices()),), ("sequence",))
    >>> q = k = v = jnp.ones((2, 16, 4))
    >>> sharded.attention(q, k, v, mesh=mesh, axis="sequence", mask=attnspec.causal()).shape
    (2, 16, 4)
    """
    request = make_request(
        q, k, v, mask=mask, bias=bias, scale=scale, softcap=softcap, sink=sink, dropout=dropout,
        q_positions=q_positions, k_positions=k_positions,
    )  # fmt: skip
    return _attend(request, mesh, axis, how, reproducible)[0]


def attention_with_lse(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    mesh: Mesh,
    axis: str,
    how: Way = "ring",
    reproducible: bool = False,
    mask: Mask | jax.Array | None = None,
    bias: Bias | jax.Array | None = None,
    scale: float | jax.Array | None = None,
    softcap: float | jax.Array | None = None,
    sink: float | jax.Array | None = None,
    dropout: Dropout | None = None,
    q_positions: jax.Array | range | None = None,
    k_positions: jax.Array | range | None = None,
) -> tuple[jax.Array, jax.Array]:
    """`attnspec.attention_with_lse` of a sequence that is split over the devices along an axis of a mesh.

    Parameters
    ----------
    As `attention`.

    Returns
    -------
    out : array (..., H, Q, E)
        The very bits of `attention`.
    lse : array (..., H, Q)
        Natural logarithm, in float32 or wider. Both are split as q is.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from attnspec_jax import sharded
    >>> mesh = jax.make_mesh((len(jax.devices()),), ("sequence",))
    >>> q, cache = jnp.zeros((1, 1, 4)), jnp.ones((1, 16, 4))
    >>> _, lse = sharded.attention_with_lse(q, cache, cache, mesh=mesh, axis="sequence", how="split_keys")
    >>> round(float(lse[0, 0]), 4)
    2.7726
    """
    request = make_request(
        q, k, v, mask=mask, bias=bias, scale=scale, softcap=softcap, sink=sink, dropout=dropout,
        q_positions=q_positions, k_positions=k_positions,
    )  # fmt: skip
    return _attend(request, mesh, axis, how, reproducible)


def _attend(request: Request, mesh: Mesh, axis: str, how: Way, reproducible: bool) -> tuple[jax.Array, jax.Array]:
    if how not in WAYS:
        msg = f"how={how!r}: one of {', '.join(map(repr, WAYS))} is needed."
        raise OptionError(msg)
    if axis not in mesh.shape:
        msg = f"axis={axis!r}: the mesh has the axes {', '.join(map(repr, mesh.shape))}."
        raise OptionError(msg)
    for name, x in arrays_in("", request).items():
        if not isinstance(x, jax.Array):
            msg = f"{name[1:]} is a {type(x).__name__}; JAX arrays are split over devices. Use jax.numpy.asarray."
            raise DTypeError(msg)
    _check_lengths(request, mesh.shape[axis], how, reproducible)
    layout(request)
    return _run(request, mesh=mesh, axis=axis, how=how, reproducible=reproducible)  # type: ignore[no-any-return]


def _check_lengths(request: Request, n: int, how: Way, reproducible: bool) -> None:
    axes = request.axes
    lengths = {"K": axes.K} if how == "split_keys" else {"Q": axes.Q, "K": axes.K}
    heads = {"H": axes.H, "G": axes.G} if how == "all_to_all" else {}
    for name, length in (lengths | heads).items():
        if length % n:
            do = 'how="ring" takes any number.' if name in heads else "Pad it, and mask the padding by padding()."
            msg = f"{name}={length} does not divide into {n} shards for how={how!r}. {do}"
            raise ShapeError(msg)
    if not reproducible or how == "all_to_all":
        return
    if axes.K // n % CHUNK:
        msg = (
            f"K={axes.K} over {n} devices is {axes.K // n} keys for each; reproducible mode needs a multiple of "
            f"{CHUNK} for how={how!r}. Pad K to a multiple of {CHUNK * n}, and mask the padding by padding()."
        )
        raise ShapeError(msg)
    if how == "split_keys" and axes.Q > CHUNK:
        msg = f'how="split_keys" is for few queries: reproducible mode takes {CHUNK}, got Q={axes.Q}. Use how="ring".'
        raise ShapeError(msg)


@partial(jax.jit, static_argnames=("mesh", "axis", "how", "reproducible"))
def _run(request: Request, *, mesh: Mesh, axis: str, how: Way, reproducible: bool) -> tuple[jax.Array, jax.Array]:
    request = from_the_start(request)
    arrays, lies = arrays_in("", request), layout(request)

    def body(arrays: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        mine = _own(request, arrays)
        if how == "all_to_all":
            return all_to_all(mine, axis, same_bits=reproducible)
        way = (Ring if how == "ring" else SplitKeys)(axis, mesh.shape[axis], lies, CHUNK if reproducible else None)
        out, lse, *_ = way.attend_in_order(mine) if reproducible else way.attend(mine)
        return out.astype(mine.q.dtype), lse

    places = {name: _split(name, lies[name], how) for name in arrays}
    specs = {name: _spec(x, places[name], axis) for name, x in arrays.items()}
    results = P() if how == "split_keys" else specs[".q"]
    # The derivatives of attnspec's functions do not say over which axes they vary, so JAX cannot check it.
    mapped = jax.shard_map(
        body, mesh=mesh, in_specs=(specs,), out_specs=(results, results), axis_names={axis}, check_vma=False
    )
    if axis in mesh.explicit_axes:
        arrays = {
            name: _placed(x, places[name], mesh, axis, large=name in (".q", ".k", ".v")) for name, x in arrays.items()
        }
    with scope():
        out, lse = mapped(arrays)
    return (out[0], lse[0]) if request.headless else (out, lse)


def _own(request: Request, arrays: dict[str, jax.Array]) -> Request:
    """The call of a device's arrays. For rows of scores, `lies` says which of them it has whole."""
    axes = replace(request.axes, Q=arrays[".q"].shape[-2], K=arrays[".k"].shape[-2])
    own: Request = with_arrays("", request, arrays)
    return replace(own, axes=axes)


def _placed(x: jax.Array, place: int | None, mesh: Mesh, axis: str, *, large: bool) -> jax.Array:
    """The array split there, on a mesh whose arrays know how they are split.

    A large one that is split over the axis elsewhere stays, and JAX raises: nobody asked for it to be moved.
    """
    spec = [entry if isinstance(entry, tuple) else (entry,) for entry in jax.typeof(x).sharding.spec]
    if large and any(axis in names for names in spec):
        return x
    others = [tuple(name for name in names if name not in (None, axis)) for names in spec]
    if place is not None:
        others[place] += (axis,)
    return jax.reshard(x, NamedSharding(mesh, P(*(names or None for names in others))))


def _spec(x: jax.Array, place: int | None, axis: str) -> P:
    return P() if place is None else P(*(None,) * (x.ndim + place), axis)


def _split(name: str, lies: Lies, how: Way) -> int | None:
    """The place of an array that is split."""
    if how == "all_to_all":
        return (lies.queries or lies.keys) if name in (".q", ".k", ".v") else lies.heads
    if how == "split_keys":
        return lies.keys
    return lies.queries or lies.keys
