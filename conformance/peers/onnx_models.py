"""ONNX's Attention as models of one node, and the adapter of whatever runs them.

Its causality counts from the past: the first `n` keys of a call with causal(n) are the past_key, and the window of
opset 25 counts from there too. Lengths of padding are nonpad_kv_seqlen from opset 24 on, which moves causality to the
last of them: beside one another, one of the two is a mask of pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import onnx
from attnspec_conformance import masks
from attnspec_conformance.adapted import Adapted
from attnspec_conformance.adapters import Adapter, Pairs
from attnspec_conformance.operands import Operands
from attnspec_conformance.trials import Call
from numpy.typing import NDArray
from onnx import helper

Array: TypeAlias = NDArray[Any]
Run: TypeAlias = Callable[[onnx.ModelProto, Mapping[str, Array]], list[Array]]

AFTER_SOFTMAX = 3  # the qk_matmul_output_mode that gives the weights


def adapter(
    name: str, opset: int, run: Run, capabilities: tuple[str, ...], refusals: tuple[type[Exception], ...]
) -> Adapted:
    """The subject that asks `run` for the answers of one-node models."""

    def asked(output: str) -> Callable[..., Array]:
        return lambda q, k, v, **named: run(*_put(opset, output, q, k, v, **named))[0]

    return _InRules(
        Adapter(
            name=name,
            kernel=asked("Y"),
            backend="numpy",
            capabilities=capabilities,
            grouped=True,
            mask=Pairs("attends"),
            arguments={"bias": "bias", "scale": "scale", "softcap": "softcap"},
            weights=asked("qk_matmul_output"),
            limits=_limits,
            refusals=refusals,
        ),
        opset,
    )


def _limits(call: Call) -> str | None:
    if call.bias_dtype not in (None, call.dtype):
        return "a float mask has the dtype of q"
    if call.scale is not None and call.scale < 0:
        return "its formula has the square root of the scale"
    return None


class _InRules(Adapted):
    """Says the rules of a mask in arguments of their own, and what is left of it as pairs, in the shape that it has."""

    def __init__(self, adapter: Adapter, opset: int) -> None:
        super().__init__(adapter)
        self.opset = opset

    def _operands(self, call: Call) -> Operands:
        named, rest = _said(call, self.opset)
        operands = super()._operands(call.but(mask=rest))
        operands.named |= {name: lambda arrays, value=value: value for name, value in named.items()}
        if call.q.ndim == 4:
            operands.named |= {name: operands._array(*given) for name, given in _as_given(call, rest).items()}
        return operands


def _as_given(call: Call, mask: masks.Mask | None) -> dict[str, tuple[Array, str]]:
    """Masks and biases that need not be broadcast beforehand, and their dtypes."""
    dense = {"attends": (mask.array, "bool")} if isinstance(mask, masks.Dense) else {}
    return dense if call.bias is None else dense | {"bias": (call.bias, call.dtype)}


def _said(call: Call, opset: int) -> tuple[dict[str, Any], masks.Mask | None]:
    """The arguments that say parts of the call's mask, and the mask of the other parts."""
    named: dict[str, Any] = {}
    rest: masks.Mask | None = None
    for part in _parts(call):
        more = _words(part, call, opset)
        if more is None or more.keys() & named.keys() or {"lengths", "past"} <= more.keys() | named.keys():
            rest = part if rest is None else masks.Both(rest, part)
        else:
            named |= more
    return named, rest


def _parts(call: Call) -> list[masks.Mask]:
    """The masks that the call's is the intersection of."""
    parts, left = [], [call.mask]
    while left:
        part = left.pop()
        if isinstance(part, masks.Both):
            left += [part.other, part.one]
        elif part is not None:
            parts.append(part)
    return parts


def _words(mask: masks.Mask, call: Call, opset: int) -> dict[str, Any] | None:
    """The arguments that say a mask, None where it has to be said as pairs."""
    Q, K = call.q.shape[-2], call.k.shape[-2]
    if call.q_positions is not None or call.k_positions is not None:
        return None
    if isinstance(mask, masks.Padding):
        lead = np.broadcast_shapes(*(x.shape[:-3] for x in (call.q, call.k, call.v)))
        lengths = np.clip(np.broadcast_to(mask.lengths, lead).reshape(-1), 0, K).astype(np.int64)
        return {"lengths": lengths} if opset >= 24 else None
    if not isinstance(mask, masks.Causal | masks.Window) or np.ndim(mask.offset):
        return None
    past = int(mask.offset) + (K - Q if mask.align == "end" else 0)
    if not 0 <= past < K:
        return None
    if isinstance(mask, masks.Causal):
        return {"past": past, "is_causal": 1}
    if opset < 25:
        return None
    sides = {"left_window_size": mask.left, "right_window_size": mask.right}
    return {"past": past} | {name: -1 if n is None else n for name, n in sides.items()}


def _put(
    opset: int,
    output: str,
    q: Array,
    k: Array,
    v: Array,
    *,
    attends: Array | None = None,
    bias: Array | None = None,
    past: int = 0,
    lengths: Array | None = None,
    **attributes: float,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model of a call and what it is fed."""
    mask = attends if bias is None else bias
    if attends is not None and bias is not None:
        mask = np.where(attends, bias, bias.dtype.type(-np.inf))
    inputs = {"Q": q, "K": k, "V": v, "attn_mask": mask, "past_key": None, "past_value": None}
    if past:
        inputs |= {"K": k[:, :, past:], "V": v[:, :, past:], "past_key": k[:, :, :past], "past_value": v[:, :, :past]}
    if opset >= 24:
        inputs["nonpad_kv_seqlen"] = lengths
    for name in {"scale", "softcap"} & attributes.keys():
        attributes[name] = float(attributes[name])  # an integer makes an attribute of another type
    if output == "qk_matmul_output":
        attributes["qk_matmul_output_mode"] = AFTER_SOFTMAX
    outputs = ("Y", *(("present_key", "present_value") if past else ("", "")), output if output != "Y" else "")
    kinds = tuple((name, None if x is None else (str(x.dtype), x.ndim)) for name, x in inputs.items())
    fed = {name: np.ascontiguousarray(x) for name, x in inputs.items() if x is not None}
    return model(opset, kinds, outputs, output, tuple(sorted(attributes.items()))), fed


@cache
def model(
    opset: int,
    inputs: tuple[tuple[str, tuple[str, int] | None], ...],
    outputs: tuple[str, ...],
    wanted: str,
    attributes: tuple[tuple[str, float], ...],
) -> onnx.ModelProto:
    """One node, for arrays of these dtypes and ranks. An input that is None, and a name that is empty, are left out."""
    node = helper.make_node(
        "Attention", [name if kind else "" for name, kind in inputs], list(outputs), **dict(attributes)
    )
    values = {name: (_type(kind[0]), [None] * kind[1]) for name, kind in inputs if kind}
    graph = helper.make_graph(
        [node],
        "attention",
        [helper.make_tensor_value_info(name, *kind) for name, kind in values.items()],
        [helper.make_tensor_value_info(wanted, *values["Q"])],
    )
    versions = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=versions, ir_version=helper.find_min_ir_version_for(versions))


def _type(dtype: str) -> int:
    return onnx.TensorProto.BFLOAT16 if dtype == "bfloat16" else helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
