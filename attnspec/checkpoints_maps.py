"""Which tensor of a published checkpoint is which parameter, one function for each family of models.

Each takes the tensors and the numbers of the configuration, and gives the fields of `checkpoints.Model`. A linear map
of PyTorch is stored as (out, in), one of GPT-2's as (in, out); heads lie one after another along the rows of either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from ._compat import FLOATING, Array, dtype_name, namespace
from .backend import Backend
from .errors import DTypeError, OptionError, ShapeError
from .host import host_of
from .params import (
    Activation,
    FeedForwardParams,
    LayerParams,
    MultiHeadParams,
    NormKind,
    NormParams,
    StackParams,
)
from .rotary import Rotary

# What the families' files hold beside weights, by the end of its name.
_BUFFERS = ("position_ids", "token_type_ids", ".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq")

_ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "silu": "silu",
    "swish": "silu",
}  # fmt: skip


class Config(dict[str, Any]):
    """The numbers of a configuration; one that is asked for and not there is refused by its name."""

    def __missing__(self, name: str) -> Any:
        msg = f"{name!r} is missing in the configuration; there are {', '.join(sorted(self))}."
        raise OptionError(msg)


class Tensors:
    """The tensors of a checkpoint as arrays of a backend, in attnspec's layouts, by the names that they are stored by.

    Parameters
    ----------
    names, read
        What there is, and `read(name)`, an array that `backend.asarray` takes.
    dtype, device
        Of the arrays; None is as stored, and the backend's own.
    """

    def __init__(
        self, names: Iterable[str], read: Callable[[str], Any], backend: Backend, dtype: str | None, device: Any
    ) -> None:
        self._names, self._read, self._backend = frozenset(names), read, backend
        self._dtype, self._device = dtype, device
        self._used: set[str] = set()

    def root(self, prefix: str, first: str) -> str:
        """`prefix` where the model's first tensor lies below it, as in models with a head for a task; else ""."""
        return prefix if prefix + first in self._names else ""

    def get(self, name: str) -> Array | None:
        """The tensor, None if there is none."""
        if name not in self._names:
            return None
        self._used.add(name)
        stored = self._read(name)
        if dtype_name(stored) not in FLOATING:
            raise quantised(name, dtype_name(stored))
        return self._backend.asarray(stored, dtype=self._dtype, device=self._device)

    def __getitem__(self, name: str) -> Array:
        found = self.get(name)
        if found is None:
            msg = f"the tensor {name!r} is missing; there are {len(self._names)}: {_listed(self._names)}."
            raise OptionError(msg)
        return found

    def affine(self, name: str, *, stored: Literal["out_in", "in_out"]) -> tuple[Array, Array | None]:
        """A linear map: its weight (in, out), and its bias (out,) if it has one."""
        weight = self[f"{name}.weight"]
        return weight.T if stored == "out_in" else weight, self.get(f"{name}.bias")

    def norm(self, name: str, kind: NormKind, eps: float) -> NormParams:
        """A normalisation; the first published BERT calls its weight gamma and its bias beta."""
        old = kind == "layer" and f"{name}.gamma" in self._names
        gamma, beta = ("gamma", "beta") if old else ("weight", "bias")
        return NormParams(self[f"{name}.{gamma}"], None if kind == "rms" else self.get(f"{name}.{beta}"), kind, eps)

    def into_heads(self, weight: Array, bias: Array | None, heads: int) -> tuple[Array, Array | None]:
        """(in, H * D) and (H * D,) as (in, H, D) and (H, D)."""
        rows, width = weight.shape
        if heads < 1 or width % heads:
            msg = f"{heads} heads do not divide a projection of width {width}. Does the configuration belong to it?"
            raise ShapeError(msg)
        reshape = self._backend.xp.reshape
        shape = (heads, width // heads)
        return reshape(weight, (rows, *shape)), None if bias is None else reshape(bias, shape)

    def out_of_heads(self, weight: Array, heads: int) -> Array:
        """(H * E, out) as (H, E, out)."""
        width, out = weight.shape
        return self._backend.xp.reshape(weight, (heads, width // heads, out))

    def head(self, root: str, tokens: Array, *, tied: bool) -> dict[str, Any]:
        """`lm_head`, whose rows are those of the tokens where the configuration ties them and the file agrees.

        The model below a head for another task, and one that is stored alone, may have none.
        """
        weight = self.get("lm_head.weight")
        if weight is None and not tied and root and all(name.startswith(root) for name in self._names):
            msg = (
                "the tensor 'lm_head.weight' is missing, and tie_word_embeddings is false in the configuration. "
                "Set it to true if the rows of the tokens are the head."
            )
            raise OptionError(msg)
        tied = tied and (weight is None or _equal(weight, tokens))
        return {"head": None if tied or weight is None else weight.T, "tied": tied}

    def refuse_unread(self, *parts: str, but: str | tuple[()] = ()) -> None:
        """Raise where a tensor below the parts has no place: the model computes something else with it."""
        unread = {n for n in self._names - self._used if n.startswith(parts) and not n.endswith(_BUFFERS)}
        unread = {n for n in unread if not n.startswith(but)}
        if unread:
            msg = (
                f"{len(unread)} tensors have no place in the model that the configuration describes: "
                f"{_listed(unread)}. Is it of this family, and has it as many layers?"
            )
            raise OptionError(msg)


def quantised(name: str, dtype: str) -> DTypeError:
    """The refusal of a tensor that is stored in numbers of another kind."""
    msg = f"the tensor {name!r} is stored as {dtype}; floating numbers of 16 bits or more are needed. Dequantise it."
    return DTypeError(msg)


def _equal(one: Array, other: Array) -> bool:
    """Whether two arrays have the same entries, as far as they may be looked at."""
    if one.shape != other.shape:
        return False
    return not host_of(one).concrete(one, other) or bool(namespace(one).all(one == other))


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:5]) + (", ..." if len(ordered) > 5 else "")


def bert(tensors: Tensors, config: Config) -> dict[str, Any]:
    """Post-norm layers on words, positions and types that are learned, added and normalised."""
    expect(config, position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    H, eps = config["num_attention_heads"], config["layer_norm_eps"]
    root = tensors.root("bert.", "embeddings.word_embeddings.weight")

    def attention(name: str) -> MultiHeadParams:
        (wq, bq), (wk, bk), (wv, bv) = (
            tensors.into_heads(*tensors.affine(f"{name}.self.{part}", stored="out_in"), H)
            for part in ("query", "key", "value")
        )
        wo, bo = tensors.affine(f"{name}.output.dense", stored="out_in")
        return MultiHeadParams(wq, wk, wv, tensors.out_of_heads(wo, H), bq, bk, bv, bo)

    def feed_forward(name: str) -> FeedForwardParams:
        w_in, b_in = tensors.affine(f"{name}.intermediate.dense", stored="out_in")
        w_out, b_out = tensors.affine(f"{name}.output.dense", stored="out_in")
        return FeedForwardParams(w_in, w_out, b_in, b_out, activation=_activation(config["hidden_act"]))

    def layer(name: str) -> LayerParams:
        return LayerParams(
            attention(f"{name}.attention"),
            feed_forward(name),
            tensors.norm(f"{name}.attention.output.LayerNorm", "layer", eps),
            tensors.norm(f"{name}.output.LayerNorm", "layer", eps),
            order="post",
        )

    embeddings = f"{root}embeddings"
    tokens = tensors[f"{embeddings}.word_embeddings.weight"]
    sized(config, vocab_size=tokens.shape[0], hidden_size=tokens.shape[1])
    model = {
        "tokens": tokens,
        "positions": tensors[f"{embeddings}.position_embeddings.weight"],
        "types": tensors[f"{embeddings}.token_type_embeddings.weight"],
        "norm": tensors.norm(f"{embeddings}.LayerNorm", "layer", eps),
        "stack": StackParams(tuple(layer(f"{root}encoder.layer.{n}") for n in range(config["num_hidden_layers"]))),
    }
    tensors.refuse_unread(root, but=f"{root}pooler.")
    return model


def gpt2(tensors: Tensors, config: Config) -> dict[str, Any]:
    """Pre-norm causal layers on learned positions; queries, keys and values are one map, beside one another."""
    expect(config, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    H, eps = config["n_head"], config["layer_norm_epsilon"]
    root = tensors.root("transformer.", "wte.weight")

    def attention(name: str) -> MultiHeadParams:
        weight, bias = tensors.affine(f"{name}.c_attn", stored="in_out")
        M = weight.shape[0]
        (wq, bq), (wk, bk), (wv, bv) = (
            tensors.into_heads(weight[:, part], None if bias is None else bias[part], H)
            for part in (slice(n * M, (n + 1) * M) for n in range(3))
        )
        wo, bo = tensors.affine(f"{name}.c_proj", stored="in_out")
        return MultiHeadParams(wq, wk, wv, tensors.out_of_heads(wo, H), bq, bk, bv, bo)

    def feed_forward(name: str) -> FeedForwardParams:
        w_in, b_in = tensors.affine(f"{name}.c_fc", stored="in_out")
        w_out, b_out = tensors.affine(f"{name}.c_proj", stored="in_out")
        return FeedForwardParams(w_in, w_out, b_in, b_out, activation=_activation(config["activation_function"]))

    def layer(name: str) -> LayerParams:
        first, second = (tensors.norm(f"{name}.{part}", "layer", eps) for part in ("ln_1", "ln_2"))
        return LayerParams(attention(f"{name}.attn"), feed_forward(f"{name}.mlp"), first, second, order="pre")

    tokens = tensors[f"{root}wte.weight"]
    sized(config, vocab_size=tokens.shape[0], n_embd=tokens.shape[1])
    model = {
        "tokens": tokens,
        "positions": tensors[f"{root}wpe.weight"],
        "stack": StackParams(
            tuple(layer(f"{root}h.{n}") for n in range(config["n_layer"])), tensors.norm(f"{root}ln_f", "layer", eps)
        ),
        "causal": True,
        **tensors.head(root, tokens, tied=config.get("tie_word_embeddings", True)),
    }
    tensors.refuse_unread(root, "lm_head.")
    return model


def llama(tensors: Tensors, config: Config, *, window: int | None = None) -> dict[str, Any]:
    """Pre-norm causal layers with rms norms, rotary positions, grouped heads and a gated feed-forward network."""
    H, eps = config["num_attention_heads"], config["rms_norm_eps"]
    G = config.get("num_key_value_heads") or H
    activation = _activation(config["hidden_act"])
    root = tensors.root("model.", "embed_tokens.weight")
    tokens = tensors[f"{root}embed_tokens.weight"]
    V, M = tokens.shape
    sized(config, vocab_size=V, hidden_size=M)

    def attention(name: str) -> MultiHeadParams:
        (wq, bq), (wk, bk), (wv, bv) = (
            tensors.into_heads(*tensors.affine(f"{name}.{part}_proj", stored="out_in"), heads)
            for part, heads in (("q", H), ("k", G), ("v", G))
        )
        sized({"head_dim": config.get("head_dim") or M // H}, head_dim=wq.shape[-1])
        wo, bo = tensors.affine(f"{name}.o_proj", stored="out_in")
        return MultiHeadParams(wq, wk, wv, tensors.out_of_heads(wo, H), bq, bk, bv, bo)

    def feed_forward(name: str) -> FeedForwardParams:
        w_in, b_in = tensors.affine(f"{name}.up_proj", stored="out_in")
        w_out, b_out = tensors.affine(f"{name}.down_proj", stored="out_in")
        return FeedForwardParams(w_in, w_out, b_in, b_out, tensors[f"{name}.gate_proj.weight"].T, activation)

    def layer(name: str) -> LayerParams:
        first, second = (tensors.norm(f"{name}.{part}_layernorm", "rms", eps) for part in ("input", "post_attention"))
        return LayerParams(attention(f"{name}.self_attn"), feed_forward(f"{name}.mlp"), first, second, order="pre")

    model = {
        "tokens": tokens,
        "stack": StackParams(
            tuple(layer(f"{root}layers.{n}") for n in range(config["num_hidden_layers"])),
            tensors.norm(f"{root}norm", "rms", eps),
        ),
        "rotary": _rotary(config),
        "causal": True,
        "window": window,
        **tensors.head(root, tokens, tied=config.get("tie_word_embeddings", False)),
    }
    tensors.refuse_unread(root, "lm_head.")
    return model


def mistral(tensors: Tensors, config: Config) -> dict[str, Any]:
    """Llama's names and layers, with a window."""
    return llama(tensors, config, window=config["sliding_window"])


def qwen2(tensors: Tensors, config: Config) -> dict[str, Any]:
    """Llama's names and layers, with biases; its window, which the first layers lack, is off unless a flag is set."""
    expect(config, use_sliding_window=False)
    return llama(tensors, config)


FAMILIES: dict[str, Callable[[Tensors, Config], dict[str, Any]]] = {
    "bert": bert, "gpt2": gpt2, "llama": llama, "mistral": mistral, "qwen2": qwen2,
}  # fmt: skip


def expect(config: Mapping[str, Any], **values: Any) -> None:
    """Refuse a configuration in which one of the names is there with another value."""
    for name, value in values.items():
        if config.get(name, value) != value:
            msg = f"{name}={config[name]!r} in the configuration: {value!r} is what the map of this family has."
            raise OptionError(msg)


def sized(config: Mapping[str, Any], **lengths: int) -> None:
    """Refuse tensors of another size than the configuration says, where it says one."""
    for name, length in lengths.items():
        if config.get(name) not in (None, length):
            msg = f"{name}={config[name]} in the configuration, {length} in the tensors. Do they belong together?"
            raise ShapeError(msg)


def _activation(name: str) -> Activation:
    if name not in _ACTIVATIONS:
        msg = f"the activation {name!r} in the configuration: one of {', '.join(_ACTIVATIONS)} is needed."
        raise OptionError(msg)
    return _ACTIVATIONS[name]


def _rotary(config: Config) -> Rotary:
    """transformers 5 keeps the numbers in `rope_parameters`, before it in `rope_theta` and `rope_scaling`."""
    rope = {
        "rope_theta": config.get("rope_theta", 10000.0),
        **(config.get("rope_scaling") or {}),
        **(config.get("rope_parameters") or {}),
    }
    expect(rope, rope_type="default", type="default", partial_rotary_factor=1.0)
    return Rotary(base=float(rope["rope_theta"]))
