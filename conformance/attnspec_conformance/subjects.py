"""Who is judged: a backend's attention, eager or compiled, or anything else that answers calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

import numpy as np

import attnspec
from attnspec.errors import AttnspecError
from attnspec.host import host_of

from . import masks
from .masks import Array
from .trials import Call, Law, Result, Trial, Verdict

Arrays = Sequence[Array]
HALF = ("float16", "bfloat16")

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "out": attnspec.attention,
    "lse": attnspec.attention_with_lse,
    "weights": attnspec.attention_weights,
}


class Subject(Protocol):
    """Something that computes attention."""

    name: str
    capabilities: AbstractSet[str]

    def supports(self, call: Call) -> str | None:
        """None, or why it cannot express the call. Reads shapes, dtypes and kinds, no values."""

    def forward(self, call: Call) -> Result:
        """The answer. Only a refusal that the subject means is a Result; anything else it raises is a failure."""


def judge(law: Law, subject: Subject, most: int | None = None) -> tuple[list[tuple[Trial, Verdict]], list[str]]:
    """The verdicts of a law's trials, or of the first of them, and why others could not be asked."""
    verdicts, unsupported = [], []
    for trial in law.all_trials[:most]:
        reasons = [reason for call in trial.calls if (reason := subject.supports(call))]
        if reasons:
            unsupported.append(reasons[0])
        else:
            verdicts.append((trial, trial.judge(tuple(map(subject.forward, trial.calls)))))
    return verdicts, unsupported


class BackendSubject:
    """attnspec's own functions on the arrays of a registered backend."""

    def __init__(self, backend: Any, *, jitted: bool = False) -> None:
        self.backend = backend
        self.jitted = jitted
        self.name = f"{backend.name}-jit" if jitted else str(backend.name)
        self.capabilities = backend.capabilities

    def supports(self, call: Call) -> str | None:
        """Dtypes beyond float32 are capabilities."""
        for dtype in (call.dtype, call.bias_dtype or call.dtype):
            if dtype != "float32" and dtype not in self.capabilities:
                return f"{self.name} does not declare {dtype}"
        return None

    def forward(self, call: Call) -> Result:
        """Make the arrays, call the function, bring the answer back."""
        operands = Operands(self.backend, call)
        function = operands.function
        if self.jitted:
            function = self.backend.jit(_with_code_of_its_own(function))
        before = [self._bits(x) for x in operands.arrays]
        try:
            answer = function(*operands.arrays)
        except AttnspecError as error:
            return Result(error=type(error).__name__, message=str(error))
        after = [self._bits(x) for x in operands.arrays]
        out, lse = answer if isinstance(answer, tuple) else (answer, None)
        weights = None
        if call.want == "weights":
            out, weights = None, out
        return Result(
            out=self._plain(out),
            lse=self._plain(lse),
            weights=self._plain(weights),
            dtype=_dtype(weights if out is None else out),
            lse_dtype="" if lse is None else _dtype(lse),
            rounds_weights=call.dtype in HALF and _rounds_weights(operands.arrays[0]),
            untouched=before == after,
        )

    def _plain(self, x: Array | None) -> Array | None:
        """NumPy's float64 of any float, so that bfloat16 needs no library to be compared."""
        return None if x is None else np.asarray(self.backend.to_numpy(x)).astype(np.float64)

    def _bits(self, x: Array) -> bytes:
        return bytes(np.asarray(self.backend.to_numpy(x)).tobytes())


class Operands:
    """The arrays of a call, and the function of them that answers it: every array is an operand, so jit traces it."""

    function: Callable[..., Any]

    def __init__(self, backend: Any, call: Call) -> None:
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
        plain: dict[str, Any] = {"scale": call.scale, "softcap": call.softcap}
        if call.want != "weights":
            plain["implementation"] = call.implementation
            if call.dropout is not None:
                rng = attnspec.random.key(call.dropout.seed)
                plain["dropout"] = attnspec.Dropout(call.dropout.rate, rng)
        for name in ("q_positions", "k_positions"):
            if (positions := getattr(call, name)) is not None:
                options[name] = self._positions(positions)
        heads = (q, k) if call.want == "weights" else (q, k, v)
        attend = _FUNCTIONS[call.want]

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


def _with_code_of_its_own(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compilers that cache by code object would count every call of the suite as one more variant of one function."""
    function.__code__ = function.__code__.replace(co_name=f"call_{id(function)}")
    return function


def _dtype(x: Array) -> str:
    return str(x.dtype).rpartition(".")[2]


def _rounds_weights(q: Array) -> bool:
    return any(kernel.rounds_weights for kernel in host_of(q).kernels)
