"""Who is judged: a backend's attention, eager or compiled, or anything else that answers calls."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from attnspec import reproducible
from attnspec.errors import AttnspecError
from attnspec.host import host_of
from attnspec.reproducible.steady import CHUNK

from . import dividing
from .bounds import inside
from .dividing import Functions
from .masks import Array
from .operands import FUNCTIONS
from .operands import Operands as Operands  # what a backend's own tests differentiate
from .trials import Call, Law, Result, Shards, Trial, Verdict

HALF = ("float16", "bfloat16")
REPRODUCIBLE: Functions = {want: getattr(reproducible, function.__name__) for want, function in FUNCTIONS.items()}
MAY_LACK = frozenset({"lse"})


class Subject(Protocol):
    """Something that computes attention. With the capability "vjp" it has `vjp(call) -> Result` as well.

    One with `live = False` has answered already, and cannot be asked anything else than it was.
    """

    name: str
    capabilities: AbstractSet[str]

    def supports(self, call: Call) -> str | None:
        """None, or why it cannot express the call. Reads shapes, dtypes and kinds, no values."""

    def forward(self, call: Call) -> Result:
        """The answer. Only a refusal that the subject means is a Result; anything else it raises is a failure."""


class NotJudgedError(Exception):
    """A subject has no answer because it was never asked; the text says why."""


class UnsupportedError(Exception):
    """A subject cannot express what it is asked; the text says why."""


def judge(law: Law, subject: Subject, most: int | None = None) -> tuple[list[tuple[Trial, Verdict]], list[str]]:
    """The verdicts of a law's trials, or of the first of them, and why others could not be asked."""
    lacking = sorted(law.needs.difference(subject.capabilities))
    if lacking:
        return [], [f"{subject.name} does not declare {', '.join(lacking)}"]
    verdicts, unsupported = [], []
    for trial in law.all_trials[:most]:
        try:
            verdicts.append((trial, put(trial, subject)[0]))
        except UnsupportedError as reason:
            unsupported.append(str(reason))
    return verdicts, unsupported


def put(trial: Trial, subject: Subject) -> tuple[Verdict, frozenset[str]]:
    """The verdict of a trial, and the parts that were asked for and that the subject does not give.

    What the subject raises unasked fails it, as does an answer that is no arrays; neither ends the run. A subject that
    gives no lse is asked for the output alone, and judged by that. Raises `UnsupportedError` or `NotJudgedError` where
    there is no verdict.
    """
    try:
        lowered = [_expressed(subject, call) for call in trial.calls]
        results = tuple(_answer(subject, *asked) for asked in lowered)
        lacks: frozenset[str] = frozenset().union(*(result.lacks for result in results))
        verdict = trial.judge(results)
    except (NotJudgedError, UnsupportedError):
        raise
    except (Exception, SystemExit) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = "/".join(Path(frame.filename).parts[-2:])  # whole, it would put somebody's folders into every report
        message = f"raised {type(error).__name__}: {error} ({where}:{frame.lineno})"
        return Verdict(False, message, math.inf), frozenset()
    if lacks - MAY_LACK:
        message = f"gives no {', '.join(sorted(lacks - MAY_LACK))}; only {', '.join(MAY_LACK)} may be lacking"
        return Verdict(False, message, math.inf), frozenset()
    if verdict.vacuous:
        raise UnsupportedError(verdict.message)
    return verdict, lacks


def _expressed(subject: Subject, call: Call) -> tuple[Call, frozenset[str]]:
    """What the subject is asked in place of the call, and the parts that it will lack."""
    reason = subject.supports(call)
    if reason is None:
        return call, frozenset()
    if call.want == "lse" and getattr(subject, "live", True):
        lowered = call.but(want="out")
        reason = subject.supports(lowered)
        if reason is None:
            return lowered, frozenset({"lse"})
    raise UnsupportedError(reason)


def _answer(subject: Subject, call: Call, lacks: frozenset[str]) -> Result:
    ask = subject.vjp if call.want == "gradients" and hasattr(subject, "vjp") else subject.forward
    result = ask(call)
    return replace(result, lacks=result.lacks | lacks) if lacks else result


def dtype_of(parts: Iterable[str]) -> str:
    """The dtype of a result's parts, lse aside: where they differ, all of them, which is that of no call."""
    return " and ".join(dict.fromkeys(parts))


