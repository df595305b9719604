"""Who judges results: against the oracle within its bound, against each other to the bit, against a known value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from . import bounds, oracle, oracle_gradients
from .masks import Array
from .trials import Call, Result, Verdict

Judge = Callable[[tuple[Result, ...]], Verdict]
GRADIENTS = ("dq", "dk", "dv")


def within_bound(*calls: Call) -> Judge:
    """Every result is the oracle's answer to its call, within the a-priori bound; NaN and infinity exactly."""

    def judge(results: tuple[Result, ...]) -> Verdict:
        return all_of(check(call, result) for call, result in zip(calls, results, strict=True))

    return judge


def check(call: Call, result: Result) -> Verdict:
    """One result against the oracle: every part that was asked for, and its dtype."""
    if result.error is not None:
        return _unasked_refusal(result)
    exact = oracle.attention(call)
    verdicts = []
    for name in asked(call):
        if name in result.lacks:
            verdicts.append(_lacking(name))
            continue
        bound = _allowed(name, exact, call, result)
        verdicts.append(near(name, getattr(result, name), exact.answer[name], bound))
        verdicts.append(_dtype(name, result, call.dtype))
    return all_of(verdicts)


def _allowed(name: str, exact: oracle.Exact, call: Call, result: Result) -> Array:
    if name == "out":
        return bounds.out(exact, call.dtype, result.rounds_weights)
    if name == "lse":
        return bounds.lse(exact, call.dtype) + _conversion(exact.answer["lse"], result)
    return bounds.weights(exact, call.dtype)


def _conversion(lse: Array, result: Result) -> Array:
    """What an lse to base 2 loses: the rounding of its own representation and of the product with log 2."""
    u = bounds.UNIT["float64" if result.lse_dtype == "float64" else "float32"]
    return np.where(np.isfinite(lse), 2 * u * np.abs(lse), 0.0) if result.base_two else np.zeros(np.shape(lse))


def gradients_within_bound(*calls: Call) -> Judge:
    """Every result has the gradients of the formulas; NaN in exactly the rows of those that saw a bad number."""

    def judge(results: tuple[Result, ...]) -> Verdict:
        return all_of(_gradients(call, result) for call, result in zip(calls, results, strict=True))

    return judge


def _gradients(call: Call, result: Result) -> Verdict:
    if result.error is not None:
        return _unasked_refusal(result)
    exact = oracle_gradients.gradients(call, call.dout, 0.0 if call.dlse is None else call.dlse)
    values = zip(GRADIENTS, (exact.q, exact.k, exact.v), strict=True)
    parts = [near(name, getattr(result, name), value.exact, value.error) for name, value in values]
    return all_of([*parts, _dtype(", ".join(GRADIENTS), result, call.dtype)])


def gradients_zero(name: str, rows: Sequence[int]) -> Judge:
    """These rows of a gradient are exactly zero in every result."""

    def judge(results: tuple[Result, ...]) -> Verdict:
        return all_of(_zero(name, getattr(result, name), rows) for result in results)

    return judge


def _zero(name: str, got: Array | None, rows: Sequence[int]) -> Verdict:
    if got is None:
        return Verdict(False, f"{name} is missing", math.inf)
    part = got[..., list(rows), :]
    return near(f"{name} of rows {list(rows)}, entry ", part, np.zeros(part.shape), np.zeros(()))


def asked(call: Call) -> tuple[str, ...]:
    """The parts of a result that a call asks for."""
    parts: dict[str, tuple[str, ...]] = {
        "out": ("out",), "lse": ("out", "lse"), "weights": ("weights",), "gradients": GRADIENTS,
    }  # fmt: skip
    return parts[call.want]


def near(name: str, got: Array, wanted: Array, bound: Array) -> Verdict:
    """|got - wanted| <= bound everywhere; where wanted is not finite, got is the same."""
    wanted = np.asarray(wanted, np.float64)
    if got is None or got.shape != wanted.shape:
        message = f"{name} has shape {getattr(got, 'shape', None)}, wanted {wanted.shape}"
        return Verdict(False, message, math.inf)
    got = got.astype(np.float64)
    with np.errstate(all="ignore"):
        error = np.where(np.isfinite(wanted), np.abs(got - wanted), 0.0)
        same_kind = np.isfinite(wanted) | (got == wanted) | (np.isnan(got) & np.isnan(wanted))
        wrong = ~(error <= bound) & np.isfinite(wanted) | ~same_kind
        # No error is no part of any bound, an infinite one included; one that is no number is past every bound.
        share = np.where(error > 0, error / bound, np.where(np.isnan(error) | ~same_kind, np.inf, 0.0))
    worst = float(np.max(np.nan_to_num(share, nan=0.0, posinf=np.inf), initial=0.0))
    if not wrong.any():
        return Verdict(True, worst=worst)
    at = tuple(map(int, np.argwhere(wrong)[0]))
    allowed = float(np.broadcast_to(bound, wanted.shape)[at])
    values = f"{name}{list(at)} is {float(got[at])!r}, wanted {float(wanted[at])!r}"
    text = f"{values}: off by {error[at]:.3g}, allowed {allowed:.3g}"
    return Verdict(False, f"{text} ({int(wrong.sum())} of {wrong.size} entries are wrong)", worst)


