"""Checkpoints that would be misread are refused, with what is wrong by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from checkpoint_models import converted, ids, made
from safetensors.torch import load_file, save_file

from attnspec import checkpoints
from attnspec.backend import choose
from attnspec.backend import numpy as backend
from attnspec.errors import DTypeError, MissingModelError, OptionError, ShapeError


@pytest.mark.parametrize("name", ["gpt2, untied", "llama", "mistral", "qwen2"])
def test_a_model_without_the_head_that_it_needs_is_refused(name):
    config = made(name).config.to_dict()
    tensors = {part: x for part, x in made(name).state_dict().items() if part != "lm_head.weight"}
    with pytest.raises(OptionError, match=r"'lm_head\.weight' is missing, and tie_word_embeddings is false"):
        checkpoints.convert(tensors, config, backend=backend)
    for stored in (made(name).base_model.state_dict(), tensors | {"score.weight": torch.ones(2, 18)}):
        alone = checkpoints.convert(stored, config, backend=backend)
        np.testing.assert_array_equal(alone.hidden(ids()), converted(name).hidden(ids()))
        with pytest.raises(OptionError, match="stored without its head"):
            alone.logits(ids())


@pytest.mark.parametrize(
    ("family", "config", "named"),
    [
        ("bert", {"model_type": "roberta"}, "there are maps for bert, gpt2, llama, mistral, qwen2"),
        ("bert", {"model_type": None}, "model_type=None"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("bert", {"is_decoder": True}, "is_decoder"),
        ("bert", {"hidden_act": "mish"}, "'mish'"),
        ("bert", {"num_hidden_layers": 2}, r"encoder\.layer\.2"),
        ("bert", {"num_hidden_layers": 4}, r"'encoder\.layer\.3\.attention.*' is missing"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 30.0, "factor": 2.0}},
            "rope_type='linear'",
        ),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "type='linear'"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window"),
    ],
    ids=str,
)
def test_what_the_layers_lack_is_refused_by_name(family, config, named):
    with pytest.raises(OptionError, match=named):
        converted(family, **config)


def test_tensors_without_a_place_are_refused():
    tensors = made("llama").state_dict() | {"model.layers.0.self_attn.q_norm.weight": torch.ones(4)}
    with pytest.raises(OptionError, match=r"q_norm\.weight"):
        checkpoints.convert(tensors, made("llama").config.to_dict(), backend=backend)


@pytest.mark.parametrize(
    ("name", "surplus"),
    [
        ("bert", "encoder.embed_scale.weight"),
        ("bert", "scale.weight"),
        ("gpt2", "transformer.scale.weight"),
        ("gpt2", "lm_head.bias"),
        ("llama", "model.embed_scale.weight"),
        ("llama", "lm_head.bias"),
        ("llama, tied", "lm_head.bias"),
    ],
)
def test_tensors_beside_the_layers_without_a_place_are_refused(name, surplus):
    with pytest.raises(OptionError, match=surplus):
        checkpoints.convert(
            made(name).state_dict() | {surplus: torch.ones(3)}, made(name).config.to_dict(), backend=backend
        )


@pytest.mark.parametrize(
    ("family", "config", "said"),
    [
        ("bert", {"hidden_size": 18}, "hidden_size=18 in the configuration, 24 in the tensors"),
        ("bert", {"vocab_size": 30}, "vocab_size=30"),
        ("gpt2", {"n_embd": 18}, "n_embd=18"),
        ("gpt2", {"vocab_size": 30}, "vocab_size=30"),
        ("llama", {"hidden_size": 24}, "hidden_size=24 in the configuration, 18 in the tensors"),
        ("llama", {"head_dim": 8}, "head_dim=8 in the configuration, 4 in the tensors"),
        (
            "llama",
            {"head_dim": None},
            "head_dim=3 in the configuration, 4 in the tensors",
        ),  # 18 / 6, as transformers has it
        (
            "llama",
            {"num_attention_heads": 3, "num_key_value_heads": 1},
            "head_dim=4 in the configuration, 8 in the tensors",
        ),
    ],
    ids=str,
)
def test_sizes_that_the_tensors_contradict_are_refused(family, config, said):
    with pytest.raises(ShapeError, match=said):
        converted(family, **config)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_quantised_weights_are_refused_by_name(dtype, tmp_path):
    made("gpt2").save_pretrained(tmp_path)
    path, name = str(tmp_path / "model.safetensors"), "transformer.h.1.mlp.c_fc.weight"
    tensors = load_file(path)
    save_file(tensors | {name: tensors[name].to(dtype)}, path)
    with pytest.raises(DTypeError, match=rf"'{name}' is stored as [FI]8"):
        checkpoints.load(tmp_path, backend=backend)
    with pytest.raises(DTypeError, match=f"'{name}' is stored as {str(dtype)[6:]}"):
        checkpoints.convert(load_file(path), made("gpt2").config, backend=choose("torch"))


def test_what_is_no_mapping_is_refused():
    model = made("gpt2")
    with pytest.raises(DTypeError, match="tensors is a GPT2LMHeadModel"):
        checkpoints.convert(model, model.config, backend=backend)
    with pytest.raises(DTypeError, match="config is a str"):
        checkpoints.convert(model.state_dict(), "config.json", backend=backend)
    with pytest.raises(OptionError, match=r"dtype=torch\.float32: one of 'float16'.* by its name"):
        checkpoints.convert(model.state_dict(), model.config, backend=backend, dtype=torch.float32)


def test_a_number_that_the_configuration_lacks_is_refused_by_name():
    config = made("gpt2").config.to_dict()
    del config["n_head"]
    with pytest.raises(OptionError, match="'n_head' is missing"):
        checkpoints.convert(made("gpt2").state_dict(), config, backend=backend)


def test_heads_that_do_not_divide_a_projection_are_refused():
    with pytest.raises(ShapeError, match="5 heads do not divide a projection of width 24"):
        converted("bert", num_attention_heads=5)


def test_positions_past_the_last_are_refused():
    model = converted("gpt2")
    assert model.hidden(np.zeros((2, 9), int)).shape == (2, 9, 24)
    assert model.hidden(np.zeros((2, 0), int)).shape == (2, 0, 24)
    with pytest.raises(ShapeError, match="positions 0 to 9 are asked for, the model has 0 to 8"):
        model.hidden(np.zeros((2, 10), int))
    with pytest.raises(ShapeError, match="positions 8 to 9"):
        model.embedded(np.zeros((2, 2), int), start=8)


def test_what_a_model_has_not_is_refused():
    with pytest.raises(OptionError, match="not causal"):
        converted("bert").logits(ids())
    with pytest.raises(OptionError, match="types"):
        converted("gpt2").hidden(ids(), types=ids())


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(missing, tmp_path):
    made("gpt2").save_pretrained(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(MissingModelError, match=missing):
        checkpoints.load(tmp_path, backend=backend)


@pytest.mark.parametrize(
    ("name", "damaged"),
    [
        ("config.json", b'{"model_type": '),
        ("config.json", b"[1, 2]"),
        ("config.json", b"\xff"),
        ("model.safetensors", b""),
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1"),
        ("model.safetensors.index.json", b"{}"),
        ("model.safetensors.index.json", b'{"weight_map": 3}'),
    ],
)
def test_a_damaged_file_is_named(name, damaged, tmp_path):
    made("gpt2").save_pretrained(tmp_path)
    (tmp_path / name).write_bytes(damaged)
    with pytest.raises(MissingModelError, match=f"{name} is damaged"):
        checkpoints.load(tmp_path, backend=backend)


def test_a_file_that_ends_too_early_is_named(tmp_path):
    made("gpt2").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(MissingModelError, match=r"model\.safetensors is damaged.*Fetch or save it again"):
        checkpoints.load(tmp_path, backend=backend)
