"""Attention of one sequence over the ranks of a process group: `attention` and `attention_with_lse`, on shards.

Over batch and heads nothing of this is needed: each rank calls `attnspec.attention` on its own, or on DTensors. What
each way sends and holds: docs/scale/torch.md.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist

from attnspec.errors import OptionError, ShapeError
from attnspec.masks import Mask
from attnspec.reproducible.steady import CHUNK
from attnspec.request import Dropout
from attnspec.terms import Bias

from .agreement import Call, agreed
from .exchange import AllToAll, SplitKeys
from .host import scope
from .ring import Ring
from .wires import PeerError, Wires

__all__ = ["PeerError", "attention", "attention_with_lse"]

Way = Literal["ring", "all_to_all", "split_keys"]
WAYS: tuple[Way, ...] = ("ring", "all_to_all", "split_keys")


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    group: dist.ProcessGroup | None = None,
    how: Way = "ring",
    reproducible: bool = False,
    mask: Mask | torch.Tensor | None = None,
    bias: Bias | torch.Tensor | None = None,
    scale: float | torch.Tensor | None = None,
    softcap: float | torch.Tensor | None = None,
    sink: float | torch.Tensor | None = None,
    dropout: Dropout | None = None,
    q_positions: torch.Tensor | range | None = None,
    k_positions: torch.Tensor | range | None = None,
) -> torch.Tensor:
    """`attnspec.attention` of a sequence that is split over the ranks of a group, called by each with its own shard.

    out_i = sum_j p_ij v_j, over the keys j of all ranks. The undivided call is that of the shards one after another, in
    the order of the ranks; each rank gets its rows of that result.

    Parameters
    ----------
    q (..., H, Q, D), k (..., G, K, D), v (..., G, K, E) : floating tensors
        This rank's shard. Q and K may differ from rank to rank.
    group : torch.distributed.ProcessGroup
        Default: all ranks. Every rank of it has to make the call, and the backward pass if there is one.
    how : "ring", "all_to_all" or "split_keys"
        "ring": keys and values travel from rank to rank, each round while the one before is computed; rounds in which
        no query can see a key are not computed. Any number of heads.
        "all_to_all" ("Ulysses"): every rank attends with some of the heads to the whole sequence. H and G are
        multiples of the number of ranks.
        "split_keys": for few queries and a long cache. Every rank passes the same q, and gets the same result; k and v
        are split.
    reproducible : bool
        The bits of `attnspec.reproducible.attention`, for any number of ranks. In "ring" and "split_keys" each rank but
        the last has a multiple of 256 keys; there every rank takes in the keys in their order, and nobody
        differentiates.
    mask, bias
        attnspec's rules, which speak of the whole sequence, or tensors. Of a tensor a rank has what belongs to its
        queries, with the columns of all keys: (..., H, Q, K of all). One that is the same for all queries may hold
        this rank's keys alone: (..., 1, K). So may the ids of `segments`, which lie as queries and keys do. In
        "split_keys" the columns are those of the rank's keys.
    scale, softcap, sink
        As in `attnspec.attention`, the same on every rank.
    dropout : Dropout
        Drops what it drops in the undivided call. The same on every rank.
    q_positions, k_positions : integer tensors (..., Q), (..., K), or ranges
        Where this rank's rows stand in the whole sequence, for rules about positions. Default: in the order of the
        ranks.

    Returns
    -------
    tensor (..., H, Q, E)
        The rows of this rank's queries, in the dtype of q.

    Raises
    ------
    errors.ShapeError, errors.DTypeError, errors.MaskError, errors.DeviceError, errors.OptionError
        As `attnspec.attention`; and for shards that make no call together, and for rules of somebody else's. The same
        error on every rank, before anything is computed.
    PeerError
        If another rank has ended, or does not come within the timeout of the group.

    Notes
    -----
    Gradients are those of the sum of what all ranks make of their results, for what this rank has passed. So they are
    whole for q, k and v. What every rank passes (a sink, a table, in "split_keys" q) gets its share on each, and the
    sum over the ranks is its gradient, as for the weights of a layer. They are differentiated once, in reverse mode.
    Under a causal mask a zigzag order, in which rank i holds pieces i and 2 n - 1 - i of 2 n, gives all n ranks the
    same to compute. `torch.compile` leaves the call out of its program, and the transforms of `torch.func`
    are refused.
    Sources: Liu, Zaharia, Abbeel, "Ring Attention with Blockwise Transformers", 2023; Jacobs et al., "DeepSpeed
    Ulysses", 2023; Dao et al., "Flash-Decoding", 2023.

    Examples
    --------
    A group of one rank; docs/scale/torch_sequence.py runs with more.

    >>> import torch, attnspec
    >>> from attnspec_torch import distributed
    >>> store = torch.distributed.HashStore()
    >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    >>> q = k = v = torch.ones(2, 16, 4)
    >>> distributed.attention(q, k, v, mask=attnspec.causal()).shape
    torch.Size([2, 16, 4])
    >>> torch.distributed.destroy_process_group()
    """
    options: dict[str, Any] = {
        "mask": mask, "bias": bias, "scale": scale, "softcap": softcap, "sink": sink, "dropout": dropout,
        "q_positions": q_positions, "k_positions": k_positions,
    }  # fmt: skip
    return _attend(q, k, v, group, how, reproducible, options)[0]


def attention_with_lse(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    group: dist.ProcessGroup | None = None,
    how: Way = "ring",
    reproducible: bool = False,
    mask: Mask | torch.Tensor | None = None,
    bias: Bias | torch.Tensor | None = None,
    scale: float | torch.Tensor | None = None,
    softcap: float | torch.Tensor | None = None,
    sink: float | torch.Tensor | None = None,
    dropout: Dropout | None = None,
    q_positions: torch.Tensor | range | None = None,
    k_positions: torch.Tensor | range | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`attnspec.attention_with_lse` of a sequence that is split over the ranks of a group.

    Parameters
    ----------
    As `attention`.

    Returns
    -------
    out : tensor (..., H, Q, E)
        The very bits of `attention`.
    lse : tensor (..., H, Q)
        Natural logarithm, in float32 or wider. Both are of this rank's queries.

    Examples
    --------
    >>> import torch
    >>> from attnspec_torch import distributed
    >>> store = torch.distributed.HashStore()
    >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    >>> q, cache = torch.zeros(1, 1, 4), torch.ones(1, 16, 4)
    >>> _, lse = distributed.attention_with_lse(q, cache, cache, how="split_keys")
    >>> round(float(lse[0, 0]), 4)
    2.7726
    >>> torch.distributed.destroy_process_group()
    """
    options: dict[str, Any] = {
        "mask": mask, "bias": bias, "scale": scale, "softcap": softcap, "sink": sink, "dropout": dropout,
        "q_positions": q_positions, "k_positions": k_positions,
    }  # fmt: skip
    out, lse = _attend(q, k, v, group, how, reproducible, options)
    return out, lse


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    group: dist.ProcessGroup | None,
    how: Way,
    reproducible: bool,
    options: dict[str, Any],
) -> tuple[torch.Tensor, torch.Tensor]:
    if torch._C._functorch.peek_interpreter_stack() is not None:
        msg = "torch.func (grad, vmap, jvp) does not reach over a process group. Use requires_grad and backward()."
        raise OptionError(msg)
    wires = Wires(group)
    static = {"how": how, "reproducible": reproducible}
    call = agreed(wires, q, k, v, options, static, whole_queries=how == "split_keys")
    _check(call, how, reproducible)
    request = call.request
    with scope():
        if how == "all_to_all":
            out, lse = AllToAll(wires, call).attend(request, same_bits=reproducible)
        else:
            way = (Ring if how == "ring" else SplitKeys)(wires, call)
            out, lse, *_ = way.attend_in_order(request) if reproducible else way.attend(request)
    out = out.to(request.q.dtype)
    return (out[0], lse[0]) if request.headless else (out, lse)


def _check(call: Call, how: Way, reproducible: bool) -> None:
    """Raise, on every rank, if this way does not take the call."""
    n, axes = len(call.K), call.request.axes
    if how not in WAYS:
        msg = f"how={how!r}: one of {', '.join(map(repr, WAYS))} is needed."
        raise OptionError(msg)
    if how == "all_to_all":
        for name, heads in (("H", axes.H), ("G", axes.G)):
            if heads % n:
                msg = f'{name}={heads} does not divide into {n} ranks for how={how!r}. how="ring" takes any number.'
                raise ShapeError(msg)
    elif reproducible and any(length % CHUNK for length in call.K[:-1]):
        msg = (
            f"the ranks have K={call.K} keys; reproducible mode needs a multiple of {CHUNK} on each but the last for "
            f"how={how!r}. Cut the sequence there."
        )
        raise ShapeError(msg)