def same_bits(*names: str, rows: int | None = None) -> Judge:
    """All results have the same bits in these parts, or in every part that they have; of the first `rows` queries."""

    def judge(results: tuple[Result, ...]) -> Verdict:
        first, *others = results
        return all_of(_same(n, other, first, names, rows) for n, other in enumerate(others, 1))

    return judge


def _same(number: int, other: Result, first: Result, names: Sequence[str], rows: int | None) -> Verdict:
    refusals = [_unasked_refusal(r) for r in (first, other) if r.error is not None]
    if refusals:
        return all_of(refusals)
    verdicts = []
    for name in names or ("out", "lse", "weights", *GRADIENTS):
        a, b = getattr(first, name), getattr(other, name)
        if name in first.lacks | other.lacks:
            verdicts.append(_lacking(name))
            continue
        if not names and (a is None or b is None):
            continue
        if a is None or b is None or a.shape != b.shape:
            verdicts.append(Verdict(False, f"{name} has shapes that differ", math.inf))
            continue
        if rows is not None:
            a, b = (x[..., :rows] if name == "lse" else x[..., :rows, :] for x in (a, b))
        verdicts.append(_equal(name, number, a, b))
    return all_of(verdicts or [Verdict(False, "the answers have no part in common", math.inf)])


def _equal(name: str, number: int, first: Array, other: Array) -> Verdict:
    differ = ~((first == other) | (np.isnan(first) & np.isnan(other)))
    if not differ.any():
        return Verdict(True)
    at = tuple(map(int, np.argwhere(differ)[0]))
    text = f"call {number}: {name}{list(at)} is {other[at]!r}, and {first[at]!r} in call 0"
    return Verdict(False, text, math.inf)


def is_exactly(**parts: Array) -> Judge:
    """The only result has these values, to the bit."""

    def judge(results: tuple[Result, ...]) -> Verdict:
        (result,) = results
        if result.error is not None:
            return _unasked_refusal(result)
        verdicts = []
        for name, value in parts.items():
            bound = _conversion(value, result) if name == "lse" else np.zeros(())
            verdicts.append(_lacking(name) if name in result.lacks else near(name, getattr(result, name), value, bound))
        return all_of(verdicts)

    return judge


def is_value(call: Call, **parts: Array) -> Judge:
    """The only result has these values, known from elsewhere, within the bound of the call."""

    def judge(results: tuple[Result, ...]) -> Verdict:
        (result,) = results
        if result.error is not None:
            return _unasked_refusal(result)
        exact = oracle.attention(call)
        return all_of(
            _lacking(name)
            if name in result.lacks
            else near(name, getattr(result, name), value, _allowed(name, exact, call, result))
            for name, value in parts.items()
        )

    return judge


def refused(*words: str) -> Judge:
    """Every result is a refusal that has these words, numbers mostly, in its text.

    The words bind attnspec's own functions (ERROR-1); of a foreign subject a refusal is all that is asked.
    """

    def judge(results: tuple[Result, ...]) -> Verdict:
        return all_of(_refusal(result, words) for result in results)

    return judge


def _refusal(result: Result, words: Sequence[str]) -> Verdict:
    if result.error is None:
        return Verdict(False, "answered what it has to refuse")
    missing = [] if result.own_words else [word for word in words if word not in result.message]
    return Verdict(not missing, f"the refusal lacks {', '.join(missing)}: {result.message}")


def untouched(results: tuple[Result, ...]) -> Verdict:
    """No input was written to."""
    return Verdict(all(result.untouched for result in results), "an input was written to")


def both(*judges: Judge) -> Judge:
    """Every one of the judges agrees."""
    return lambda results: all_of(judge(results) for judge in judges)


def holds(verdict: Verdict) -> None:
    """Fail the test with its message."""
    assert verdict.ok, verdict.message


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """One verdict out of several: the messages of those that failed, the worst error of all."""
    every = list(verdicts)
    failed = [v.message for v in every if not v.ok]
    vacuous = bool(every) and all(v.vacuous for v in every)
    message = every[0].message if vacuous else "; ".join(failed)
    return Verdict(not failed, message, max((v.worst for v in every), default=0.0), vacuous)


def _unasked_refusal(result: Result) -> Verdict:
    return Verdict(False, f"refused with {result.error}: {result.message}", math.inf)


def _lacking(name: str) -> Verdict:
    return Verdict(True, f"it gives no {name}", vacuous=True)


def _dtype(name: str, result: Result, dtype: str) -> Verdict:
    if name == "lse":
        wide = {"float64"} if dtype == "float64" else {"float32", "float64"}
        return Verdict(result.lse_dtype in wide, f"lse has dtype {result.lse_dtype} for {dtype} inputs")
    return Verdict(result.dtype == dtype, f"the dtype of {name} is {result.dtype} for {dtype} inputs")
