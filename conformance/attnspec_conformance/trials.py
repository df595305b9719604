"""How a promise is asked for: calls, results, verdicts, and laws that yield them.

No call depends on a result, so that trials can be run live on a Python subject, or written down and judged from
results that some other program wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from .clauses import CLAUSES
from .masks import Array, Dropout, Mask

Want = Literal["out", "lse", "weights", "gradients"]
Along = Literal["sequence", "keys", "heads", "batch"]

# What a subject may declare beside the capabilities of a backend.
OF_SUBJECTS = {
    "shards": "it divides a call among workers when it is asked to",
    "shards_to_the_bit": "and has the same bits whatever their number",
}


@dataclass(frozen=True)
class Shards:
    """Among how many workers a call is divided, in equal shards that follow each other.

    along
        "sequence": each has a shard of the queries and one of the keys. "keys": each has one of the keys, and all
        queries. "heads", of k and v too; "batch", the first axis.
    """

    along: Along
    n: int


@dataclass(frozen=True, eq=False)
class Call:
    """One question: plain NumPy arrays and options. Values are representable in `dtype`; a subject casts to it.

    want
        "out"; "lse", which is out and lse; "weights"; or "gradients", which is dq, dk and dv of
        sum(dout * out) + sum(dlse * lse).
    dout, dlse
        The cotangents where gradients are asked for; without dlse, lse is not asked for.
    bias_dtype
        The dtype of bias where it is not that of q, k and v.
    layout
        How the arrays lie in memory: "plain", "transposed" (the last two axes), "reversed" (every axis), "strided"
        (every second entry of the last axis) or "readonly".
    shards
        The division that is asked for; None: the subject's own affair. No call with one asks for weights.
    """

    q: Array
    k: Array
    v: Array
    mask: Mask | None = None
    bias: Array | None = None
    scale: float | None = None
    softcap: float | None = None
    sink: Array | None = None
    dropout: Dropout | None = None
    q_positions: range | Array | None = None
    k_positions: range | Array | None = None
    dout: Array | None = None
    dlse: Array | None = None
    want: Want = "out"
    dtype: str = "float32"
    bias_dtype: str | None = None
    layout: str = "plain"
    implementation: str = "auto"
    shards: Shards | None = None

    def but(self, **changes: Any) -> Call:
        """The same question with some parts changed."""
        return replace(self, **changes)


@dataclass(frozen=True, eq=False)
class Result:
    """The answer in NumPy, or the refusal: the error's class name and its text.

    Half-precision answers may come widened, so `dtype` says what they were. `rounds_weights`: the subject says that
    it rounds the weights once to a half-precision dtype (PATH-2). `untouched` is False if an input was written to.
    `own_words`: the subject speaks for itself, so its refusal is judged for being one and not for its text.
    `lacks` names parts that were asked for and that the subject does not give; they are not judged. `base_two`: lse was
    a logarithm to base 2 and was converted, which rounds it twice more.
    """

    out: Array | None = None
    lse: Array | None = None
    weights: Array | None = None
    dq: Array | None = None
    dk: Array | None = None
    dv: Array | None = None
    dtype: str = ""
    lse_dtype: str = ""
    error: str | None = None
    message: str = ""
    rounds_weights: bool = False
    untouched: bool = True
    own_words: bool = False
    base_two: bool = False
    lacks: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Verdict:
    """Whether the results keep the promise; the message has the error beside its bound.

    `worst` is the greatest error as a fraction of its bound: 0 where nothing was measured, infinity where a number is
    missing or stands where none may be off. `vacuous`: the subject gives none of the parts that are judged.
    """

    ok: bool
    message: str = ""
    worst: float = 0.0
    vacuous: bool = False


@dataclass(frozen=True)
class Trial:
    """Calls, and who judges the results of all of them together; `clauses` where it judges others than its law."""

    calls: tuple[Call, ...]
    judge: Callable[[tuple[Result, ...]], Verdict]
    clauses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Law:
    """A promise of one or more clauses. `jitted`: its first trial is also asked of the compiled subject."""

    name: str
    clauses: tuple[str, ...]
    trials: Callable[[], Iterator[Trial]]
    needs: frozenset[str] = frozenset()
    jitted: bool = False

    @cached_property
    def all_trials(self) -> tuple[Trial, ...]:
        """Its trials, made once, so that what the oracle says of a call serves every subject."""
        return tuple(self.trials())


LAWS: dict[str, Law] = {}


def law(
    *clauses: str, needs: tuple[str, ...] = (), jitted: bool = False
) -> Callable[[Callable[[], Iterator[Trial]]], Law]:
    """Make a law of a generator of trials; the function's name states the law."""
    unknown = [clause for clause in clauses if clause not in CLAUSES]
    if unknown or not clauses:
        msg = f"a law names clauses of clauses.py, got {', '.join(unknown) or 'none'}"
        raise ValueError(msg)

    def decorate(trials: Callable[[], Iterator[Trial]]) -> Law:
        name = trials.__name__
        if name in LAWS:
            msg = f"two laws are named {name}"
            raise ValueError(msg)
        LAWS[name] = Law(name, clauses, trials, frozenset(needs), jitted)
        return LAWS[name]

    return decorate
