"""PyTorch's OpInfo samples, asked of attnspec."""

from __future__ import annotations

from collections import Counter

import pytest
import torch_opinfo

from attnspec.integrations import torch as adapter

WIDE = torch_opinfo.cases()
NARROW = [case for dtype in ("float32", "float16", "bfloat16") for case in torch_opinfo.cases(dtype)]


@pytest.mark.parametrize("case", [*WIDE, *NARROW], ids=str)
def test_a_sample_is_answered_as_pytorch_answers_it(case):
    case.check()


def test_no_sample_has_vanished():
    counts = {
        "nn.functional.scaled_dot_product_attention": 25,
        "nn.functional.multi_head_attention_forward": 192,
        "nn.functional.layer_norm": 6,
        "nn.functional.rms_norm": 6,
        "softmax": 7,
        "torch.ops.aten._safe_softmax.default": 8,
    }
    assert Counter(case.name.rsplit("-", 2)[0] for case in WIDE) == counts
    assert len(WIDE) == 244
    assert len(NARROW) == 3 * 244


def test_a_wrong_scale_fails_most_samples_of_attention(monkeypatch):
    """Far from the right one: scores of hundreds give one key nearly all the weight at half the scale, too."""
    right = adapter.attention
    monkeypatch.setattr(adapter, "attention", lambda q, k, v, *, scale=None, **more: right(q, k, v, scale=0.01, **more))
    asked = [case for case in WIDE if case.name.startswith((torch_opinfo.ATTENTION, torch_opinfo.MULTI_HEAD))]
    assert sum(case.fails() for case in asked) > 0.9 * len(asked)
