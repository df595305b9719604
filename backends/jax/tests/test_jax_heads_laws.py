"""The loop over heads as a subject of the suite: judged by the laws of the clauses that it could break, at any size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import pytest
from attnspec_conformance import placement
from attnspec_conformance.laws import LAWS
from attnspec_conformance.subjects import BackendSubject, judge
from attnspec_jax import heads

from attnspec import host

CLAUSES = {"SCORE-5", "MASK-5", "MASK-6a", "MASK-7", "SOFTMAX-3", "DROPOUT-3", "GRADIENT-1"}
WITHOUT_SCORES = "no_keys_at_all_are_an_empty_row"  # which the loop leaves to the walk
CASES = [
    name
    for name, law in LAWS.items()
    if CLAUSES & set(law.clauses) and "shards" not in law.needs and name != WITHOUT_SCORES
]
MOST = 4  # trials of a law: each is another program


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls that the loop serves: all that it can, however small."""
    served: list[Any] = []

    def call(request: Any) -> Any:
        served.append(request)
        return heads.call(request)

    kernel = replace(heads.HEADS, call=call, from_scores=0)
    host.host_of(jnp.ones(1))
    for root, found in list(host._hosts.items()):
        if heads.HEADS in found.kernels:
            kernels = tuple(kernel if one is heads.HEADS else one for one in found.kernels)
            monkeypatch.setitem(host._hosts, root, replace(found, kernels=kernels))
    monkeypatch.setattr(heads, "ROWS", 1)
    monkeypatch.setattr(heads, "SCORES", 1)
    return served


@pytest.mark.parametrize("name", CASES)
def test_the_loop_keeps_the_laws(name: str, calls: list[Any]) -> None:
    subject = BackendSubject(placement.load("jax"))
    if not LAWS[name].needs <= subject.capabilities:
        pytest.skip(f"JAX does not declare {LAWS[name].needs - subject.capabilities}")
    verdicts = [verdict for _, verdict in judge(LAWS[name], subject, MOST)[0]]
    assert not [verdict.message for verdict in verdicts if not verdict.ok]
    assert calls
