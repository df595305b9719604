"""How each of ONNX's operators is asked of attnspec: by the adapter, or by the component that it is a case of."""

from __future__ import annotations

from importlib import import_module
from typing import Any
from unittest import mock

from attnspec import random
from attnspec._compat import namespace
from attnspec.dropout import dropout
from attnspec.integrations import onnx


def attention(node: Any, inputs: list[Any]) -> tuple[Any, ...]:
    """`attention_op`; ONNX counts from mode 0 wherever the fourth output is there."""
    mode = {"qk_matmul_output_mode": node.attributes.get("qk_matmul_output_mode", 0) if 3 in node.outputs else None}
    return onnx.attention_op(*inputs, **(node.attributes | mode))


def softmax(node: Any, inputs: list[Any]) -> tuple[Any, ...]:
    """Softmax is the weights of attention whose scores are its bias alone: queries and keys have no width."""
    xp = namespace(inputs[0])
    axis = node.attributes.get("axis", -1)
    x = xp.moveaxis(inputs[0], axis, -1)
    weights = onnx.attention_weights(x[..., :0], xp.matrix_transpose(x)[..., :0], bias=x)
    return (xp.moveaxis(weights, -1, axis),)


def dropped(node: Any, inputs: list[Any]) -> tuple[Any, ...]:
    """`dropout` with ONNX's draw in place of attnspec's; without a training flag, not to train is the rate 0."""
    data, ratio, training = (*inputs, None, None)[:3]
    rate = 0.0
    if training is not None and bool(training):
        rate = 0.5 if ratio is None else float(ratio)
    rng = random.key(node.attributes.get("seed", 0))
    if rate == 0.0:
        return dropout(data, rate, rng), random.bernoulli(rng, 1 - rate, data.shape, like=data)
    # Where the test has no mask, its output shows it: none of the data is 0.
    keep = namespace(data).asarray(node.outputs[1] if 1 in node.outputs else node.outputs[0] != 0)
    with mock.patch.object(import_module("attnspec.dropout"), "bernoulli", return_value=keep):
        return dropout(data, rate, rng), keep


OPERATORS = {
    "Attention": attention,
    "Dropout": dropped,
    "FlexAttention": lambda node, inputs: (onnx.flex_attention_op(*inputs, **node.attributes),),
    "LayerNormalization": lambda node, inputs: onnx.layer_normalization_op(*inputs, **node.attributes),
    "RMSNormalization": lambda node, inputs: (onnx.rms_normalization_op(*inputs, **node.attributes),),
    "RotaryEmbedding": lambda node, inputs: (onnx.rotary_embedding_op(*inputs, **node.attributes),),
    "Softmax": softmax,
}
