"""Subjects that are not attnspec's: loaded, and judged without excuses."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from attnspec_conformance import foreign, placement
from attnspec_conformance.known_failures import KnownFailure
from attnspec_conformance.laws import LAWS
from attnspec_conformance.problems import problem
from attnspec_conformance.subjects import BackendSubject
from attnspec_conformance.trials import Result
from attnspec_conformance.verdict import judge_all
from verdicts import failed
from wrong import Faultless

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_example_of_the_documentation_fails_what_naive_attention_fails(monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    with np.errstate(all="ignore"):
        report = judge_all(foreign.load("naive_kernel:subject"), LAWS.values())
    expected = {"SHAPE-1", "MASK-2", "MASK-3", "MASK-4", "MASK-5", "MASK-6b", "MASK-7"}
    assert failed(report) == expected


def test_functions_with_attnspecs_signatures_are_judged_as_they_are():
    assert judge_all(foreign.load("attnspec"), cases=10).conforms()
    alone = judge_all(foreign.load("attnspec:attention"), cases=10)
    assert not failed(alone)
    assert not alone.by_clause()["SOFTMAX-3"].passed
    assert not alone.by_clause()["SOFTMAX-4"].passed


def test_a_parameter_that_a_signature_lacks_makes_calls_unsupported():
    subject = foreign.FunctionSubject("short", {"out": lambda q, k, v, *, mask=None: None}, "numpy")
    assert subject.supports(problem(scale=0.5)) == "short takes no scale"
    assert subject.supports(problem(mask=None)) is None


class Crashing(Faultless):
    def forward(self, call):
        raise KeyError("no such kernel")

    vjp = forward


class Careless(Faultless):
    """Forgets to make arrays of its answer."""

    capabilities = ("float64",)

    def forward(self, call):
        return Result(out=[1.0], dtype=call.dtype)


class Leaving(Faultless):
    def forward(self, call):
        raise SystemExit(0)

    supports = vjp = forward


class WithoutOutput(Faultless):
    def forward(self, call):
        return Result(lacks=frozenset({"out"})) if call.want == "out" else super().forward(call)


class WidensKeys:
    """A backend whose gradients of the keys come back in float64."""

    def __init__(self, backend):
        self.backend = backend

    def __getattr__(self, name):
        return getattr(self.backend, name)

    def vjp(self, function, *inputs):
        out, pull = self.backend.vjp(function, *inputs)

        def widened(cotangent):
            dq, dk, dv = pull(cotangent)
            return dq, dk.astype(np.float64), dv

        return out, widened


class Agreeable(Faultless):
    """Answers what it has to refuse."""

    def forward(self, call):
        result = super().forward(call)
        return Result(out=np.zeros((1,)), dtype=call.dtype) if result.error else result


class Idle(Faultless):
    def supports(self, call):
        return "on holiday"


class Boasting(Faultless):
    def supports(self, call):
        return "has no half types" if call.dtype in ("float16", "bfloat16") else None


class WithoutHalf(Boasting):
    capabilities = frozenset({"float64"})


def test_a_subject_that_raises_fails_and_the_run_goes_on():
    report = judge_all(Crashing(), LAWS.values(), clauses=["SCORE-3"])
    assert {entry.outcome for entry in report.entries} <= {"failed", "unsupported"}
    assert any("KeyError: 'no such kernel'" in entry.message for entry in report.entries)
    assert all(math.isinf(entry.worst) for entry in report.entries if entry.outcome == "failed")
    raised = [entry.message for entry in report.entries if entry.outcome == "failed"]
    assert all(re.search(r" \(meta_tests/test_foreign\.py:\d+\)$", message) for message in raised)


def test_a_subject_that_ends_the_program_fails_and_the_run_goes_on():
    subject = Leaving()
    asking = judge_all(subject, LAWS.values(), clauses=["SCORE-3"])
    subject.supports = lambda call: None
    answering = judge_all(subject, LAWS.values(), clauses=["SCORE-3"])
    for report in (asking, answering):
        assert {entry.outcome for entry in report.entries} <= {"failed", "unsupported"}
        assert any("SystemExit: 0" in entry.message for entry in report.entries)


def test_no_part_but_lse_may_be_lacking():
    report = judge_all(WithoutOutput(), LAWS.values(), clauses=["SHAPE-2"])
    assert failed(report) == {"SHAPE-2"}
    assert any("gives no out; only lse may be lacking" in entry.message for entry in report.entries)


def test_every_gradient_has_the_dtype_of_the_inputs():
    backend = placement.load("numpy")
    law = LAWS["gradients_are_those_of_the_formulas"]
    assert not failed(judge_all(BackendSubject(backend), [law]))
    messages = [entry.message for entry in judge_all(BackendSubject(WidensKeys(backend)), [law]).entries]
    assert all("float32 and float64 for float32 inputs" in message for message in messages)


def test_an_answer_that_is_no_array_fails_and_the_run_goes_on():
    report = judge_all(Careless(), LAWS.values(), clauses=["SCORE-3"])
    assert {entry.outcome for entry in report.entries} == {"failed", "unsupported"}


def test_a_subject_that_answers_what_it_has_to_refuse_fails():
    assert "SHAPE-1" in failed(judge_all(Agreeable(), LAWS.values(), clauses=["SHAPE-1"]))


def test_a_subject_that_supports_nothing_does_not_conform():
    report = judge_all(Idle(), LAWS.values())
    assert not failed(report)
    assert not report.conforms()


def test_a_declared_capability_that_is_denied_fails():
    lies = [entry.message for entry in judge_all(Boasting(), []).entries]
    assert len(lies) == 2
    assert all("half types" in lie for lie in lies)
    honest = judge_all(WithoutHalf(), LAWS.values())
    assert honest.conforms()
    assert "SCORE-2" not in honest.required


def test_known_failures_are_no_failures_until_they_pass():
    name = "axes_that_do_not_fit_are_refused_with_their_sizes"
    known = [KnownFailure(name, "todo", "ours to fix: later")]
    excused = judge_all(Agreeable(), [LAWS[name]], known=known)
    assert {entry.outcome for entry in excused.entries} == {"known"}
    assert not excused.conforms()
    mended = judge_all(Faultless(), [LAWS[name]], known=known)
    assert [entry.outcome for entry in mended.entries].count("failed") == 1
    assert "remove the entry" in mended.entries[-1].message


def test_the_worst_error_is_a_fraction_of_its_bound():
    report = judge_all(Faultless(), [LAWS["float32_is_accurate"]])
    assert 0 < report.by_clause()["SHAPE-3"].worst <= 1

    class Off(Faultless):
        def results(self, call, out, lse, weights, visible):
            return out + 1e-3, lse, weights

    assert 1 < judge_all(Off(), [LAWS["float32_is_accurate"]]).by_clause()["SHAPE-3"].worst < math.inf


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("no_such_module:thing", "cannot import no_such_module"),
        ("attnspec:nothing", "attnspec has no nothing"),
        ("math:pi", "float is no adapter"),
    ],
)
def test_a_spec_that_names_nothing_says_what_is_wrong(spec, words):
    with pytest.raises(ValueError, match=words):
        foreign.load(spec)
