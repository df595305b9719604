"""Checkpoints of transformers, read by name: the hidden states are those of transformers' own models."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import attnspec
from attnspec import checkpoints
from attnspec.backend import choose
from attnspec.backend import numpy as backend
from attnspec.errors import DTypeError, MissingModelError, OptionError, ShapeError

VOCABULARY, LENGTHS = 31, [7, 2, 5]
# 6 heads of 4 make 24; the head width of Llamas is free, so there the model is 18 wide.
SIZES = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WIDE = SIZES | {"hidden_size": 24, "intermediate_size": 22, "num_hidden_layers": 3, "num_attention_heads": 6}
GROUPED = WIDE | {"hidden_size": 18, "head_dim": 4, "num_key_value_heads": 2, "rms_norm_eps": 0.1}
SHORT_TURNS = {"rope_parameters": {"rope_type": "default", "rope_theta": 30.0}}
CLASSES = {
    "bert": (transformers.BertModel, WIDE | {"layer_norm_eps": 0.1, "max_position_embeddings": 9}),
    "gpt2": (
        transformers.GPT2LMHeadModel,
        SIZES | {"n_embd": 24, "n_layer": 3, "n_head": 6, "n_inner": 22, "n_positions": 9, "layer_norm_epsilon": 0.1},
    ),
    "llama": (transformers.LlamaForCausalLM, GROUPED | SHORT_TURNS),
    "mistral": (transformers.MistralForCausalLM, GROUPED | SHORT_TURNS | {"sliding_window": 3}),
    "qwen2": (transformers.Qwen2ForCausalLM, GROUPED | SHORT_TURNS | {"num_key_value_heads": 3}),
}
VARIANTS = {
    **{family: (family, {}) for family in CLASSES},
    "bert, relu": ("bert", {"hidden_act": "relu"}),
    "bert, tanh": ("bert", {"hidden_act": "gelu_new"}),
    "gpt2, relu": ("gpt2", {"activation_function": "relu"}),
    "gpt2, untied": ("gpt2", {"tie_word_embeddings": False}),
    "llama, biases": ("llama", {"attention_bias": True}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, gelu": ("llama", {"hidden_act": "gelu"}),
    "llama, a window that is not its own": ("llama", {"sliding_window": 3}),
    "llama, no groups": ("llama", {"num_key_value_heads": 6}),
    "mistral, no window": ("mistral", {"sliding_window": None}),
}
CAUSAL = [name for name, (family, _) in VARIANTS.items() if family != "bert"]


def tolerance(name: str) -> float:
    """Of the greatest entry. Llama's norms and angles are float32 whatever the dtype, the others' insides float64."""
    return 2.0**-40 if VARIANTS[name][0] in ("bert", "gpt2") else 2.0**-18


@cache
def made(name: str) -> Any:
    """A random model in float64, with weights of a size at which attention chooses."""
    family, options = VARIANTS[name]
    cls, sizes = CLASSES[family]
    torch.manual_seed(3)
    model = cls(cls.config_class(**(sizes | options))).to(torch.float64).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64) * 0.4)
    return model


def ids() -> Any:
    """Three texts of LENGTHS tokens."""
    drawn = np.random.default_rng(0).integers(3, VOCABULARY, (3, max(LENGTHS)))
    return np.where(np.arange(max(LENGTHS)) < np.asarray(LENGTHS)[:, None], drawn, 0)


def theirs(name: str, **inputs: Any) -> Any:
    """All that transformers' model gives for the texts."""
    tokens = torch.asarray(ids())
    real = torch.arange(tokens.shape[1]) < torch.asarray(LENGTHS)[:, None]
    with torch.no_grad():
        return made(name)(input_ids=tokens, attention_mask=real.int(), output_hidden_states=True, **inputs)


def converted(name: str, **config: Any) -> checkpoints.Model:
    """attnspec's model of the same tensors, with another configuration if one is given."""
    model = made(name)
    return checkpoints.convert(model.state_dict(), model.config.to_dict() | config, backend=backend)


def distance(got: Any, wanted: Any) -> float:
    """Of the rows that mean something, in units of the greatest entry."""
    real = np.arange(max(LENGTHS)) < np.asarray(LENGTHS)[:, None]
    got, wanted = np.asarray(got)[real], np.asarray(wanted)[real]
    assert got.shape == wanted.shape
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


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


def test_the_configuration_of_a_model_is_taken_as_it_is():
    same(checkpoints.convert(made("gpt2").state_dict(), made("gpt2").config, backend=backend), converted("gpt2"))


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


def test_the_configuration_is_read_from_the_folder(tmp_path):
    made("mistral").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"sliding_window": 5}))
    assert checkpoints.load(tmp_path, backend=backend).window == 5


def same(one: checkpoints.Model, other: checkpoints.Model) -> None:
    """The same parameters to the bit, and the same of what is no array."""
    left, right = attnspec.params.flatten(one), attnspec.params.flatten(other)
    assert left.keys() == right.keys()
    for name, x in left.items():
        np.testing.assert_array_equal(x, right[name])
    assert (one.causal, one.tied, one.window, one.rotary) == (other.causal, other.tied, other.window, other.rotary)
