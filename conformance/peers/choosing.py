"""What is left of a failure where rows that a choice of attnspec's is about are set right.

A trial about one clause may have rows that another one is about: causal masks at the start leave queries that see no
key, and a NaN that some query sees is hidden from others. Such rows must not make a peer fail the first clause, if the
second is a choice that it made otherwise.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
from attnspec_conformance import bounds, oracle
from attnspec_conformance.reports.reproduction import asks_for_refusal
from attnspec_conformance.subjects import HALF, Subject, put
from attnspec_conformance.trials import Call, Result, Trial, Verdict


def results_of(trial: Trial, subject: Subject) -> tuple[Result, ...]:
    """The subject's answers to the calls of a trial."""
    kept: list[Result] = []

    def keep(results: tuple[Result, ...]) -> Verdict:
        kept.extend(results)
        return Verdict(True)

    put(replace(trial, judge=keep), subject)
    return tuple(kept)


def left(trial: Trial, results: tuple[Result, ...], choices: Collection[str]) -> str | None:
    """What is still wrong once the rows that the choices are about hold the right values; None if nothing is."""
    if len(results) < len(trial.calls):
        return "raised something that is no refusal"
    if asks_for_refusal(trial) or any(result.error is not None for result in results):
        return trial.judge(results).message
    rows = [_rows(call, result, choices) for call, result in zip(trial.calls, results, strict=True)]
    if len({x.shape for x in rows}) == 1:
        # Answers to several calls may be compared with each other: then a row is set right in all of them.
        rows = [reduce(or_, rows)] * len(rows)
    mended = (_set_right(*given) for given in zip(trial.calls, results, rows, strict=True))
    verdict = trial.judge(tuple(mended))
    return None if verdict.ok else verdict.message


class SetRight:
    """The subject, with those rows set right in all it answers: what still fails it shows something else."""

    def __init__(self, subject: Subject, choices: Collection[str]) -> None:
        self._subject, self._choices = subject, choices

    def __getattr__(self, name: str) -> Any:
        return getattr(self._subject, name)

    def forward(self, call: Call) -> Result:
        """The subject's answer."""
        result = self._subject.forward(call)
        try:
            return result if result.error else _set_right(call, result, _rows(call, result, self._choices))
        except (IndexError, ValueError):  # there is no right answer to this call
            return result


def _rows(call: Call, result: Result, choices: Collection[str]) -> Any:
    """The rows (..., H, Q) that the choices are about."""
    exact = oracle.attention(call)
    rows = np.zeros(exact.lse.shape, bool)
    if "MASK-5" in choices:
        rows |= ~exact.visible.any(axis=-1)
    if "MASK-6b" in choices:
        rows |= _hides_what_is_not_finite(call, exact) & _leaked(result, exact)
    if "MASK-7" in choices:
        rows |= _spoilt_by_column(result, exact)
    if "SHAPE-3" in choices and call.dtype in HALF:
        rows |= _rounded_to_half(call, result, exact)
    return rows


def _hides_what_is_not_finite(call: Call, exact: oracle.Exact) -> Any:
    """Rows from which a number that is not finite is hidden, or a pair whose product has no number in the dtype."""
    q, k, v = (np.asarray(x[None] if x.ndim == 2 else x, np.float64) for x in (call.q, call.k, call.v))
    k, v = (np.repeat(x, q.shape[-3] // max(1, x.shape[-3]), axis=-3) for x in (k, v))
    wild = (~np.isfinite(k).all(-1) | ~np.isfinite(v).all(-1))[..., None, :]
    if call.bias is not None:
        wild = wild | ~np.isfinite(call.bias)
    with np.errstate(all="ignore"):
        largest = np.finfo(np.float32 if call.dtype in HALF else call.dtype).max
        wild = wild | ~(np.abs(q) @ np.abs(np.swapaxes(k, -1, -2)) < largest)
    return (np.broadcast_to(wild, exact.visible.shape) & ~exact.visible).any(axis=-1)


def _spoilt_by_column(result: Result, exact: oracle.Exact) -> Any:
    """Rows of which exactly the columns are NaN in which they see a value that is not finite."""
    rows = np.zeros(exact.lse.shape, bool)
    if result.out is None or np.shape(result.out) != exact.answer["out"].shape:
        return rows
    wild = (exact.visible[..., None] & ~np.isfinite(exact.values)[..., None, :, :]).any(axis=-2)
    spoilt = np.isnan(result.out) == exact.shaped(wild)
    return np.isfinite(exact.lse) & wild.any(axis=-1) & np.reshape(spoilt.all(axis=-1), rows.shape)


def _rounded_to_half(call: Call, result: Result, exact: oracle.Exact) -> Any:
    """Rows no further off than a few roundings to the dtype of scores, weights and values can bring them."""
    few = 16 * bounds.UNIT[call.dtype]
    near = np.ones(exact.lse.shape, bool)
    for name, right in exact.answer.items():
        got = getattr(result, name)
        if got is not None and np.shape(got) == right.shape:
            size = {"out": np.abs(np.where(np.isfinite(call.v), call.v, 0.0)).max(initial=0.0), "weights": 1.0}
            with np.errstate(invalid="ignore"):
                close = (got == right) | (np.abs(got - right) <= few * size.get(name, np.maximum(1.0, np.abs(right))))
            close = close if name == "lse" else close.all(axis=-1)
            near &= close[None] if exact.single else close
    return near


def _leaked(result: Result, exact: oracle.Exact) -> Any:
    """Rows of which some part is no number, and ought to be one."""
    leaked = np.zeros(exact.lse.shape, bool)
    for name, right in exact.answer.items():
        got = getattr(result, name)
        if got is not None and np.shape(got) == right.shape:
            lost = ~np.isfinite(got) & np.isfinite(right)
            lost = lost if name == "lse" else lost.any(axis=-1)
            leaked |= lost[None] if exact.single else lost
    return leaked


def _set_right(call: Call, result: Result, rows: Any) -> Result:
    """The answer with these rows as the definition has them; a gradient of their queries is 0."""
    exact = oracle.attention(call)
    changes = {}
    for name, right in {**exact.answer, "dq": np.zeros(call.q.shape)}.items():
        got, of_rows = getattr(result, name), exact.shaped(rows)
        if got is not None and np.shape(got) == right.shape:
            changes[name] = np.where(of_rows if name == "lse" else of_rows[..., None], right, got)
    return replace(result, **changes)
