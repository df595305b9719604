"""ONNX's node tests, asked of attnspec on every backend, and ONNX models run with attnspec's operators."""

from __future__ import annotations

import inspect
from collections import Counter

import numpy as np
import onnx_nodes
import pytest
from onnx import TensorProto, defs, helper
from onnx.backend.test.case.node import collect_testcases
from onnx.reference import ReferenceEvaluator

from attnspec.errors import OptionError
from attnspec.integrations import onnx as adapter

BACKENDS = ("numpy", "torch", "jax", "strict")
COUNTS = {
    "Attention": 93, "LayerNormalization": 19, "RMSNormalization": 19, "RotaryEmbedding": 8, "Softmax": 7,
    "Dropout": 12, "FlexAttention": 6,
}  # fmt: skip


def test_no_case_has_vanished():
    assert Counter(node.operator for node in onnx_nodes.nodes()) == COUNTS
    opsets = Counter(node.opset for node in onnx_nodes.nodes() if node.operator == "Attention")
    assert opsets == {23: 69, 24: 13, 25: 11}
    loose = [node for node in onnx_nodes.nodes() if node.tolerance is onnx_nodes.BFLOAT16]
    assert Counter(node.operator for node in loose) == {"Attention": 5}


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_what_a_backend_has_no_dtype_for_is_left_out(backend):
    reasons = Counter((node.operator, reason) for node in onnx_nodes.nodes() if (reason := node.lacks(backend)))
    left_out = {
        ("Attention", "strict has no float16"): 6,
        ("Attention", "strict has no bfloat16"): 5,
        ("FlexAttention", "strict has no float16"): 1,
    }
    assert reasons == (left_out if backend == "strict" else {})
    assert len(onnx_nodes.cases(backend)) == COUNTS["Attention"] - (11 if backend == "strict" else 0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("node", onnx_nodes.nodes(), ids=str)
def test_a_node_has_the_outputs_that_onnx_says(node, backend):
    if reason := node.lacks(backend):
        pytest.skip(reason)
    onnx_nodes.check(node, backend)


def _scaled(q, k, v, **options):
    return 1.01 * RIGHT(q, k, v, **options)


def _without(name):
    return lambda q, k, v, **options: RIGHT(q, k, v, **options | {name: None})


def _turned_heads(q, k, v, **options):
    """Query head h with key head h % G."""
    groups = q.shape[-3] // k.shape[-3]
    k, v = (np.concatenate([x] * groups, axis=-3) for x in (k, v))
    return RIGHT(q, k, v, **options)


RIGHT = adapter.attention


@pytest.mark.parametrize(
    ("wrong", "least"),
    [
        (_scaled, 85),
        (_without("mask"), 35),
        (_without("bias"), 25),
        (_without("softcap"), 8),
        (_without("scale"), 6),
        (_turned_heads, 15),
    ],
    ids=["output scaled", "mask ignored", "bias ignored", "softcap ignored", "scale ignored", "heads tiled"],
)
def test_a_wrong_attention_is_noticed(monkeypatch, wrong, least):
    monkeypatch.setattr(adapter, "attention", wrong)
    assert sum(case.fails() for case in onnx_nodes.cases()) >= least


@pytest.mark.parametrize(
    ("operator", "domain", "function"),
    [
        ("Attention", "", adapter.attention_op),
        ("FlexAttention", "ai.onnx.preview", adapter.flex_attention_op),
        ("LayerNormalization", "", adapter.layer_normalization_op),
        ("RMSNormalization", "", adapter.rms_normalization_op),
        ("RotaryEmbedding", "", adapter.rotary_embedding_op),
    ],
)
def test_inputs_and_attributes_have_the_names_that_onnx_gives_them(operator, domain, function):
    schema = defs.get_schema(operator, domain=domain)
    parameters = inspect.signature(function).parameters.values()
    assert [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY] == [x.name for x in schema.inputs]
    assert {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} == set(schema.attributes)


B, HEADS, GROUPS, N, D, WIDTH = 2, 6, 3, 5, 4, 24
REAL = np.asarray([5, 3])


def _layer(opset, hidden):
    """A layer of a model in float32: x + Attention(RMSNormalization(x) W), padded keys hidden as the opset can."""
    rng = np.random.default_rng(opset)
    weights = {
        "gain": rng.uniform(0.5, 1.5, WIDTH),
        "wq": rng.normal(size=(WIDTH, HEADS * D)) / 4,
        "wk": rng.normal(size=(WIDTH, GROUPS * D)) / 4,
        "wv": rng.normal(size=(WIDTH, GROUPS * D)) / 4,
    }
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [B, N, WIDTH])]
    if hidden == "attn_mask":
        inputs.append(helper.make_tensor_value_info("attn_mask", TensorProto.BOOL, [B, 1, N, N]))
        extra = ["attn_mask"]
    else:
        inputs.append(helper.make_tensor_value_info("nonpad_kv_seqlen", TensorProto.INT64, [B]))
        extra = ["", "", "", "nonpad_kv_seqlen"]
    rule = {23: {}, 24: {"is_causal": 1}, 25: {"left_window_size": 2, "right_window_size": 1}}[opset]
    nodes = [
        helper.make_node("RMSNormalization", ["x", "gain"], ["normed"]),
        *(helper.make_node("MatMul", ["normed", f"w{n}"], [n]) for n in "qkv"),
        helper.make_node(
            "Attention", ["q", "k", "v", *extra], ["heads"], q_num_heads=HEADS, kv_num_heads=GROUPS, **rule
        ),
        helper.make_node("Add", ["x", "heads"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "layer", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [B, N, WIDTH])],
        [helper.make_tensor(n, TensorProto.FLOAT, w.shape, w.astype(np.float32).ravel()) for n, w in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def _feeds(hidden, padding):
    x = np.random.default_rng(7).normal(size=(B, N, WIDTH)).astype(np.float32)
    real = np.arange(N) < REAL[:, None]
    x[~real] = padding
    if hidden == "nonpad_kv_seqlen":
        return {"x": x, hidden: REAL}, real
    mask = np.broadcast_to(real[:, None, None, :], (B, 1, N, N)).copy()
    mask[0, 0, 1] = False
    return {"x": x, hidden: mask}, real


def _ran(model, feeds, **options):
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(model, **options).run(None, feeds)[0]


@pytest.mark.parametrize(
    ("opset", "hidden"), [(23, "attn_mask"), (24, "nonpad_kv_seqlen"), (25, "nonpad_kv_seqlen"), (25, "attn_mask")]
)
def test_a_model_runs_with_attention_by_attnspec_and_what_is_padding_cannot_be_seen(opset, hidden):
    model, ours = _layer(opset, hidden), {"new_ops": adapter.reference_ops()}
    feeds, real = _feeds(hidden, 0.0)
    clean = _ran(model, feeds, **ours)
    np.testing.assert_allclose(clean, _ran(model, feeds), rtol=1e-4, atol=1e-5)
    poisoned = _feeds(hidden, np.nan)[0]
    np.testing.assert_array_equal(_ran(model, poisoned, **ours)[real], clean[real])
    assert np.isnan(_ran(model, poisoned)[real]).any(), "ONNX's own evaluator no longer shows NaN in padding"
    # Nothing to see: by the mask, or from before the first key, where the last of fewer keys than queries puts it.
    empty = (0, 1) if hidden == "attn_mask" else (1, 0)
    np.testing.assert_array_equal(clean[empty], feeds["x"][empty])


def _model_of(operator, attributes, outputs=("y",)):
    names = ["q", "k", "v"]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in (*names, *filter(None, outputs))]
    node = helper.make_node(operator, names, outputs, **attributes)
    graph = helper.make_graph([node], "one", values[:3], values[3:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)])


