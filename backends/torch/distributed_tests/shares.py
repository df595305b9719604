"""What ranks have of an undivided call, and what they make of it together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from attnspec_torch import distributed
from attnspec_torch.distributed import Way

from attnspec.request import make_request
from attnspec.shards import OPTIONS, layout
from attnspec.struct import arrays_in, with_arrays

Lengths = Sequence[int]


@dataclass(frozen=True)
class Share:
    """The shares of the ranks in a sequence: how many queries and keys each has. Q None: all have all queries."""

    how: Way
    Q: Lengths | None
    K: Lengths

    def of(self, rank: int, q: Any, k: Any, v: Any, options: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """A rank's q, k, v and options."""
        request = make_request(q, k, v, **options)
        lies = layout(request)
        cut = {}
        for name, x in arrays_in("", request).items():
            rows, keys = lies[name].queries, lies[name].keys
            if rows is not None and self.Q is not None:
                cut[name] = x.split(list(self.Q), dim=rows)[rank]
            elif keys is not None:
                cut[name] = x.split(list(self.K), dim=keys)[rank]
        own = with_arrays("", request, cut)
        given = {name: getattr(own, name) for name in OPTIONS if options.get(name) is not None}
        return [x[0] if request.headless else x for x in (own.q, own.k, own.v)], given

    def rows(self, rank: int, x: torch.Tensor, axis: int) -> torch.Tensor:
        """A rank's rows of a result."""
        return x if self.Q is None else x.split(list(self.Q), dim=axis)[rank]

    def together(self, parts: Sequence[Any], axis: int) -> Any:
        """The result that the ranks have rows of, as NumPy has it."""
        if self.Q is not None:
            return torch.cat([torch.as_tensor(x) for x in parts], dim=axis).numpy()
        assert all((x == parts[0]).all() or x.tobytes() == parts[0].tobytes() for x in parts)
        return parts[0]

    def attend(self, rank: int, q: Any, k: Any, v: Any, *, reproducible: bool = False, **options: Any) -> Any:
        """out and lse of a rank's share of the undivided call."""
        arrays, given = self.of(rank, q, k, v, options)
        return distributed.attention_with_lse(*arrays, how=self.how, reproducible=reproducible, **given)


def even(how: Way, n: int, Q: int, K: int) -> Share:
    """Equal shares."""
    return Share(how, None if how == "split_keys" else [Q // n] * n, [K // n] * n)


def uneven(how: Way, n: int, Q: int, K: int) -> Share:
    """Shares that differ; the second rank has a single query, the last no key."""
    keys = [K - 3 * (n - 2)] + [3] * (n - 2) + [0]
    return Share(how, None if how == "split_keys" else [Q - 2 * n + 3, 1] + [2] * (n - 2), keys)
