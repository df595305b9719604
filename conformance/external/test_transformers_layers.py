"""`attend`, the function that a layer of transformers calls: arguments, gradients, dropout, refusals."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from transformers.masking_utils import create_causal_mask
from transformers_tiny import GROUPED, attending, eager, model, tokens

import attnspec
from attnspec import errors
from attnspec.integrations import transformers as integration
from attnspec.integrations.transformers import attend

B, H, G, Q, K, D, E = 3, 6, 2, 5, 7, 4, 3


def layer(*, training=False, is_causal=False):
    return SimpleNamespace(training=training, is_causal=is_causal)


def arrays(*, rows=Q, keys=K, seed=0):
    drawn = torch.Generator().manual_seed(seed)
    shapes = (B, H, rows, D), (B, G, keys, D), (B, G, keys, E)
    return tuple(torch.randn(shape, generator=drawn, dtype=torch.float64) for shape in shapes)


def seen_by(out, mask):
    """Whether `out` (B, Q, H, E) is attention under that mask."""
    return torch.equal(out.transpose(1, 2), attnspec.attention(*arrays(rows=out.shape[1]), mask=mask))


def lowered(visible, dtype, *, otherwise=0.0):
    """transformers' floating mask."""
    return torch.full(visible.shape, otherwise, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)


@pytest.mark.parametrize("rows", [Q, 1])
@pytest.mark.parametrize(
    ("own", "argument", "causal"), [(False, None, False), (True, None, True), (True, False, False), (False, True, True)]
)
def test_without_a_mask_causal_starts_with_the_first_key_and_one_query_sees_all(rows, own, argument, causal):
    out, weights = attend(layer(is_causal=own), *arrays(rows=rows), None, is_causal=argument)
    assert out.shape == (B, rows, H, E)
    assert weights is None
    assert seen_by(out, attnspec.causal() if causal and rows > 1 else None)


def test_a_layer_that_does_not_say_is_causal():
    out, _ = attend(SimpleNamespace(training=False), *arrays(), None)
    assert seen_by(out, attnspec.causal())


@pytest.mark.parametrize("rows", [Q, 1])
def test_a_window_counts_the_key_of_the_query(rows):
    out, _ = attend(layer(is_causal=True), *arrays(rows=rows), None, sliding_window=2)
    assert seen_by(out, attnspec.window(1, 0, align="start" if rows > 1 else "end"))


def test_a_window_that_shuts_out_keys_of_a_layer_that_is_not_causal_is_refused():
    out, _ = attend(layer(), *arrays(), None, sliding_window=K)
    assert seen_by(out, None)
    with pytest.raises(errors.OptionError, match=f"sliding_window=2 over K={K}"):
        attend(layer(), *arrays(), None, sliding_window=2)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_the_most_negative_number_of_a_mask_masks(dtype):
    visible = torch.rand(B, 1, Q, K, generator=torch.Generator().manual_seed(1)) < 0.6
    visible[0, :, 2] = False
    given = lowered(visible, getattr(torch, dtype))
    q, k, v = (x.to(given.dtype) for x in arrays())
    out, _ = attend(layer(), q, k, v, given)
    assert torch.equal(out, attend(layer(), q, k, v, visible)[0])
    assert not out[0, 2].any()
    wider, _ = attend(layer(), q, k, v, given.to(torch.float64))
    assert torch.equal(wider, out)


@pytest.mark.parametrize(("of_q", "of_k", "of_v"), [(32, 32, 16), (16, 32, 16), (16, 16, 32), (64, 32, 32)])
def test_mixed_dtypes_are_computed_in_the_widest_and_give_that_of_the_values(of_q, of_k, of_v):
    of_bits = {16: torch.bfloat16, 32: torch.float32, 64: torch.float64}
    given = [x.to(of_bits[bits]) for x, bits in zip(arrays(), (of_q, of_k, of_v), strict=True)]
    sink = torch.linspace(-1, 1, H)
    out, weights = attend(layer(), *given, None, s_aux=sink, output_attentions=True)
    q, k, v = (x.to(of_bits[max(of_q, of_k, of_v)]) for x in given)
    assert torch.equal(out.transpose(1, 2), attnspec.attention(q, k, v, sink=sink).to(of_bits[of_v]))
    assert torch.equal(weights, attnspec.attention_weights(q, k, sink=sink).to(of_bits[of_q]))


