"""What a key or a value holds changes no bit of the rows that do not see it, nor of what they give to others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

LARGEST = torch.finfo(torch.float32).max
VALUES = (1e9, 1e30, LARGEST, -LARGEST, math.nan, math.inf, -math.inf)


def judge(
    results_of: Callable[[Sequence[Tensor]], Sequence[Tensor]],
    arrays: Sequence[Tensor],
    letters: str,
    at: int,
    rows: Tensor,
) -> None:
    """`results_of(arrays)`: out, lse and the gradients of q, k and v, of which `rows` (B, H, Q), that see it, are asked
    nothing; `letters`: what is spoilt of the key `at`."""
    q, k, v = arrays
    clean, others = results_of(arrays), torch.arange(k.shape[-2]) != at
    for value in VALUES:
        spoilt = {"k": k.clone(), "v": v.clone()}
        for letter in letters:
            spoilt[letter][:, :, at] = value
        found = results_of((q, *spoilt.values()))
        for one, other in zip(found[:3], clean[:3], strict=True):
            assert torch.equal(one[~rows].nan_to_num(7.0), other[~rows].nan_to_num(7.0)), value
        if not torch.isnan(found[0]).any():
            for one, other in zip(found[3:], clean[3:], strict=True):
                assert torch.equal(one[:, :, others], other[:, :, others]), value
