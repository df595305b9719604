"""The node tests that ONNX's backends are judged by, asked of attnspec: attention, norms, rotary, softmax, dropout.

They are made by the installed `onnx`: inputs from NumPy's legacy random stream, answers from ONNX's own reference
implementation. The adapter's functions answer them; what no adapter offers is asked as `onnx_operators` says.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
from case import Case
from onnx_operators import OPERATORS

from attnspec._compat import dtype_name
from attnspec.backend import choose
from attnspec.host import host_of

DATA_TYPES = ("float16", "bfloat16", "float64")

# ONNX's answers in bfloat16 are rounded at every step, by up to 2.4 units of the last place; torch allows this much.
BFLOAT16 = {"rtol": 1.6e-2, "atol": 1e-5}
EXACT = {"rtol": 0.0, "atol": 0.0}


@dataclass(frozen=True)
class Node:
    """One node with its inputs (None where one is left out) and, by their positions, the outputs it has."""

    name: str
    operator: str
    opset: int
    attributes: dict[str, Any] = field(repr=False)
    inputs: tuple[Any, ...] = field(repr=False)
    outputs: dict[int, Any] = field(repr=False)
    tolerance: dict[str, float] = field(repr=False)

    def __str__(self) -> str:
        return self.name

    def lacks(self, backend: str) -> str | None:
        """Why the backend cannot be asked: a dtype that it does not have."""
        capabilities = _backend(backend).capabilities
        used = {x.dtype.name for x in (*self.inputs, *self.outputs.values()) if x is not None}
        missing = sorted(used.intersection(DATA_TYPES) - capabilities)
        return f"{backend} has no {missing[0]}" if missing else None


def cases(backend: str = "numpy", operator: str = "Attention") -> list[Case]:
    """The operator's tests on the backend, those with dtypes that it has."""
    return [
        Case(node.name, partial(check, node, backend))
        for node in nodes()
        if node.operator == operator and node.lacks(backend) is None
    ]


def check(node: Node, backend: str) -> None:
    """Raise AssertionError unless attnspec's outputs are ONNX's, in dtype, shape and values."""
    chosen = _backend(backend)
    # ONNX's lengths and positions are int64, and one of its softmaxes is in double precision.
    with host_of(chosen.asarray(0.0)).apart():
        answers = OPERATORS[node.operator](node, [_placed(chosen, x) for x in node.inputs])
        for position, wanted in node.outputs.items():
            answer = answers[position]
            assert (dtype_name(answer), tuple(answer.shape)) == (wanted.dtype.name, wanted.shape)
            numbers = chosen.to_numpy(answer).astype(np.float64)
            np.testing.assert_allclose(numbers, wanted.astype(np.float64), **node.tolerance)


_backend = cache(choose)


def _placed(backend: Any, x: Any) -> Any:
    if x is None or x.dtype.name != "bfloat16":
        return x if x is None else backend.asarray(x)
    return backend.asarray(x.astype("float32"), dtype="bfloat16")


@cache
def nodes() -> tuple[Node, ...]:
    """The tests of the operators asked here, those of one node without sub-graphs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        models = [test for test in collect_testcases(None) if len(test.model.graph.node) == 1]
    found = (_node(test) for test in models if test.model.graph.node[0].op_type in OPERATORS)
    return tuple(node for node in found if node is not None)


def _node(test: Any) -> Node | None:
    from onnx.helper import get_attribute_value

    (node,) = test.model.graph.node
    if any(attribute.HasField("g") for attribute in node.attribute):
        return None
    ((given, wanted),) = test.data_sets
    given, wanted = iter(given), iter(wanted)
    outputs = {n: next(wanted) for n, name in enumerate(node.output) if name}
    if node.op_type == "Dropout":
        tolerance = EXACT
    elif outputs[0].dtype.name == "bfloat16":
        tolerance = BFLOAT16
    else:
        tolerance = {"rtol": test.rtol, "atol": test.atol}
    return Node(
        name=test.name,
        operator=node.op_type,
        opset={opset.domain: opset.version for opset in test.model.opset_import}[node.domain],
        attributes={attribute.name: get_attribute_value(attribute) for attribute in node.attribute},
        inputs=tuple(np.asarray(next(given)) if name else None for name in node.input),
        outputs={n: np.asarray(x) for n, x in outputs.items()},
        tolerance=tolerance,
    )
