"""The clauses of SHARD, asked of `attnspec_jax.sharded` as of anybody else's."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from attnspec_conformance.foreign import FunctionSubject
from attnspec_conformance.laws import LAWS
from attnspec_conformance.subjects import judge
from attnspec_jax import sharded

WAYS = {"sequence": "ring", "keys": "split_keys", "heads": "all_to_all"}
SHARD = [name for name, law in LAWS.items() if law.clauses[0].startswith("SHARD") and "batch" not in name]


def functions(along: str, n: int, **options: Any) -> Any:
    """attention of whole arrays by n devices."""
    if along not in WAYS:
        return None
    mesh = jax.make_mesh((n,), ("workers",), devices=jax.devices()[:n])
    options |= {"mesh": mesh, "axis": "workers", "how": WAYS[along]}
    return SimpleNamespace(
        attention=partial(sharded.attention, **options),
        attention_with_lse=partial(sharded.attention_with_lse, **options),
    )


def subject(**options: Any) -> FunctionSubject:
    thing = SimpleNamespace(
        attnspec_shards=partial(functions, **options),
        attnspec_capabilities={"shards", "vjp"} | ({"shards_to_the_bit"} if options else set()),
    )
    return FunctionSubject("attnspec_jax.sharded", {}, "jax", thing)


@pytest.mark.parametrize("law", [name for name in SHARD if "bit" not in name])
def test_law(law: str) -> None:
    held(subject(), law)


@pytest.mark.slow
def test_the_number_of_workers_changes_no_bit() -> None:
    """Along the sequence and along the keys."""
    held(subject(reproducible=True), "the_number_of_workers_changes_no_bit", 2)


def held(one: FunctionSubject, law: str, most: int | None = None) -> None:
    verdicts, unsupported = judge(LAWS[law], one, most)
    assert verdicts, unsupported
    failed = [verdict.message for _, verdict in verdicts if not verdict.ok]
    assert not failed, failed[0]
