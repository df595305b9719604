"""transformers' models with attnspec for their attention, and that these suites notice an attention that is not."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers_alibi as alibi
import transformers_decoding as decoding
import transformers_families as families
from transformers_tiny import attending, eager

from attnspec.integrations import transformers as integration

HIDDEN_STATES = [*families.cases("float64"), *families.cases("float32")]


@pytest.mark.parametrize("case", HIDDEN_STATES, ids=str)
def test_a_model_gives_the_hidden_states_of_its_eager_attention(case):
    case.check()


@pytest.mark.parametrize("case", alibi.cases(), ids=str)
def test_a_layer_with_alibi_gives_the_heads_of_its_own_attention(case):
    case.check()


@pytest.mark.parametrize("case", decoding.cases(), ids=str)
def test_decoding_gives_the_tokens_of_eager_attention(case):
    case.check()


def test_no_case_has_vanished():
    assert len(families.FAMILIES) == 21
    assert len(families.cases("float64")) == len(families.cases("float32")) == 42
    assert len(alibi.cases()) == 8
    assert len(decoding.FAMILIES) == 5
    assert len(decoding.cases()) == 20


@pytest.mark.parametrize("case", [*HIDDEN_STATES, *alibi.cases(), *decoding.cases()], ids=str)
def test_another_scale_fails_every_case(case, monkeypatch):
    asked = integration.attention

    def wrong(q, k, v, *, scale, **options):
        return asked(q, k, v, scale=1.3 * scale, **options)

    monkeypatch.setattr(integration, "attention", wrong)
    with pytest.raises(AssertionError):
        case.check()


@pytest.mark.parametrize("family", decoding.FAMILIES)
def test_what_is_decoded_is_not_one_token_over_and_over(family):
    for sequence in decoding._eager(family):
        assert len(set(sequence.tolist())) > decoding.STEPS // 3


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt-oss", "t5"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("masks", families.MASKS)
def test_half_precision_errs_at_most_twice_as_much_as_eager_attention(family, dtype, masks):
    integration.register(f"attnspec-{masks}", masks=masks)
    made, inputs, rows = families._made(family, dtype)
    double = copy.deepcopy(made).to(torch.float64)
    with torch.no_grad():
        with eager(double):
            truth = double(**inputs).last_hidden_state[rows]
        with eager(made):
            error = (made(**inputs).last_hidden_state[rows] - truth).abs().max()
        got = attending(made, f"attnspec-{masks}")(**inputs).last_hidden_state[rows]
    assert got.dtype == getattr(torch, dtype)
    assert (got - truth).abs().max() <= 2 * error


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt-oss"])
@pytest.mark.parametrize("masks", families.MASKS)
def test_autocast_errs_at_most_twice_as_much_as_with_eager_attention(family, masks):
    """Rotary positions and norms leave queries and keys in float32, projections give values in bfloat16."""
    integration.register(f"attnspec-{masks}", masks=masks)
    made, inputs, rows = families._made(family, "float32")
    truth = families._eager(family, "float32")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        own, got = (attending(made, name)(**inputs).last_hidden_state[rows] for name in ("eager", f"attnspec-{masks}"))
    assert got.dtype == own.dtype
    assert (got - truth).abs().max() <= 2 * (own - truth).abs().max()


def test_the_example_of_register_runs(tmp_path):
    made, inputs, rows = families._made("llama", "float32")
    attending(made, "eager").save_pretrained(tmp_path)
    example = integration.register.__doc__.partition("::\n")[2]
    names = {"path": tmp_path}
    exec("\n".join(line.strip() for line in example.splitlines()), names)
    with torch.no_grad():
        got = names["model"].eval()(**inputs).last_hidden_state[rows]
    torch.testing.assert_close(got, families._eager("llama", "float32"))
