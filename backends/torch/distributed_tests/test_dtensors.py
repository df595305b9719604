"""DTensors that are sharded on batch or heads go through `attnspec.attention` as they are, and nothing is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import Ranks  # type: ignore[import-not-found]

import attnspec
from attnspec.errors import AttnspecError

Start = Callable[[int], Ranks]
B, H, G, Q, K, D, E = 8, 12, 4, 5, 7, 3, 6


def tensors() -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    shapes = (B, H, Q, D), (B, G, K, D), (B, G, K, E), (H, Q, K), (H,)
    return [torch.randn(shape, generator=rng, dtype=torch.float64) for shape in shapes]


def options(bias: Any, sink: Any) -> dict[str, Any]:
    """Arrays of heads, lists and arrays of items, draws by index."""
    lengths = torch.arange(B) % (K + 1)
    mask = attnspec.padding(lengths) & attnspec.causal(2) | attnspec.segments([0, 1, 0, 1, 1], [1, 0, 1, 0, 0, 1, 1])
    return {
        "mask": mask, "bias": attnspec.as_bias(bias) + attnspec.alibi(H), "sink": sink, "softcap": 3.0,
        "dropout": attnspec.Dropout(0.3, attnspec.random.key(2)),
    }  # fmt: skip


@pytest.mark.parametrize("placed", ["batch", "heads", "batch and heads", "batch, twice", "everything four times"])
def test_batch_or_heads_of_dtensors_are_attended_to_where_they_are(ranks: Start, placed: str) -> None:
    assert ranks(4).run(agrees, placed) == [True] * 4


def agrees(rank: int, placed: str) -> bool:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
    from torch.distributed.tensor.debug import CommDebugMode

    shape, places = {
        "batch": ((4,), [Shard(0)]), "heads": ((4,), [Shard(1)]), "batch and heads": ((2, 2), [Shard(0), Shard(1)]),
        "batch, twice": ((2, 2), [Shard(0), Replicate()]),
        "everything four times": ((4,), [Replicate()]),
    }[placed]  # fmt: skip
    mesh = init_device_mesh("cpu", shape)
    whole = [x.requires_grad_() for x in tensors()]
    parts = [distribute_tensor(x.detach(), mesh, places).requires_grad_() for x in whole[:3]]
    parts += [distribute_tensor(x.detach(), mesh, [Replicate()] * len(shape)).requires_grad_() for x in whole[3:]]
    wanted = attnspec.attention_with_lse(*whole[:3], **options(*whole[3:]))
    cotangents = [torch.cos(torch.arange(x.numel(), dtype=x.dtype)).reshape(x.shape) for x in wanted]
    placed_ones = [distribute_tensor(x, mesh, places) for x in cotangents]
    with CommDebugMode() as sent:
        found = attnspec.attention_with_lse(*parts[:3], **options(*parts[3:]))
        gradients = torch.autograd.grad(found, parts, placed_ones)
    assert sent.get_total_counts() == 0
    assert all(list(x.placements) == places for x in (*found, *gradients[:3]))
    others = (*wanted, *torch.autograd.grad(wanted, whole, cotangents))
    for one, other in zip((*found, *gradients), others, strict=True):
        torch.testing.assert_close(one.full_tensor(), other, rtol=1e-12, atol=1e-12)
    return True


REFUSED = {
    "sequence": "attnspec_torch.distributed.attention with their .to_local()",
    "unlike": "Redistribute them alike",
    "uneven": "do not divide into 4 equal shards",
    "plain bias": "bias.array is no DTensor and its gradient",
    "unequal": "q, k and v have 4, 3 and 3 axes",
    "width": "D and E are not sharded",
    "sharded sink": r"sink is placed as \(Shard\(dim=0\),\) on .*; Replicate",
}


@pytest.mark.parametrize("case", REFUSED)
def test_dtensors_that_would_have_to_be_sent_are_refused(ranks: Start, case: str) -> None:
    assert ranks(4).run(refused, case) == [True] * 4


def refused(rank: int, case: str) -> bool:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (4,))
    q, k, v, bias, sink = tensors()
    place, given = Shard(0), {}
    if case == "sequence":
        q, k, v, place = q[..., :4, :], k[..., :4, :], v[..., :4, :], Shard(2)
    if case == "unequal":
        k, v = k[0], v[0]
    if case == "width":
        place = Shard(3)
    if case == "uneven":
        q, k, v = (x[:6] for x in (q, k, v))
    if case == "plain bias":
        given["bias"] = bias.requires_grad_()
    if case == "sharded sink":
        given["sink"] = distribute_tensor(sink, mesh, [Shard(0)])
    q, k, v = (distribute_tensor(x, mesh, [place]) for x in (q, k, v))
    if case == "unlike":
        k = k.redistribute(mesh, [Replicate()])
    with pytest.raises(AttnspecError, match=REFUSED[case]):
        attnspec.attention(q, k, v, **given)
    return True
