"""A call in the arrays of a backend: what its functions are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import attnspec

from . import masks
from .masks import Array
from .trials import Call

Arrays = Sequence[Array]

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "out": attnspec.attention,
    "lse": attnspec.attention_with_lse,
    "weights": attnspec.attention_weights,
}


class Operands:
    """The arrays of a call, and the function of them that answers it: every array is an operand, so jit traces it."""

    function: Callable[..., Any]

    def __init__(self, backend: Any, call: Call, functions: Mapping[str, Callable[..., Any]] = FUNCTIONS) -> None:
        self.backend = backend
        self.arrays: list[Array] = []
        q, k, v = (self._add(lay(backend, x, call.dtype, call.layout)) for x in (call.q, call.k, call.v))
        options: dict[str, Callable[[Arrays], Any]] = {}
        if call.mask is not None:
            options["mask"] = self._mask(call.mask)
        if call.bias is not None:
            options["bias"] = self._array(call.bias, call.bias_dtype or call.dtype)
        if call.sink is not None:
            options["sink"] = self._array(call.sink, call.dtype)
        plain: dict[str, Any] = {
            name: value for name in ("scale", "softcap") if (value := getattr(call, name)) is not None
        }
        if call.want != "weights":
            if call.implementation != "auto":
                plain["implementation"] = call.implementation
            if call.dropout is not None:
                rng = attnspec.random.key(call.dropout.seed)
                plain["dropout"] = attnspec.Dropout(call.dropout.rate, rng)
        for name in ("q_positions", "k_positions"):
            if (positions := getattr(call, name)) is not None:
                options[name] = self._positions(positions)
        heads = (q, k) if call.want == "weights" else (q, k, v)
        attend = functions[asked_of(call)]

        def function(*arrays: Array) -> Any:
            made = {name: make(arrays) for name, make in options.items()}
            return attend(*[arrays[n] for n in heads], **made, **plain)

        self.function = function

    def _add(self, x: Array) -> int:
        self.arrays.append(x)
        return len(self.arrays) - 1

    def _array(self, x: Array, dtype: str) -> Callable[[Arrays], Array]:
        n = self._add(self.backend.asarray(np.asarray(x), dtype=dtype))
        return lambda arrays: arrays[n]

    def _positions(self, x: range | Array) -> Callable[[Arrays], Any]:
        return (lambda arrays: x) if isinstance(x, range) else self._array(x, "int32")

    def _integers(self, x: int | Array) -> Callable[[Arrays], Any]:
        return (lambda arrays: x) if isinstance(x, int) else self._array(x, "int32")

    def _mask(self, mask: masks.Mask) -> Callable[[Arrays], Any]:
        match mask:
            case masks.Dense(array):
                return self._array(array, "bool")
            case masks.Causal(offset, align):
                by = self._integers(offset)
                return lambda arrays: attnspec.causal(by(arrays), align=align)
            case masks.Window(left, right, offset, align):
                by = self._integers(offset)
                return lambda arrays: attnspec.window(left, right, offset=by(arrays), align=align)
            case masks.Padding(lengths):
                by = self._integers(lengths)
                return lambda arrays: attnspec.padding(by(arrays))
            case masks.Segments(q_ids, k_ids):
                q_by, k_by = self._integers(q_ids), self._integers(k_ids)
                return lambda arrays: attnspec.segments(q_by(arrays), k_by(arrays))
            case masks.Inverse(inner):
                rule = self._rule(inner)
                return lambda arrays: ~rule(arrays)
            case masks.Both(one, other):
                a, b = self._rule(one), self._mask(other)
                return lambda arrays: a(arrays) & b(arrays)
            case masks.Either(one, other):
                a, b = self._rule(one), self._mask(other)
                return lambda arrays: a(arrays) | b(arrays)

    def _rule(self, mask: masks.Mask) -> Callable[[Arrays], Any]:
        made = self._mask(mask)
        return lambda arrays: attnspec.as_mask(made(arrays))


def asked_of(call: Call) -> str:
    """The function that answers a call; gradients are those of out, or of out and lse."""
    if call.want != "gradients":
        return call.want
    return "out" if call.dlse is None else "lse"


def lay(backend: Any, x: Array, dtype: str, layout: str) -> Array:
    """The array in the backend, lying in memory as asked."""
    xp = backend.xp
    if layout == "transposed":
        return xp.matrix_transpose(backend.asarray(np.ascontiguousarray(np.swapaxes(x, -1, -2)), dtype=dtype))
    if layout == "reversed":
        axes = tuple(range(x.ndim))
        return xp.flip(backend.asarray(np.ascontiguousarray(np.flip(x, axes)), dtype=dtype), axis=axes)
    if layout == "strided":
        return backend.asarray(np.repeat(x, 2, axis=-1), dtype=dtype)[..., ::2]
    made = np.array(x, dtype=x.dtype if dtype == "bfloat16" else dtype)
    made.flags.writeable = layout != "readonly"
    return backend.asarray(made, dtype=dtype)
