"""ONNX Runtime's Attention on the processor, one subject for each of its opsets."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import onnx
import onnxruntime
from onnx_models import Array, adapter
from onnxruntime.capi import onnxruntime_pybind11_state as errors

REFUSALS = (
    ValueError,
    errors.Fail,
    errors.InvalidArgument,
    errors.InvalidGraph,
    errors.NotImplemented,
    errors.RuntimeException,
)


def _run(model: onnx.ModelProto, fed: Mapping[str, Array]) -> list[Array]:
    return _session(model.SerializeToString()).run(None, dict(fed))


@cache
def _session(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


opset_23, opset_24, opset_25 = (
    adapter(f"onnxruntime.{opset}", opset, _run, ("float64", "float16"), REFUSALS) for opset in (23, 24, 25)
)