def test_any_other_number_of_a_mask_is_added():
    given = torch.full((B, 1, Q, K), -2.0, dtype=torch.float64)
    given[..., 0] = 1.0
    out, _ = attend(layer(), *arrays(), given)
    assert torch.equal(out.transpose(1, 2), attnspec.attention(*arrays(), bias=given))


def test_a_position_bias_is_added_to_whatever_mask():
    bias = torch.randn(1, H, Q, K, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    visible = torch.ones(B, 1, Q, K, dtype=torch.bool).tril(1)
    floating = lowered(visible, torch.float64, otherwise=0.25)
    wanted = attnspec.attention(*arrays(), mask=visible, bias=bias, scale=1.0)
    for mask in (visible, floating):
        out, _ = attend(layer(), *arrays(), mask, position_bias=bias, scaling=1.0)
        torch.testing.assert_close(out.transpose(1, 2), wanted, rtol=1e-12, atol=1e-12)


def test_asking_for_weights_changes_no_bit_of_the_output():
    given = torch.ones(B, 1, Q, K, dtype=torch.bool).tril(1)
    options = {"scaling": 0.3, "softcap": 1.5, "s_aux": torch.linspace(-1, 1, H, dtype=torch.float64)}
    out, none = attend(layer(), *arrays(), given, **options)
    again, weights = attend(layer(), *arrays(), given, **options, output_attentions=True)
    q, k, _ = arrays()
    assert none is None
    assert torch.equal(out, again)
    meant = {"scale": 0.3, "softcap": 1.5, "sink": options["s_aux"]}
    assert torch.equal(weights, attnspec.attention_weights(q, k, mask=given, **meant))


@pytest.mark.parametrize("masks", ["rules", "arrays"])
def test_a_model_returns_its_weights_when_they_are_asked_for(masks):
    integration.register("attnspec", masks=masks)
    made = model("LlamaModel", GROUPED, torch.float64)
    ids = tokens(3, 11)
    with torch.no_grad(), eager(made):
        wanted = made(ids, output_attentions=True).attentions
    attending(made, "attnspec")
    with torch.no_grad():
        got, without = made(ids, output_attentions=True), made(ids)
    assert torch.equal(got.last_hidden_state, without.last_hidden_state)
    assert len(got.attentions) == 2
    for ours, theirs in zip(got.attentions, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


UNKNOWN = {
    "sinks": torch.zeros(B, H, Q, 1),
    "indices": torch.zeros(B, Q, 2, dtype=torch.int32),
    "head_mask": torch.ones(H),
    "cu_seq_lens_q": torch.tensor([0, 2, Q]),
    "seq_idx": torch.zeros(1, Q),
    "anything": False,
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_argument_that_may_change_the_meaning_is_refused(name):
    way = "position_ids" if name in ("cu_seq_lens_q", "seq_idx") else "eager"
    with pytest.raises(errors.OptionError, match=f"SimpleNamespace hands its attention {name}=.*{way}"):
        attend(layer(), *arrays(), None, **{name: UNKNOWN[name]})


def test_arguments_without_a_meaning_for_attention_change_nothing():
    harmless = {name: object() for name in integration._WITHOUT_MEANING} | dict.fromkeys(UNKNOWN)
    assert seen_by(attend(layer(), *arrays(), None, **harmless)[0], None)


@pytest.mark.parametrize("shape", [(B, K), (Q, K), (B, Q, K)])
def test_a_mask_without_its_four_axes_is_refused(shape):
    with pytest.raises(errors.ShapeError, match="Register the mask function"):
        attend(layer(), *arrays(), torch.ones(shape, dtype=torch.bool))


def test_a_mask_of_another_length_is_refused():
    integration.register("attnspec")
    made = attending(model("LlamaModel", GROUPED, torch.float64), "attnspec")
    rule = create_causal_mask(made.config, torch.zeros(B, Q, 0), None, None)
    with pytest.raises(errors.ShapeError, match=r'masks="arrays"'):
        attend(layer(), *arrays(), rule)


def test_a_mask_of_integers_is_refused():
    with pytest.raises(errors.MaskError, match="boolean"):
        attend(layer(), *arrays(), torch.ones(B, 1, Q, K, dtype=torch.int64))


def test_another_kind_of_masks_is_refused():
    with pytest.raises(errors.OptionError, match='"rules"'):
        integration.register("attnspec", masks="padding")


def test_without_transformers_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(errors.MissingFrameworkError, match="pip install transformers"):
        integration.register()


def test_dropout_is_that_of_torchs_seed_and_only_in_training():
    given = arrays()
    torch.manual_seed(3)
    once, _ = attend(layer(training=True), *given, None, dropout=0.4)
    other, _ = attend(layer(training=True), *given, None, dropout=0.4)
    torch.manual_seed(3)
    again, _ = attend(layer(training=True), *given, None, dropout=0.4)
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    before = torch.get_rng_state()
    plain, _ = attend(layer(training=False), *given, None, dropout=0.4)
    none, _ = attend(layer(training=True), *given, None, dropout=0.0)
    assert seen_by(plain, None)
    assert seen_by(none, None)
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_drops_its_share_of_the_weights_and_scales_the_rest():
    rows, keys, rate = 40, 50, 0.25
    q, k, _ = arrays(rows=rows, keys=keys)
    one_hot = torch.eye(keys, dtype=torch.float64).expand(B, G, keys, keys)
    torch.manual_seed(0)
    dropped = attend(layer(training=True), q, k, one_hot, None, dropout=rate)[0].transpose(1, 2)
    weights = attnspec.attention_weights(q, k)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], weights[kept] / (1 - rate))
    n = kept.numel()
    assert abs(kept.double().mean().item() - (1 - rate)) < 5 * (rate * (1 - rate) / n) ** 0.5


def gradients(made, inputs):
    made.zero_grad()
    out = made(**inputs, use_cache=False).last_hidden_state[inputs["attention_mask"]]
    # Of the squares it would be next to nothing: the last norm keeps their sum what it is.
    (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(4)).to(out)).sum().backward()
    return [out.detach(), *(p.grad for p in made.parameters() if p.grad is not None)]


