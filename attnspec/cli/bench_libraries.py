"""The attention of libraries: each is told masks in the way that it has for them, on arrays in its own layout."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from ..backend import Backend, choose
from .bench_problems import Problem
from .bench_subjects import BSHD, Prepared, Subject, UnsuitedError, prepared
from .bench_threads import allowed

__all__ = ["LIBRARIES", "Library", "library"]

KERAS_BACKEND = "KERAS_BACKEND"
OPSET = 23


class Library(NamedTuple):
    """What has to be installed, the backend whose arrays it takes, and its call."""

    modules: tuple[str, ...]
    base: Callable[[], str]
    prepare: Callable[[Problem], Prepared]
    matrices: int


def library(name: str, beside: str) -> Subject:
    """The attention of one of `LIBRARIES`."""
    found = LIBRARIES[name]

    def prepare(problem: Problem) -> Prepared:
        if problem.case.what == "dropout":
            raise UnsuitedError("it draws no mask alone")
        return found.prepare(problem)

    return Subject(name, beside, found.modules[0], prepare, found.matrices)


def _sdpa(problem: Problem) -> Prepared:
    attention = import_module("torch").nn.functional.scaled_dot_product_attention
    options = {"is_causal": problem.causal, "enable_gqa": problem.size.G < problem.size.H}
    mask = _mask(problem)

    def attend(q: Any, k: Any, v: Any, *masks: Any) -> Any:
        return attention(q, k, v, attn_mask=masks[0] if masks else None, **options)

    return prepared(choose("torch"), attend, problem, [] if mask is None else [mask])


def _jax(problem: Problem) -> Prepared:
    attention = import_module("jax").nn.dot_product_attention
    given: dict[str, Any] = {"mask": problem.pairs, "bias": problem.bias(), "key_value_seq_lengths": problem.lengths}
    given = {name: x for name, x in given.items() if x is not None}
    if "mask" in given:
        given["mask"] = given["mask"][None, None]
    if "key_value_seq_lengths" in given:
        given["key_value_seq_lengths"] = given["key_value_seq_lengths"].astype("int32")

    def attend(q: Any, k: Any, v: Any, *arrays: Any) -> Any:
        return attention(q, k, v, is_causal=problem.causal, **dict(zip(given, arrays, strict=True)))

    return prepared(choose("jax"), attend, problem, list(given.values()), layout=BSHD, compiled=True)


def _keras(problem: Problem) -> Prepared:
    if problem.case.what == "gradients":
        raise UnsuitedError("its gradients are those of its backend")
    backend = _keras_arrays()
    attention = import_module("keras").ops.dot_product_attention
    given = {"mask": None if problem.causal else problem.visible(), "bias": problem.bias()}
    given = {name: x for name, x in given.items() if x is not None}

    def attend(q: Any, k: Any, v: Any, *arrays: Any) -> Any:
        return attention(q, k, v, is_causal=problem.causal, **dict(zip(given, arrays, strict=True)))

    compiled = backend.name == "jax"
    return prepared(backend, attend, problem, list(given.values()), layout=BSHD, compiled=compiled)


def _keras_base() -> str:
    """The backend that Keras has or will get: the first of these that is installed, unless its variable says one."""
    if KERAS_BACKEND not in os.environ:
        from importlib.util import find_spec

        os.environ[KERAS_BACKEND] = next((name for name in ("torch", "jax") if find_spec(name)), "numpy")
    return os.environ[KERAS_BACKEND]


def _keras_arrays() -> Backend:
    return choose(_keras_base())


def _onnxruntime(problem: Problem) -> Prepared:
    """A model of one Attention, in a session with as many threads as all have."""
    if problem.case.what == "gradients":
        raise UnsuitedError("it computes no gradients")
    ort = import_module("onnxruntime")
    fed = {"Q": problem.q, "K": problem.k, "V": problem.v}
    mask = _mask(problem)
    if mask is not None:
        fed["attn_mask"] = mask
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = allowed(), 1
    session = ort.InferenceSession(_model(problem, fed), options, providers=["CPUExecutionProvider"])
    return Prepared(lambda: session.run(None, fed), list)


def _model(problem: Problem, fed: dict[str, Any]) -> bytes:
    helper = import_module("onnx").helper
    inputs = [helper.make_tensor_value_info(name, _element(x), x.shape) for name, x in fed.items()]
    out = helper.make_tensor_value_info("Y", _element(problem.q), None)
    node = helper.make_node("Attention", list(fed), ["Y"], is_causal=int(problem.causal))
    graph = helper.make_graph([node], "attention", inputs, [out])
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
    return model.SerializeToString()  # type: ignore[no-any-return]


def _element(x: Any) -> int:
    return import_module("onnx").helper.np_dtype_to_tensor_dtype(x.dtype)  # type: ignore[no-any-return]


def _mask(problem: Problem) -> Any:
    """For those who have one argument for both: what is added, or else what is visible; causality has its own."""
    bias = problem.bias()
    return bias if bias is not None else None if problem.causal else problem.visible()


LIBRARIES = {
    "sdpa": Library(("torch",), lambda: "torch", _sdpa, 0),
    "jax": Library(("jax",), lambda: "jax", _jax, 3),
    "keras": Library(("keras",), _keras_base, _keras, 3),
    "onnxruntime": Library(("onnxruntime", "onnx"), lambda: "numpy", _onnxruntime, 2),
}
