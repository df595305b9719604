"""What torch does in the place of a tensor."""

from __future__ import annotations

import math
from typing import Any

import torch

from attnspec.overwriting import InPlace


def exp(x: Any, least: float | None, visible: Any = None) -> tuple[Any, Any]:
    """exp, as `attnspec.overwriting.InPlace` wants it. It is faster than exp2."""
    # A little more than the least normal number: exponentials that are less take longer to make, too.
    edge = math.log(torch.finfo(x.dtype).tiny) * (1.0 - 2.0**-8)
    # To look at a value of another device would be to wait for it.
    if x.device.type == "cpu" and (float(x.min()) if least is None else least) >= edge:
        return x.exp_(), None
    sunk = x < edge
    rows = (sunk if visible is None else sunk & visible).any(dim=-1, keepdim=True)
    # Made of many, as those of x are: of one it may be rounded otherwise.
    least = x.new_full((64,), edge).exp_()[:1]
    return x.clamp_(min=edge).exp_().sub_(rows * least), rows


def veil(visible: Any, like: Any) -> Any:
    """All bits set where visible, as integers of the size of the dtype."""
    ones = visible.view(torch.int8) != 0  # the bytes of a view of other numbers may be any
    return ones.view(torch.int8).to(torch.int64 if like.dtype == torch.float64 else torch.int32).neg_()


def hide(x: Any, veil: Any) -> Any:
    """By the bits: a product would leave NaN, and `masked_fill_` takes ten times as long."""
    x.view(veil.dtype).bitwise_and_(veil)
    return x


def extremes(x: Any) -> tuple[float, float]:
    """Both in one pass."""
    least, most = torch.aminmax(x)
    return least.item(), most.item()


def rotate(x: Any, n: int, spare: Any) -> None:
    """What a shift to the left pushes out, added to x * 2**n."""
    torch.bitwise_right_shift(x, _PLACES[32 - n], out=spare)
    spare &= _LOW_BITS[n]
    torch.add(spare, x, alpha=1 << n, out=x)


# Python's integers are made into tensors at every call.
_PLACES = [torch.tensor(n, dtype=torch.int32) for n in range(32)]
_LOW_BITS = [torch.tensor((1 << n) - 1, dtype=torch.int32) for n in range(32)]


def piece(x: Any) -> int:
    """On other devices than the processor many small operations take longer than a few large ones."""
    return 2**17 if x.is_cpu else max(1, x.numel())


def is_near(x: Any) -> bool:
    """On the processor."""
    return bool(x.is_cpu)


IN_PLACE = InPlace(exp, None, veil, hide, extremes, rotate, piece=piece, is_near=is_near)