@pytest.mark.parametrize("masks", ["rules", "arrays"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("LlamaModel", {}),
        ("MistralModel", {"sliding_window": 4}),
        ("Gemma2Model", {"sliding_window": 4, "attn_logit_softcapping": 2.0}),
        ("GptOssModel", {"sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1}),
    ],
)
def test_every_parameter_has_the_gradient_of_eager_attention(name, options, masks):
    integration.register("attnspec", masks=masks)
    made = model(name, {**GROUPED, **options}, torch.float64)
    behind = torch.arange(11) < torch.tensor([[11], [7], [9]])
    inputs = {"input_ids": tokens(3, 11), "attention_mask": behind}
    with eager(made):
        wanted = [x.clone() for x in gradients(made, inputs)]
    got = gradients(attending(made, "attnspec"), inputs)
    for ours, theirs in zip(got, wanted, strict=True):
        # The root mean squares of these models are in float32 in any dtype.
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6 * theirs.abs().max().item())


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("masks", ["rules", "arrays"])
def test_a_checkpointed_layer_drops_the_same_weights_again(masks, use_reentrant):
    integration.register("attnspec", masks=masks)
    made = model("LlamaModel", dict(GROUPED, attention_dropout=0.3), torch.float32).train()
    attending(made, "attnspec")
    inputs = {"input_ids": tokens(3, 11), "attention_mask": torch.arange(11) >= torch.tensor([[0], [4], [2]])}
    torch.manual_seed(1)
    wanted = [x.clone() for x in gradients(made, inputs)]
    made.activation_checkpointing_enable({"use_reentrant": use_reentrant})
    torch.manual_seed(1)
    got = gradients(made, inputs)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(got, wanted, strict=True))
    torch.manual_seed(2)
    assert not torch.equal(gradients(made, inputs)[0], wanted[0])


# torch's own, from the recording of any function that has a derivative of its own.
@pytest.mark.filterwarnings("default:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("dropped", [0.0, 0.3], ids=["plain", "training with dropout"])
def test_a_compiled_model_without_breaks_is_the_model(dropped):
    integration.register("attnspec-arrays", masks="arrays")
    options = dict(GROUPED, num_hidden_layers=1, attention_dropout=dropped)
    made = attending(model("LlamaModel", options, torch.float64), "attnspec-arrays").train(dropped > 0)
    inputs = {"input_ids": tokens(3, 11), "attention_mask": torch.arange(11) < torch.tensor([[11], [7], [9]])}
    compiled = torch.compile(made, backend="eager", fullgraph=True)
    found = []
    for m in (made, compiled):
        torch.manual_seed(1)
        found.append(gradients(m, inputs))
    for got, wanted in zip(*reversed(found), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)
