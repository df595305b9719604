"""What torch does in the place of a tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from attnspec.host import InPlace


def exp(x: Any, least: float | None) -> tuple[Any, Any]:
    """exp, and where it is 0 for being no normal number. It is faster than exp2."""
    # A little more than the least normal number: exponentials that are less take longer to make, too.
    edge = math.log(torch.finfo(x.dtype).tiny) * (1.0 - 2.0**-8)
    # To look at a value of another device would be to wait for it.
    if x.device.type == "cpu" and (float(x.min()) if least is None else least) >= edge:
        return x.exp_(), None
    sunk = x < edge
    return hide(x.clamp_(min=edge).exp_(), veil(~sunk, x)), sunk


def veil(visible: Any, like: Any) -> Any:
    """All bits set where visible, as integers of the size of the dtype."""
    ones = visible.view(torch.int8) != 0  # the bytes of a view of other numbers may be any
    return ones.view(torch.int8).to(torch.int64 if like.dtype == torch.float64 else torch.int32).neg_()


def hide(x: Any, veil: Any) -> Any:
    """By the bits: a product would leave NaN, and `masked_fill_` takes ten times as long."""
    x.view(veil.dtype).bitwise_and_(veil)
    return x


def each(function: Callable[[Any], None], tasks: Sequence[Any]) -> None:
    """One after another: torch's operations use the cores themselves."""
    for task in tasks:
        function(task)


IN_PLACE = InPlace(exp, None, veil, hide, each)
