"""ONNX's reference implementation of Attention, one subject for each of its opsets."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import onnx
from onnx.reference import ReferenceEvaluator
from onnx_models import Array, adapter

REFUSALS = (ValueError, TypeError, IndexError, RuntimeError, AssertionError)


def _run(model: onnx.ModelProto, fed: Mapping[str, Array]) -> list[Array]:
    return _evaluator(model.SerializeToString()).run(None, dict(fed))


@cache
def _evaluator(model: bytes) -> ReferenceEvaluator:
    return ReferenceEvaluator(onnx.load_from_string(model))


opset_23, opset_24, opset_25 = (
    adapter(f"onnx.reference.{opset}", opset, _run, ("float64", "float16", "bfloat16"), REFUSALS)
    for opset in (23, 24, 25)
)
