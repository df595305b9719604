"""A failure as a few lines that can be pasted into Python and run: the smallest call found that still fails."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np

from .. import masks, oracle
from ..drawn import drawn_laws
from ..judges import gradients_within_bound, within_bound
from ..laws import LAWS
from ..masks import Array
from ..subjects import NotJudgedError, Subject, UnsupportedError, put
from ..trials import Call, Result, Trial
from ..verdict import Entry
from .shrinking import shrink

MOST_LINES, MOST_CHARACTERS, MOST_CALLS = 24, 2500, 4
MODULES = ("np", "drawn", "foreign", "judges", "laws", "masks", "oracle", "placement", "subjects", "trials")


def of_trial(entry: Entry, subject: Subject, made_by: str, seed: int, cases: int, *, seconds: float = 3.0) -> str:
    """Code that asks the subject again and raises AssertionError.

    `made_by` is an expression for the subject that begins with a module of `attnspec_conformance`. Where one call by
    itself is answered wrongly, that call is made as small as the time allows; else it is the trial as it is.
    """
    law = LAWS.get(entry.law) or next((law for law in drawn_laws(seed, cases) if law.name == entry.law), None)
    if law is None:
        return _denied(entry.calls[0], subject, made_by, seconds)
    for call in () if asks_for_refusal(law.all_trials[entry.trial]) else entry.calls:
        small = _smallest(subject, call, entry.clauses, seconds)
        code = "" if small is None else _asking(small, made_by, _judging(small))
        if code and code.count("\n") <= MOST_LINES and len(code) <= MOST_CHARACTERS:
            return code
    lines = [
        f"subject = {made_by}",
        f"trial = {_law(entry.law, seed, cases)}.all_trials[{entry.trial}]",
        "verdict, _ = subjects.put(trial, subject)",
        "assert verdict.ok, verdict.message",
    ]
    return _program([f"# {described(call)}" for call in entry.calls[:MOST_CALLS]], lines)


def of_answers(entry: Entry, seed: int, cases: int) -> str:
    """Code that shows what was asked, and the answer that was wanted: no subject is there to be asked again."""
    lines = [
        f"trial = {_law(entry.law, seed, cases)}.all_trials[{entry.trial}]",
        "for call in trial.calls:",
        "    print(call, oracle.attention(call).answer)",
    ]
    return _program([f"# {described(call)}" for call in entry.calls[:MOST_CALLS]], lines)


def of_test(test: str, options: list[str]) -> str:
    """Code that runs one test of the suite again."""
    arguments = ["-p", "attnspec_conformance.plugin", *options, "--pyargs", test]
    return f"import pytest\n\nassert pytest.main({arguments}) == 0\n"


def asks_for_refusal(trial: Trial) -> bool:
    """Whether refusals are what it wants: its calls then have no right answer."""
    refusal = Result(error="ShapeError", own_words=True)
    return trial.judge((refusal,) * len(trial.calls)).ok


def _denied(call: Call, subject: Subject, made_by: str, seconds: float) -> str:
    """Code for a capability that is declared, and the plainest call that needs it is not supported."""
    small = shrink(call, lambda smaller: subject.supports(smaller) is not None, seconds)
    return _asking(small, made_by, ["assert not subject.supports(call), subject.supports(call)"])


def _smallest(subject: Subject, call: Call, clauses: Iterable[str], seconds: float) -> Call | None:
    """A small call that is answered wrongly in the same way, if this one is."""
    wrong = _wrong(subject, call)
    return shrink(call, lambda smaller: _wrong(subject, smaller) == wrong, seconds, clauses) if wrong else None


def _wrong(subject: Subject, call: Call) -> tuple[object, ...]:
    """What is wrong with the answer to this call alone; nothing if it is right or has no verdict.

    Smaller calls with the same fault have the same error, NaN on the same side, and hide a pair if this one does.
    """
    judge = gradients_within_bound if call.want == "gradients" else within_bound
    try:
        verdict, _ = put(Trial((call,), judge(call)), subject)
    except (UnsupportedError, NotJudgedError):
        return ()
    except Exception:  # the definition has no answer to the call, whatever that raises
        return ()
    if verdict.ok:
        return ()
    named = re.match(r"(raised|refused with) \w+", verdict.message)
    numbers = re.search(r"\] is (\S+), wanted (\S+):", verdict.message)
    hides = not oracle.attention(call).visible.all()
    return named and named[0], numbers and tuple("nan" in number for number in numbers.groups()), hides


def _judging(call: Call) -> list[str]:
    judge = "gradients_within_bound" if call.want == "gradients" else "within_bound"
    return [
        f"verdict, _ = subjects.put(trials.Trial((call,), judges.{judge}(call)), subject)",
        "assert verdict.ok, verdict.message",
    ]


def _asking(call: Call, made_by: str, then: list[str]) -> str:
    given = [f for f in fields(call) if not _is_default(getattr(call, f.name), f)]
    lines = [
        f"subject = {made_by}",
        "call = trials.Call(",
        *(f"    {f.name}={literal(getattr(call, f.name))}," for f in given),
        ")",
        *then,
    ]
    return _program([], lines)


def _program(comments: list[str], lines: list[str]) -> str:
    """The lines, with the modules imported that they name."""
    named = set(re.findall(r"\b([a-z]+)\.", " ".join(lines))) & set(MODULES)
    imports = ["import numpy as np"] if "np" in named else []
    imports.append(f"from attnspec_conformance import {', '.join(sorted(named - {'np'}))}")
    return "\n".join([*imports, "", *comments, *lines, ""])


def _law(name: str, seed: int, cases: int) -> str:
    if name in LAWS:
        return f"laws.LAWS[{name!r}]"
    return f"{{law.name: law for law in drawn.drawn_laws({seed}, {cases})}}[{name!r}]"


def _is_default(value: Any, field: Any) -> bool:
    return value is field.default or (not isinstance(value, np.ndarray) and value == field.default)


def described(call: Call) -> str:
    """A call in one line: shapes, and the options that were given."""
    given = [f"{f.name} {_brief(value)}" for f in fields(call) if not _is_default(value := getattr(call, f.name), f)]
    return ", ".join(given)


def _brief(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return str(value.shape)
    if isinstance(value, masks.Mask):
        inner = [_brief(getattr(value, f.name)) for f in fields(value)]
        return f"{type(value).__name__}({', '.join(inner)})"
    return str(value)


def literal(value: Any) -> str:
    """The value as Python code, with `np` and `masks` at hand."""
    if isinstance(value, np.ndarray | np.generic):
        return _array(np.asarray(value))
    if isinstance(value, masks.Mask | masks.Dropout):
        parts = [
            (f"{f.name}=" if n else "") + literal(part)
            for n, f in enumerate(fields(value))
            if not _is_default(part := getattr(value, f.name), f)
        ]
        return f"masks.{type(value).__name__}({', '.join(parts)})"
    return repr(value)


def _array(x: Array) -> str:
    if x.size == 0:
        return f'np.zeros({x.shape}, "{x.dtype.name}")'
    if x.ndim and x.size > 1 and (x == x.flat[0]).all():
        return f'np.full({x.shape}, {_number(x.flat[0])}, "{x.dtype.name}")'
    text = np.array2string(
        x, separator=", ", threshold=sys.maxsize, max_line_width=sys.maxsize, formatter={"all": _number}
    )
    return f'np.array({" ".join(text.split())}, "{x.dtype.name}")'


def _number(x: Any) -> str:
    if x != x:
        return "np.nan"
    if abs(x) == np.inf:
        return "np.inf" if x > 0 else "-np.inf"
    return str(x)
