"""Who judges results: against the oracle within its bound, against each other to the bit, against a known value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from . import bounds, oracle
from .masks import Array
from .trials import Call, Result, Verdict

Judge = Callable[[tuple[Result, ...]], Verdict]


def within_bound(*calls: Call) -> Judge:
    """Every result is the oracle's answer to its call, within the a-priori bound; NaN and infinity exactly."""

    def judge(results: tuple[Result, ...]) -> Verdict:
        return all_of(check(call, result) for call, result in zip(calls, results, strict=True))

    return judge


def check(call: Call, result: Result) -> Verdict:
    """One result against the oracle: every part that was asked for, and its dtype."""
    if result.error is not None:
        return Verdict(False, f"refused with {result.error}: {result.message}")
    exact = oracle.attention(call)
    verdicts = []
    for name in asked(call):
        bound = _allowed(name, exact, call, result)
        verdicts.append(near(name, getattr(result, name), exact.answer[name], bound))
        verdicts.append(_dtype(name, result, call.dtype))
    return all_of(verdicts)


def _allowed(name: str, exact: oracle.Exact, call: Call, result: Result) -> Array:
    if name == "out":
        return bounds.out(exact, call.dtype, result.rounds_weights)
    return (bounds.lse if name == "lse" else bounds.weights)(exact, call.dtype)


def asked(call: Call) -> tuple[str, ...]:
    """The parts of a result that a call asks for."""
    return {"out": ("out",), "lse": ("out", "lse"), "weights": ("weights",)}[call.want]


def near(name: str, got: Array, wanted: Array, bound: Array) -> Verdict:
    """|got - wanted| <= bound everywhere; where wanted is not finite, got is the same."""
    wanted = np.asarray(wanted, np.float64)
    if got is None or got.shape != wanted.shape:
        return Verdict(False, f"{name} has shape {getattr(got, 'shape', None)}, wanted {wanted.shape}")
    got = got.astype(np.float64)
    with np.errstate(all="ignore"):
        error = np.where(np.isfinite(wanted), np.abs(got - wanted), 0.0)
        same_kind = np.isfinite(wanted) | (got == wanted) | (np.isnan(got) & np.isnan(wanted))
        wrong = ~(error <= bound) & np.isfinite(wanted) | ~same_kind
    if not wrong.any():
        return Verdict(True)
    at = tuple(map(int, np.argwhere(wrong)[0]))
    allowed = float(np.broadcast_to(bound, wanted.shape)[at])
    text = f"{name}{list(at)} is {got[at]!r}, wanted {wanted[at]!r}: off by {error[at]:.3g}, allowed {allowed:.3g}"
    return Verdict(False, f"{text} ({int(wrong.sum())} of {wrong.size} entries are wrong)")


def same_bits(*names: str, rows: int | None = None) -> Judge:
    """All results have the same bits in these parts, or in every part that they have; of the first `rows` queries."""

    def judge(results: tuple[Result, ...]) -> Verdict:
        first, *others = results
        return all_of(_same(n, other, first, names, rows) for n, other in enumerate(others, 1))

    return judge


def _same(number: int, other: Result, first: Result, names: Sequence[str], rows: int | None) -> Verdict:
    verdicts = [Verdict(r.error is None, f"refused with {r.error}: {r.message}") for r in (first, other)]
    for name in names or ("out", "lse", "weights"):
        a, b = getattr(first, name), getattr(other, name)
        if not names and (a is None or b is None):
            continue
        if a is None or b is None or a.shape != b.shape:
            verdicts.append(Verdict(False, f"{name} has shapes that differ"))
            continue
        if rows is not None:
            a, b = (x[..., :rows] if name == "lse" else x[..., :rows, :] for x in (a, b))
        differ = ~((a == b) | (np.isnan(a) & np.isnan(b)))
        if differ.any():
            at = tuple(map(int, np.argwhere(differ)[0]))
            text = f"call {number}: {name}{list(at)} is {b[at]!r}, and {a[at]!r} in call 0"
            verdicts.append(Verdict(False, text))
    return all_of(verdicts)


def is_exactly(**parts: Array) -> Judge:
    """The only result has these values, to the bit."""

    def judge(results: tuple[Result, ...]) -> Verdict:
        (result,) = results
        if result.error is not None:
            return Verdict(False, f"refused with {result.error}: {result.message}")
        zero = np.zeros(())
        return all_of(near(name, getattr(result, name), value, zero) for name, value in parts.items())

    return judge


def is_value(call: Call, **parts: Array) -> Judge:
    """The only result has these values, known from elsewhere, within the bound of the call."""

    def judge(results: tuple[Result, ...]) -> Verdict:
        (result,) = results
        if result.error is not None:
            return Verdict(False, f"refused with {result.error}: {result.message}")
        exact = oracle.attention(call)
        return all_of(
            near(name, getattr(result, name), value, _allowed(name, exact, call, result))
            for name, value in parts.items()
        )

    return judge


def refused(*words: str) -> Judge:
    """Every result is a refusal that has these words, numbers mostly, in its text."""

    def judge(results: tuple[Result, ...]) -> Verdict:
        return all_of(_refusal(result, words) for result in results)

    return judge


def _refusal(result: Result, words: Sequence[str]) -> Verdict:
    if result.error is None:
        return Verdict(False, "answered what it has to refuse")
    missing = [word for word in words if word not in result.message]
    return Verdict(not missing, f"the refusal lacks {', '.join(missing)}: {result.message}")


def untouched(results: tuple[Result, ...]) -> Verdict:
    """No input was written to."""
    return Verdict(all(result.untouched for result in results), "an input was written to")


def both(*judges: Judge) -> Judge:
    """Every one of the judges agrees."""
    return lambda results: all_of(judge(results) for judge in judges)


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """One verdict out of several: the messages of those that failed."""
    failed = [v.message for v in verdicts if not v.ok]
    return Verdict(not failed, "; ".join(failed))


def _dtype(name: str, result: Result, dtype: str) -> Verdict:
    if name == "lse":
        wide = {"float64"} if dtype == "float64" else {"float32", "float64"}
        return Verdict(result.lse_dtype in wide, f"lse has dtype {result.lse_dtype} for {dtype} inputs")
    return Verdict(result.dtype == dtype, f"{name} has dtype {result.dtype} for {dtype} inputs")