class BackendSubject:
    """attnspec's own functions on the arrays of a registered backend."""

    functions = FUNCTIONS
    portable = True  # EXTENDED clauses bind it
    refusals: tuple[type[Exception], ...] = (AttnspecError,)
    own_words = False
    base_two = False

    def __init__(self, backend: Any, *, jitted: bool = False) -> None:
        self.backend = backend
        self.jitted = jitted
        self.name = f"{backend.name}-jit" if jitted else str(backend.name)
        self.capabilities: AbstractSet[str] = {*backend.capabilities, "shards"}

    def supports(self, call: Call) -> str | None:
        """Dtypes beyond float32, and gradients, are capabilities."""
        for dtype in (call.dtype, call.bias_dtype or call.dtype):
            if dtype != "float32" and dtype not in self.capabilities:
                return f"{self.name} does not declare {dtype}"
        if call.want == "gradients" and "vjp" not in self.capabilities:
            return f"{self.name} does not declare vjp"
        return None

    def forward(self, call: Call) -> Result:
        """Make the arrays, call the function, bring the answer back."""

        def parts(operands: Operands) -> dict[str, Array]:
            function = operands.function
            if self.jitted:
                function = self.backend.jit(_with_code_of_its_own(function))
            answer = function(*operands.arrays)
            out, lse = answer if isinstance(answer, tuple) else (answer, None)
            return {"weights": out} if call.want == "weights" else {"out": out, "lse": lse}

        return self._answered(call, parts)

    def vjp(self, call: Call) -> Result:
        """The gradients with respect to q, k and v."""
        return self._answered(call, lambda operands: _gradients(self.backend, call, operands))

    def _answered(self, call: Call, parts: Callable[[Operands], dict[str, Array]]) -> Result:
        operands = self._operands(call)
        before = [self._bits(x) for x in operands.arrays]
        try:
            answer = parts(operands)
        except self.refusals as error:
            return Result(error=type(error).__name__, message=str(error), own_words=self.own_words)
        after = [self._bits(x) for x in operands.arrays]
        given = {name: x for name, x in answer.items() if x is not None}
        return Result(
            **{name: self._plain(x) for name, x in given.items()},
            dtype=dtype_of(_dtype(x) for name, x in given.items() if name != "lse"),
            lse_dtype=_dtype(given["lse"]) if "lse" in given else "",
            rounds_weights=call.dtype in HALF and self._rounds_weights(operands.arrays[0]),
            base_two=self.base_two,
            untouched=before == after,
        )

    def _operands(self, call: Call) -> Operands:
        return Operands(self.backend, call, self.functions if call.shards is None else self.divided(call.shards))

    def divided(self, shards: Shards) -> Functions:
        """The functions that divide a call so."""
        return dividing.divided(shards)

    def _rounds_weights(self, q: Array) -> bool:
        return any(kernel.rounds_weights for kernel in host_of(q).kernels)

    def _plain(self, x: Array) -> Array:
        """NumPy's float64 of any float, so that bfloat16 needs no library to be compared."""
        return np.asarray(self.backend.to_numpy(x)).astype(np.float64)

    def _bits(self, x: Array) -> bytes:
        return bytes(np.asarray(self.backend.to_numpy(x)).tobytes())


class Reproducible(BackendSubject):
    """`attnspec.reproducible` on the arrays of a registered backend."""

    functions = REPRODUCIBLE

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self.name = f"{backend.name}, reproducible"
        self.capabilities = {*self.capabilities, "shards_to_the_bit"}

    def supports(self, call: Call) -> str | None:
        """Parts of the keys are of a multiple of 256."""
        shards = call.shards
        if shards and shards.n > 1 and shards.along in ("sequence", "keys") and call.k.shape[-2] // shards.n % CHUNK:
            return f"{self.name} merges parts of a multiple of {CHUNK} keys"
        return super().supports(call)

    def divided(self, shards: Shards) -> Functions:
        return dividing.divided(shards, to_the_bit=True)


def _gradients(backend: Any, call: Call, operands: Operands) -> dict[str, Array]:
    """dq, dk and dv of sum(dout * out) + sum(dlse * lse), by the backend's reverse mode."""
    inputs, options = operands.arrays[:3], operands.arrays[3:]
    _, pull = backend.vjp(lambda q, k, v: operands.function(q, k, v, *options), *inputs)
    cotangent = backend.asarray(call.dout, dtype=call.dtype)
    if call.dlse is not None:
        cotangent = cotangent, backend.asarray(call.dlse, dtype=inside(call.dtype))
    return dict(zip(("dq", "dk", "dv"), pull(cotangent), strict=True))


def _with_code_of_its_own(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compilers that cache by code object would count every call of the suite as one more variant of one function."""
    function.__code__ = function.__code__.replace(co_name=f"call_{id(function)}")
    return function


def _dtype(x: Array) -> str:
    return str(x.dtype).rpartition(".")[2]
