"""Whatever is asked: the answer is the definition's, and hidden numbers do not reach it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from . import oracle
from .judges import same_bits, within_bound
from .strategies import calls, repeatable
from .subjects import BackendSubject
from .trials import Call


@pytest.mark.clause("SCORE-4", "MASK-3", "MASK-4", "MASK-5", "SOFTMAX-2", "SOFTMAX-3", "SOFTMAX-4", "DROPOUT-2")
def test_any_call_has_the_answer_of_the_definition(backend: Any) -> None:
    subject = BackendSubject(backend)

    @repeatable(backend)
    @given(calls())
    def check(call: Call) -> None:
        verdict = within_bound(call)((subject.forward(call),))
        assert verdict.ok, verdict.message

    check()


@pytest.mark.clause("MASK-6a")
def test_keys_that_nobody_sees_cannot_be_observed_in_any_call(backend: Any) -> None:
    subject = BackendSubject(backend)

    @repeatable(backend)
    @given(calls())
    def check(call: Call) -> None:
        visible = oracle.attention(call).visible
        hidden = ~visible.any(axis=tuple(range(visible.ndim - 1)))
        k, v = call.k.copy(), call.v.copy()
        k[..., hidden, :], v[..., hidden, :] = np.finfo(np.float32).max, -1e30
        verdict = same_bits()((subject.forward(call), subject.forward(call.but(k=k, v=v))))
        assert verdict.ok, verdict.message

    check()
