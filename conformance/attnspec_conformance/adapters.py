"""How kernels want to be asked: layout, polarity of masks, alignment of causality, windows, base of the lse.

A kernel is any function `kernel(q, k, v, **arguments) -> out` or `-> (out, lse)`. An `Adapter` names the arguments that
it has and says what they mean; what it does not name cannot be asked of the kernel and is reported as unsupported.
PyTorch's, for example, in a module of your own that `attnspec conformance --subject mine:sdpa` finds:

    from attnspec_conformance.adapters import Adapter, Flag, Pairs
    from torch.nn.functional import scaled_dot_product_attention

    sdpa = Adapter(
        name="sdpa",
        kernel=scaled_dot_product_attention,
        backend="torch",
        capabilities=("float64", "float16", "bfloat16", "vjp"),
        mask=Pairs("attn_mask", means="attends"),
        causal=Flag("is_causal", align="start"),
        arguments={"scale": "scale"},
        refusals=(ValueError, TypeError, RuntimeError),
    )

The kernel sees one leading axis, heads repeated unless `grouped`, and a mask of the whole shape (B, H, Q, K).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .masks import Align
from .trials import Along, Call


@dataclass(frozen=True)
class Pairs:
    """A mask argument with an entry for each pair of a query and a key.

    means
        What True says: the query "attends" to the key, or the key is "hidden" from it; or, for a float argument,
        "added": 0 and minus infinity are added to the scores, and a bias comes in the same argument.
    """

    argument: str
    means: Literal["attends", "hidden", "added"] = "attends"


@dataclass(frozen=True)
class Flag:
    """A causal flag. The triangle starts at the "start" (top left) or ends at the "end" (bottom right)."""

    argument: str
    align: Align = "start"


@dataclass(frozen=True)
class Sides:
    """A window argument: a pair (left, right), counted from the "start" or the "end" like a causal flag.

    `counts_itself`: a width of 1 is the query's own position alone, where attnspec counts 0. `unbounded` is given where
    attnspec has None.
    """

    argument: str
    align: Align = "end"
    counts_itself: bool = False
    unbounded: Any = -1


@dataclass(frozen=True)
class Adapter:
    """A kernel and what it takes.

    Parameters
    ----------
    name, kernel
        What the reports call it, and the function.
    backend, device
        The registered backend whose arrays it takes, and the device to make them on.
    capabilities
        Of float64, float16, bfloat16; vjp where the backend's reverse mode differentiates the kernel; shards, and
        shards_to_the_bit if their number changes no bit.
    layout
        "BHSD" is (B, H, S, D) and "BSHD" (B, S, H, D). "packed" is (B * S, H, D), sequences end to end, with the
        arguments named by `packed`: int32 arrays (B + 1,) of where each sequence of queries and of keys begins;
        a padding mask shortens the sequences of keys.
    leading
        How many leading axes it takes, 1 or any number (None); more are merged, fewer are added.
    grouped
        Whether it takes fewer heads of k and v than of q.
    mask, causal, window
        Its arguments for them. A rule for which there is none is given as a mask of pairs, if that is there.
    arguments
        Its names for scale, softcap, bias, sink, the rate of dropout, and keep, the mask of what dropout keeps; without
        keep, only the rates 0 and 1 are asked, at which nothing is random.
    lse
        The base of the logarithm of the sum that it returns after the output: "e", "2", or None for none.
    lse_heads_first
        Whether lse is (B, H, S), packed (H, B * S), as most kernels have it in every layout, or (B, S, H).
    weights
        `weights(q, k, v, **arguments)`, asked as the kernel is, gives the weights of every head (B, H, Q, K). None:
        there are none.
    rounds_weights
        It rounds the weights once to a half type, which is allowed for (PATH-2).
    shards
        `shards(along, n)`: the kernel that divides what it is given, "along" the "sequence", the "keys", the "heads" or
        the "batch", among n workers, and gives the whole answer; None where there is none. Needed by the capability
        "shards".
    limits
        Why it cannot be asked a call, for all that has no field here: None, or the reason.
    refusals
        What it raises for arguments that do not fit.
    """

    name: str
    kernel: Callable[..., Any] = field(repr=False)
    backend: str = "numpy"
    device: str | None = None
    capabilities: tuple[str, ...] = ()
    layout: Literal["BHSD", "BSHD", "packed"] = "BHSD"
    packed: tuple[str, str] = ("cu_seqlens_q", "cu_seqlens_k")
    leading: Literal[1] | None = 1
    grouped: bool = False
    mask: Pairs | None = None
    causal: Flag | None = None
    window: Sides | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    lse: Literal["e", "2"] | None = None
    lse_heads_first: bool = True
    weights: Callable[..., Any] | None = field(default=None, repr=False)
    rounds_weights: bool = False
    shards: Callable[[Along, int], Callable[..., Any] | None] | None = field(default=None, repr=False)
    limits: Callable[[Call], str | None] = lambda call: None
    refusals: tuple[type[Exception], ...] = (ValueError, TypeError)
