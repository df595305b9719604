"""What models hand on for their masks: rules that mean what transformers' own arrays mean, and are no arrays."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, StaticCache, masking_utils
from transformers_tiny import DECODER, GROUPED, attending, eager, model, tokens

from attnspec.integrations import transformers as integration
from attnspec.integrations.transformers_masks import RuleMask, RuleMasks
from attnspec.shapes import Span
from attnspec.struct import arrays_in

B, Q, K = 3, 5, 13
PADDING = torch.arange(24) >= torch.tensor([[0], [4], [6]])
IDS = torch.tensor([[0] * 4 + [1] * 9 + [-1] * 11, [-1] * 13 + [2] * 11, [5] * 24])
PLACES = {"first keys": (8, 0), "a window of keys": (16, 8), "a static cache": (torch.tensor(6), 0)}
FUNCTIONS = {
    "causal": masking_utils.causal_mask_function,
    "sliding window": masking_utils.sliding_window_causal_mask_function(4),
    "both sides": masking_utils.bidirectional_mask_function,
    "window on both sides": masking_utils.sliding_window_bidirectional_mask_function(3),
    "chunks": masking_utils.chunked_causal_mask_function(3, torch.tensor([0, 4, 6])),
    "blocks": masking_utils.or_masks(masking_utils.causal_mask_function, masking_utils.blockwise_overlay(IDS)),
    "packed": masking_utils.and_masks(
        masking_utils.remap_positions_for_packed_sequence(
            masking_utils.sliding_window_causal_mask_function(4), torch.arange(24).expand(B, -1) % 7
        ),
        masking_utils.packed_sequence_mask_function(torch.arange(24).expand(B, -1) // 7),
    ),
}
BY_RULES = {"causal", "sliding window", "both sides", "window on both sides"}


def handed_on(function, place, padding=None, **options):
    q_offset, kv_offset = PLACES[place]
    call = {
        "batch_size": B, "q_length": Q, "kv_length": K, "q_offset": q_offset, "kv_offset": kv_offset,
        "mask_function": function, "attention_mask": padding, "device": "cpu",
    }  # fmt: skip
    # One of the two, as transformers' functions that make masks do.
    made = RuleMasks(masking_utils)(**call, **{"allow_is_causal_skip": True, **options})
    return made, masking_utils.sdpa_mask(**call, **{**options, "allow_is_causal_skip": False})


def span(start, stop, total):
    return Span(start, stop - start, total, torch.arange(start, stop), (start, stop))


def tile(rule, rows, keys):
    return rule.tile(span(*rows, Q), span(*keys, K), xp=torch, device=torch.device("cpu"))


@pytest.mark.parametrize("padding", [None, PADDING, PADDING[:, :11]], ids=["no padding", "padding", "a shorter mask"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_tile_of_the_rule_is_that_of_the_array(function, place, padding):
    made, array = handed_on(FUNCTIONS[function], place, padding)
    for rows, keys in (((0, Q), (0, K)), ((2, 4), (0, K)), ((0, Q), (3, 9)), ((1, 2), (12, 13))):
        got = tile(made.rule, rows, keys).broadcast_to(B, 1, rows[1] - rows[0], keys[1] - keys[0])
        assert torch.equal(got, array[:, :, slice(*rows), slice(*keys)])


@pytest.mark.parametrize("place", PLACES)
def test_a_function_that_indexes_by_single_numbers_is_asked_the_same(place):
    def own(batch, head, query, key):
        return (IDS[batch][query] == IDS[batch][key]) | (key == 0)

    made, array = handed_on(
        masking_utils.and_masks(masking_utils.causal_mask_function, own), place, PADDING, use_vmap=True
    )
    assert torch.equal(tile(made.rule, (0, Q), (0, K)), array)
    assert torch.equal(tile(made.rule, (1, 3), (2, 7)), array[..., 1:3, 2:7])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_rule_holds_no_array_of_queries_and_keys(function, place):
    made, _ = handed_on(FUNCTIONS[function], place, PADDING)
    held = arrays_in("mask", made.rule).values()
    assert all(x.numel() <= B * K for x in held if torch.is_tensor(x))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_where_a_tile_is_skipped_nothing_is_visible(function):
    """Causal masks are never looked at above the diagonal, whatever else holds there."""
    made, array = handed_on(FUNCTIONS[function], "first keys", PADDING)
    statuses = {
        (i, j): made.rule.status(span(i, i + 1, Q), span(j, j + 1, K)) for i in range(Q) for j in range(K)
    }  # fmt: skip
    assert not any(array[:, :, i, j].any() for (i, j), status in statuses.items() if status == "none")
    if function in ("causal", "sliding window", "chunks"):
        assert statuses[0, 12] == "none"


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_model_that_asks_for_an_array_gets_one(function):
    made, array = handed_on(FUNCTIONS[function], "first keys", PADDING, allow_is_causal_skip=False)
    if function in BY_RULES:
        assert torch.equal(made, array)
    else:  # transformers allows no skip here itself
        assert isinstance(made, RuleMask)


def test_a_model_that_looks_into_its_mask_finds_the_array():
    made, array = handed_on(FUNCTIONS["causal"], "first keys", PADDING)
    assert (made.shape, made.ndim, made.dtype) == (tuple(array.shape), array.ndim, torch.bool)
    assert torch.equal(made[:, :, :, :4], array[:, :, :, :4])
    assert torch.equal(made.to("cpu"), array)
    assert torch.equal(copy.deepcopy(made).array, array)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_cache_that_counts_on_moves_no_mask(function):
    count = torch.tensor(6)
    made = RuleMasks(masking_utils)(
        batch_size=B, q_length=Q, kv_length=K, q_offset=count, mask_function=FUNCTIONS[function], device="cpu",
        allow_is_causal_skip=True,
    )  # fmt: skip
    before = tile(made.rule, (0, Q), (0, K)).clone()
    count.add_(Q)
    assert torch.equal(tile(made.rule, (0, Q), (0, K)), before)
    assert torch.equal(made.array, before.broadcast_to(made.shape))


def test_a_mask_made_ahead_stays_itself():
    made, _ = handed_on(FUNCTIONS["causal"], "first keys", PADDING)
    integration.register("attnspec-rules")
    config = LlamaConfig(**GROUPED, attn_implementation="attnspec-rules")
    assert masking_utils.create_causal_mask(config, torch.zeros(B, Q, 0), made, None) is made


def test_a_single_query_and_an_encoder_without_padding_have_what_sdpa_has():
    def both(**call):
        call = {"batch_size": B, "q_offset": 0, "kv_offset": 0, "device": "cpu", **call}
        return RuleMasks(masking_utils)(**call), masking_utils.sdpa_mask(**call)

    step = {"q_length": 1, "kv_length": 9, "q_offset": 8, "mask_function": FUNCTIONS["causal"]}
    assert both(**step, attention_mask=None, allow_is_causal_skip=True) == (None, None)
    assert torch.equal(*both(**step, attention_mask=PADDING[:, :9], allow_is_causal_skip=True))
    encoder = {"q_length": Q, "kv_length": Q, "mask_function": FUNCTIONS["both sides"], "allow_is_causal_skip": False}
    for mask in (None, PADDING[:1, :Q]):
        assert both(**encoder, attention_mask=mask, allow_is_bidirectional_skip=True) == (None, None)


def implementations():
    for masks in ("rules", "arrays"):
        integration.register(f"attnspec-{masks}", masks=masks)
        yield f"attnspec-{masks}"


def assert_as_eager(made, inputs, rows=slice(None)):
    with torch.no_grad(), eager(made):
        wanted = made(**inputs).last_hidden_state[rows]
    for name in implementations():
        with torch.no_grad():
            got = attending(made, name)(**inputs).last_hidden_state[rows]
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-9 * wanted.abs().max().item())


PACKED = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3, 4], [0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2]])


@pytest.mark.parametrize(("name", "options"), [("LlamaModel", {}), ("MistralModel", {"sliding_window": 3})])
def test_packed_sequences_do_not_see_each_other(name, options):
    made = model(name, {**GROUPED, **options}, torch.float64)
    ids = tokens(2, 13)
    assert_as_eager(made, {"input_ids": ids, "position_ids": PACKED, "use_cache": False})
    for implementation in implementations():
        with torch.no_grad():
            attending(made, implementation)
            packed = made(ids, position_ids=PACKED, use_cache=False).last_hidden_state
            alone = made(ids[:1, 5:8], use_cache=False).last_hidden_state
        torch.testing.assert_close(packed[:1, 5:8], alone, rtol=1e-9, atol=1e-9)


LEFT = torch.arange(11) >= torch.tensor([[0], [4], [2]])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Llama4TextModel", dict(
            GROUPED, attention_chunk_size=4, num_local_experts=2, num_experts_per_tok=1, intermediate_size_mlp=40,
            no_rope_layers=[1, 0], layer_types=["chunked_attention", "full_attention"],
        )),
        ("Gemma3TextModel", dict(
            GROUPED, sliding_window=4, layer_types=["sliding_attention", "full_attention"],
            use_bidirectional_attention=True,
        )),
        ("ModernBertModel", dict(
            DECODER, local_attention=6, global_attn_every_n_layers=2, cls_token_id=1, sep_token_id=2,
        )),
    ],
    ids=["chunks", "a window on both sides by a function of the model", "a window on both sides"],
)  # fmt: skip
def test_other_patterns_are_those_of_eager_attention(name, options):
    assert_as_eager(model(name, options, torch.float64), {"input_ids": tokens(3, 11), "attention_mask": LEFT}, LEFT)


def test_an_image_is_seen_from_both_sides_and_text_from_one():
    made = model("Gemma3TextModel", dict(GROUPED, sliding_window=4), torch.float64)
    ids, image = tokens(3, 11), torch.tensor([[-1] * 2 + [0] * 5 + [-1] * 4, [-1] * 11, [-1] * 6 + [0] * 2 + [1] * 3])

    def masks(name):
        attending(made, name)
        embeddings = made.get_input_embeddings()(ids)
        common = {"attention_mask": LEFT, "cache": None, "block_sequence_ids": image}
        return {
            "full_attention": masking_utils.create_causal_mask(made.config, embeddings, **common),
            "sliding_attention": masking_utils.create_sliding_window_causal_mask(made.config, embeddings, **common),
        }

    with torch.no_grad(), eager(made):
        wanted = made(ids, attention_mask=masks("eager")).last_hidden_state[LEFT]
    for name in implementations():
        with torch.no_grad():
            got = made(ids, attention_mask=masks(name)).last_hidden_state[LEFT]
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-9 * wanted.abs().max().item())


@pytest.mark.parametrize("cuts", [(0, 11), (0, 4, 11), (0, 6, 7, 11)])
@pytest.mark.parametrize("kept", ["dynamic", "static"])
@pytest.mark.parametrize(("name", "options"), [("LlamaModel", {}), ("MistralModel", {"sliding_window": 3})])
def test_a_prompt_in_pieces_is_the_whole_prompt(name, options, kept, cuts):
    made = model(name, {**GROUPED, **options}, torch.float64)
    ids = tokens(3, 11)
    with torch.no_grad(), eager(made):
        wanted = made(ids, attention_mask=LEFT, use_cache=False).last_hidden_state[LEFT]
    for implementation in implementations():
        attending(made, implementation)
        kept_in = DynamicCache(config=made.config) if kept == "dynamic" else StaticCache(made.config, max_cache_len=16)
        pieces = []
        for first, last in pairwise(cuts):
            with torch.no_grad():
                pieces.append(made(ids[:, first:last], attention_mask=LEFT[:, :last], cache=kept_in).last_hidden_state)
        got = torch.cat(pieces, 1)[LEFT]
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-9 * wanted.abs().max().item())


def test_nan_where_a_static_cache_is_not_yet_written_is_not_seen():
    made = model("LlamaModel", GROUPED, torch.float64)
    ids = tokens(3, 11)
    for implementation in implementations():
        attending(made, implementation)
        kept = StaticCache(made.config, max_cache_len=16)
        with torch.no_grad():
            wanted = made(ids, use_cache=False).last_hidden_state
            made(ids[:, :6], cache=kept)
            for layer in kept.layers:
                layer.keys[:, :, 6:] = layer.values[:, :, 6:] = torch.nan
            got = [made(ids[:, first:last], cache=kept).last_hidden_state for first, last in ((6, 10), (10, 11))]
        torch.testing.assert_close(torch.cat(got, 1), wanted[:, 6:], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("real", [LEFT, LEFT.flip(1)], ids=["padding before", "padding behind"])
def test_nan_in_padding_is_not_seen(real):
    made = model("LlamaModel", GROUPED, torch.float64)
    embeddings = made.get_input_embeddings()(tokens(3, 11)).detach()
    spoilt = torch.where(real[..., None], embeddings, torch.nan)
    for implementation in implementations():
        attending(made, implementation)
        with torch.no_grad():
            wanted = made(inputs_embeds=embeddings, attention_mask=real).last_hidden_state
            got = made(inputs_embeds=spoilt, attention_mask=real).last_hidden_state
        assert torch.equal(got[real], wanted[real])
