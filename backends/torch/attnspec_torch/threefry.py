"""Threefry in the place of its counters, a block at a time, so that the hundred operations stay in a core's cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnspec.prng import GROUPS, ROTATIONS, schedule, wrap

_BLOCK = 2**16
LEAST = 2**12  # with fewer words the time goes into calls, of which `prng.rounds` has as many


def rounds_in_place(rng: tuple[int, int], counter: tuple[Any, Any]) -> tuple[Tensor, Tensor]:
    """`prng.rounds` for a key of numbers and counters that broadcast to each other, of at least one tensor."""
    device = next(c.device for c in counter if isinstance(c, Tensor))
    words = torch.broadcast_tensors(*(torch.as_tensor(c, dtype=torch.int32, device=device) for c in counter))
    x0, x1 = (c.clone(memory_format=torch.contiguous_format) for c in words)
    flat = x0.view(-1), x1.view(-1)
    spare = torch.empty_like(flat[0][:_BLOCK])
    for start in range(0, x0.numel(), _BLOCK):
        one, other = (x[start : start + _BLOCK] for x in flat)
        _mix(one, other, spare[: one.numel()], schedule(rng))
    return x0, x1


def _mix(x0: Tensor, x1: Tensor, spare: Tensor, ks: tuple[Any, ...]) -> None:
    x0 += ks[0]
    x1 += ks[1]
    for n in range(GROUPS):
        for r in ROTATIONS[n % 2]:
            x0 += x1
            # x1 rotated by r: what a shift to the left pushes out, added to x1 * 2**r.
            torch.bitwise_right_shift(x1, 32 - r, out=spare)
            spare &= (1 << r) - 1
            torch.add(spare, x1, alpha=1 << r, out=x1)
            x1 ^= x0
        x0 += ks[(n + 1) % 3]
        x1 += wrap(ks[(n + 2) % 3] + (n + 1))