def _q_k_v():
    rng = np.random.default_rng(3)
    return {n: rng.normal(size=(2, 3, length, 4)).astype(np.float32) for n, length in (("q", 5), ("k", 7), ("v", 7))}


def test_the_evaluator_gets_the_outputs_that_a_node_lists_and_no_others(monkeypatch):
    asked = []
    scores = adapter.attention_with_lse
    monkeypatch.setattr(adapter, "attention_with_lse", lambda *a, **o: asked.append(a) or scores(*a, **o))
    feeds = _q_k_v()
    alone = _ran(_model_of("Attention", {}), feeds, new_ops=adapter.reference_ops())
    assert not asked
    four = _model_of("Attention", {}, ("y", "", "", "s"))
    y, s = ReferenceEvaluator(four, new_ops=adapter.reference_ops()).run(None, feeds)
    np.testing.assert_array_equal(y, alone)
    np.testing.assert_allclose(s, feeds["q"] @ feeds["k"].swapaxes(-1, -2) / 2, rtol=1e-5, atol=1e-6)


def test_the_evaluator_refuses_an_attribute_that_the_operator_does_not_have():
    model = _model_of("Attention", {"sliding_window": 3})
    with pytest.raises(OptionError, match=r"no attribute 'sliding_window'; it has is_causal, .*left_window_size"):
        _ran(model, _q_k_v(), new_ops=adapter.reference_ops())


FLEXIBLE = [
    test for test in collect_testcases(None)
    if len(test.model.graph.node) == 1
    and test.model.graph.node[0].op_type == "FlexAttention"
    and test.model.graph.node[0].attribute
    and test.model.graph.node[0].attribute[0].HasField("g")
]  # fmt: skip


@pytest.mark.parametrize("test", FLEXIBLE, ids=lambda test: test.name)
def test_flex_attention_with_a_sub_graph_for_the_scores_runs_one_for_the_weights_is_refused(test):
    ((inputs, wanted),) = test.data_sets
    evaluator = ReferenceEvaluator(test.model, new_ops=adapter.reference_ops())
    feeds = dict(zip(evaluator.input_names, inputs, strict=True))
    if test.model.graph.node[0].attribute[0].name == "prob_mod":
        with pytest.raises(OptionError, match="prob_mod is given"):
            evaluator.run(None, feeds)
        return
    np.testing.assert_allclose(evaluator.run(None, feeds)[0], wanted[0], rtol=test.rtol, atol=test.atol)
