"""Checkpoints of transformers, read by name: the hidden states are those of transformers' own models."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from checkpoint_models import (
    CAUSAL,
    CLASSES,
    LENGTHS,
    VARIANTS,
    VOCABULARY,
    converted,
    distance,
    ids,
    made,
    same,
    theirs,
    tolerance,
)
from safetensors.torch import load_file, save_file

import attnspec
from attnspec import checkpoints
from attnspec.backend import choose
from attnspec.backend import numpy as backend
from attnspec.errors import OptionError


@pytest.mark.parametrize("name", VARIANTS)
def test_hidden_states_are_those_of_transformers(name):
    got = converted(name).hidden(ids(), LENGTHS)
    assert got.dtype == np.float64
    assert distance(got, theirs(name).hidden_states[-1]) <= tolerance(name)


@pytest.mark.parametrize("name", CAUSAL)
def test_logits_are_those_of_transformers(name):
    assert distance(converted(name).logits(ids(), LENGTHS), theirs(name).logits) <= tolerance(name)


def test_tied_rows_are_held_once():
    assert "lm_head.weight" in made("llama, tied").state_dict()
    assert converted("llama, tied").head is None
    assert converted("llama").head.shape == (18, VOCABULARY)


@pytest.mark.parametrize("name", ["gpt2", "llama, tied"])
def test_a_stored_head_that_is_not_the_rows_of_the_tokens_is_the_head(name, tmp_path):
    model = made(name)
    model.save_pretrained(tmp_path)
    path = str(tmp_path / "model.safetensors")
    save_file(
        load_file(path)
        | {"lm_head.weight": made("gpt2, untied").lm_head.weight[:, : model.lm_head.in_features].contiguous()},
        path,
    )
    theirs = type(model).from_pretrained(tmp_path, dtype=torch.float64).eval()
    with torch.no_grad():
        wanted = theirs(torch.asarray(ids())).logits
    ours = checkpoints.load(tmp_path, backend=backend)
    assert not ours.tied
    assert distance(ours.logits(ids()), wanted) <= tolerance(name)


@pytest.mark.parametrize("name", ["gpt2", "llama, tied"])
def test_a_tied_model_that_is_stored_alone_has_its_head(name):
    alone = checkpoints.convert(made(name).base_model.state_dict(), made(name).config.to_dict(), backend=backend)
    np.testing.assert_array_equal(alone.logits(ids()), converted(name).logits(ids()))


def test_a_window_is_read_where_transformers_reads_it():
    config = made("qwen2").config.to_dict() | {"sliding_window": 3}
    del config["use_sliding_window"]
    assert checkpoints.convert(made("qwen2").state_dict(), config, backend=backend).window is None
    config = made("mistral").config.to_dict()
    del config["sliding_window"]  # for which transformers takes one of its own
    with pytest.raises(OptionError, match="'sliding_window' is missing"):
        checkpoints.convert(made("mistral").state_dict(), config, backend=backend)


def test_segments_of_bert_are_those_of_transformers():
    types = (np.arange(max(LENGTHS)) > 2).astype(int) * np.ones((3, 1), int)
    wanted = theirs("bert", token_type_ids=torch.asarray(types)).last_hidden_state
    assert distance(converted("bert").hidden(ids(), LENGTHS, types), wanted) <= tolerance("bert")
    assert distance(converted("bert").hidden(ids(), LENGTHS), wanted) > 100 * tolerance("bert")


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("bert", {"num_attention_heads": 3}),
        ("bert", {"layer_norm_eps": 0.2}),
        ("bert", {"hidden_act": "gelu_new"}),
        ("gpt2", {"n_head": 4}),
        ("gpt2", {"layer_norm_epsilon": 0.2}),
        ("gpt2", {"activation_function": "gelu"}),
        ("llama", {"rms_norm_eps": 0.2}),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 31.0}}),
        ("llama", {"hidden_act": "gelu"}),
        ("mistral", {"sliding_window": 4}),
    ],
    ids=str,
)
def test_every_number_of_the_configuration_is_read(name, config):
    got = converted(name, **config).hidden(ids(), LENGTHS)
    assert distance(got, theirs(name).hidden_states[-1]) > 100 * tolerance(name)


def test_positions_of_older_configurations_are_read():
    config = made("llama").config.to_dict() | {"rope_theta": 30.0, "rope_scaling": None}
    del config["rope_parameters"]
    model = checkpoints.convert(made("llama").state_dict(), config, backend=backend)
    assert model.rotary == converted("llama").rotary == attnspec.Rotary(base=30.0)


@pytest.mark.parametrize("name", ["gpt2", "mistral"])
def test_decoding_with_a_cache_gives_the_rows_of_one_call(name):
    model, tokens = converted(name), ids()[:1]
    whole = model.hidden(tokens)
    caches = tuple(attnspec.Cache.of(layer.attention, capacity=7, lead=(1,)) for layer in model.stack.layers)
    rows, start = [], 0
    for size in (4, 1, 2):
        x = model.embedded(tokens[:, start : start + size], start=start)
        y, caches = attnspec.transformer_stack_with_cache(
            model.stack, x, caches, rotary=model.rotary, mask=model.mask()
        )
        rows.append(y)
        start += size
    np.testing.assert_allclose(np.concatenate(rows, axis=1), whole, rtol=0, atol=1e-12 * np.abs(whole).max())


@pytest.mark.parametrize("name", ["numpy", "torch", "jax", "strict"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_a_folder_is_loaded_on_every_backend(family, name, tmp_path):
    chosen = choose(name)
    made(family).save_pretrained(tmp_path)
    model = checkpoints.load(tmp_path, backend=chosen, dtype="float32")
    got = model.hidden(chosen.asarray(ids().astype(np.int32)), LENGTHS)
    assert type(got) is type(chosen.asarray([0.0]))
    assert distance(chosen.to_numpy(got), theirs(family).hidden_states[-1]) <= 2.0**-18


@pytest.mark.parametrize("family", CLASSES)
def test_weights_in_several_files_are_found(family, tmp_path):
    made(family).save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    same(checkpoints.load(tmp_path, backend=backend), converted(family))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_model_below_a_head_for_a_task_may_be_stored_alone(family, tmp_path):
    made(family).base_model.save_pretrained(tmp_path)
    alone = checkpoints.load(tmp_path, backend=backend)
    assert alone.head is None
    np.testing.assert_array_equal(alone.hidden(ids()), converted(family).hidden(ids()))


def test_the_model_of_bert_may_stand_below_a_head():
    below = {f"bert.{name}": x for name, x in made("bert").state_dict().items()}
    heads = {"cls.predictions.bias": torch.ones(VOCABULARY)}
    config = made("bert").config.to_dict()
    same(checkpoints.convert(below | heads, config, backend=backend), converted("bert"))


def test_names_of_older_files_are_understood():
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): x
        for name, x in made("bert").state_dict().items()
    }
    old["embeddings.position_ids"] = torch.arange(9)
    same(checkpoints.convert(old, made("bert").config.to_dict(), backend=backend), converted("bert"))
    tensors = made("gpt2").state_dict() | {"transformer.h.0.attn.bias": torch.ones(1, 1, 9, 9)}
    same(checkpoints.convert(tensors, made("gpt2").config.to_dict(), backend=backend), converted("gpt2"))


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_bfloat16_is_read_without_rounding(name, tmp_path):
    made("llama").save_pretrained(tmp_path)
    path = str(tmp_path / "model.safetensors")
    halves = {name: x.to(torch.bfloat16) for name, x in load_file(path).items()}
    save_file(halves, path)
    chosen = choose(name)
    for asked, got in ((None, "float32"), ("bfloat16", "bfloat16"), ("float64", "float64")):
        gate = checkpoints.load(tmp_path, backend=chosen, dtype=asked).stack.layers[1].feed_forward.w_gate
        assert str(gate.dtype).endswith(got)
        wanted = halves["model.layers.1.mlp.gate_proj.weight"].T.double()
        np.testing.assert_array_equal(chosen.to_numpy(gate).astype("float64"), wanted)


def test_the_configuration_of_a_model_is_taken_as_it_is():
    same(checkpoints.convert(made("gpt2").state_dict(), made("gpt2").config, backend=backend), converted("gpt2"))


def test_the_configuration_is_read_from_the_folder(tmp_path):
    made("mistral").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"sliding_window": 5}))
    assert checkpoints.load(tmp_path, backend=backend).window == 5
