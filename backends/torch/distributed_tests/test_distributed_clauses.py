"""The clauses of SHARD, asked of `attnspec_torch.distributed` as of anybody else's: each call of n processes."""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial
from typing import Any

import numpy as np
import pytest
from attnspec_conformance.laws import LAWS
from attnspec_conformance.operands import Operands
from attnspec_conformance.subjects import judge
from attnspec_conformance.trials import Call, Result
from attnspec_torch import backend
from attnspec_torch.distributed import Way
from ranks import Ranks  # type: ignore[import-not-found]
from shares import Share, even  # type: ignore[import-not-found]
from test_distributed import answered, together  # type: ignore[import-not-found]

Start = Callable[[int], Ranks]
WAYS: dict[str, Way] = {"sequence": "ring", "keys": "split_keys", "heads": "all_to_all"}
SHARD = [name for name, law in LAWS.items() if law.clauses[0].startswith("SHARD") and "batch" not in name]


class Group:
    """As many processes as a call is divided among."""

    name = "attnspec_torch.distributed"

    def __init__(self, ranks: Start, *, to_the_bit: bool = False) -> None:
        self.ranks, self.to_the_bit = ranks, to_the_bit
        self.capabilities: Set[str] = {"float64", "shards", "vjp", *(["shards_to_the_bit"] if to_the_bit else [])}

    def supports(self, call: Call) -> str | None:
        shards = call.shards
        if shards is None or shards.along not in WAYS or shards.n > 4:
            return f"it divides nothing like {shards}"
        return None

    def share(self, call: Call) -> Share:
        assert call.shards is not None
        return even(WAYS[call.shards.along], call.shards.n, call.q.shape[-2], call.k.shape[-2])

    def forward(self, call: Call) -> Result:
        share = self.share(call)
        answers = self.ranks(len(share.K)).run(attended, share, call, self.to_the_bit)
        out, lse = (share.together([answer[n] for answer in answers], axis) for n, axis in ((0, -2), (1, -1)))
        return Result(out=out.astype(np.float64), lse=lse, dtype=str(out.dtype), lse_dtype=str(lse.dtype))

    def vjp(self, call: Call) -> Result:
        share = self.share(call)
        return together(share, self.ranks(len(share.K)).run(answered, share, call))[1]  # type: ignore[no-any-return]


def attended(rank: int, share: Share, call: Call, to_the_bit: bool) -> tuple[Any, ...]:
    """out and lse of a rank's queries."""
    attend = partial(share.attend, rank, reproducible=to_the_bit)
    operands = Operands(backend, call.but(want="lse"), {"lse": attend})
    return tuple(backend.to_numpy(x) for x in operands.function(*operands.arrays))


@pytest.mark.parametrize("law", [name for name in SHARD if "bit" not in name])
def test_law(ranks: Start, law: str) -> None:
    held(Group(ranks), law)


def test_the_number_of_workers_changes_no_bit(ranks: Start) -> None:
    held(Group(ranks, to_the_bit=True), "the_number_of_workers_changes_no_bit")


def held(group: Group, law: str) -> None:
    verdicts, unsupported = judge(LAWS[law], group)
    assert verdicts, unsupported
    failed = [verdict.message for _, verdict in verdicts if not verdict.ok]
    assert not failed, failed[0]
