"""What a subject is worth, clause by clause: one report for a live run and for answers that were read from files.

A trial is *passed* or *failed* by its judge; *unsupported* where the subject cannot express it; *known* where it fails
and the subject's own package says so; *not judged* where the subject was never asked. A subject *conforms* if no
trial of a clause that binds it failed, and every such clause that applies to it was passed at least once. REQUIRED
clauses bind everybody. EXTENDED ones bind backends, which have the portable implementation; of others they are
reported. A clause applies if some law of it needs no capability that the subject lacks: what half-precision types must
do is not asked of one that has none.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from .clauses import CLAUSES
from .drawn import CASES, drawn_laws
from .judges import asked
from .known_failures import KnownFailure
from .laws import LAWS
from .problems import normal, problem
from .subjects import NotJudgedError, Subject, UnsupportedError, put
from .trials import Call, Law, Trial, Verdict

Outcome = Literal["passed", "failed", "unsupported", "known", "not judged"]
OUTCOMES: tuple[Outcome, ...] = ("passed", "failed", "unsupported", "known", "not judged")
SCHEMA = 1

# Clauses about one part of an answer: a trial judges them only where it asks for the part and the subject gives it.
_ABOUT = {"SOFTMAX-3": "lse", "SOFTMAX-4": "weights"}


@dataclass(frozen=True, eq=False)
class Entry:
    """What became of one trial. `message` is the fault, or the reason; `worst` the error as a fraction of its bound."""

    law: str
    clauses: tuple[str, ...]
    trial: int
    outcome: Outcome
    message: str = ""
    worst: float = 0.0
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True)
class Tally:
    """How the trials of one clause ended. `reasons`: why trials were unsupported or not judged, the commonest first."""

    clause: str
    passed: int
    failed: int
    unsupported: int
    known: int
    not_judged: int
    worst: float
    reasons: tuple[str, ...]

    @property
    def outcome(self) -> Outcome:
        """The clause in a word: failed if any trial did, passed if any did, else what most of them are."""
        for name in ("failed", "passed", "known", "unsupported"):
            if getattr(self, name):
                return name
        return "not judged"


@dataclass(frozen=True, eq=False)
class Report:
    """All trials of a run. `clauses` are those asked about, `required` those that the subject has to pass.

    extended
        Whether EXTENDED clauses bind the subject too, so that their failures count.
    """

    subject: str
    seed: int
    cases: int
    capabilities: frozenset[str]
    clauses: tuple[str, ...]
    required: tuple[str, ...]
    entries: tuple[Entry, ...] = field(repr=False)
    extended: bool = False

    def by_clause(self) -> dict[str, Tally]:
        """A tally for each clause asked about, in the order of the specification."""
        return {clause: _tally(clause, [e for e in self.entries if clause in e.clauses]) for clause in self.clauses}

    def conforms(self) -> bool:
        """No binding trial failed, and each required clause was passed at least once.

        Asked about EXTENDED clauses alone, it has to pass some trial and to fail none.
        """
        tallies = self.by_clause()
        reached = all(tallies[clause].passed for clause in self.required)
        if not self.required:
            return not self.failed(self.clauses) and any(tally.passed for tally in tallies.values())
        return reached and not self.failed(self.binding)

    @property
    def binding(self) -> tuple[str, ...]:
        """The clauses whose failures count."""
        return tuple(c for c in self.clauses if self.extended or CLAUSES[c].level == "REQUIRED")

    def failed(self, clauses: Iterable[str]) -> bool:
        """Whether a trial of any of them failed."""
        about = set(clauses)
        return any(entry.outcome == "failed" and about.intersection(entry.clauses) for entry in self.entries)

    def to_json(self) -> dict[str, Any]:
        """Plain data for `json.dumps`. A worst error that no number can say, as of a missing answer, is None."""
        return {
            "schema": SCHEMA,
            "subject": self.subject,
            "seed": self.seed,
            "cases": self.cases,
            "capabilities": sorted(self.capabilities),
            "conforms": self.conforms(),
            "clauses": [_clause(tally, tally.clause in self.required) for tally in self.by_clause().values()],
            "entries": [
                {
                    "law": entry.law,
                    "clauses": list(entry.clauses),
                    "trial": entry.trial,
                    "outcome": entry.outcome,
                    "message": entry.message,
                    "worst": _finite(entry.worst),
                }
                for entry in self.entries
            ],
        }


def judge_all(
    subject: Subject,
    laws: Iterable[Law] | None = None,
    *,
    clauses: Iterable[str] | None = None,
    level: str | None = None,
    dtype: str | None = None,
    seed: int = 0,
    cases: int = CASES,
    known: Sequence[KnownFailure] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Put every trial to the subject.

    Parameters
    ----------
    laws
        What to judge by; by default every law, and `cases` calls drawn from the seed.
    clauses, level, dtype
        Only laws of these clauses, or of clauses of this level ("required" or "extended"), and only trials whose calls
        all have this dtype.
    known
        Laws that the subject's package says fail. One that passes all the same is a failure, so that its entry goes.
    progress
        Called with the number of trials done, and of all.
    """
    about = _asked(clauses, level)
    chosen = [*LAWS.values(), *drawn_laws(seed, cases)] if laws is None else list(laws)
    plan = [(law, trials) for law in chosen if (trials := _trials(law, about, dtype, subject))]
    excused = {entry.test: entry for entry in known}
    total, done = sum(len(trials) for _, trials in plan), 0
    entries = list(_lies(subject))
    for law, trials in plan:
        excuse = excused.get(law.name)
        of_law: list[Entry] = []
        for number, trial in trials:
            of_law += _entries(subject, law, number, trial, excuse)
            done += 1
            if progress is not None:
                progress(done, total)
        whole = len(trials) == len(law.all_trials)
        entries += of_law if excuse is None else _excused(of_law, excuse, whole)
    judged = {clause for law, _ in plan for clause in law.clauses if clause in about}
    has = frozenset(subject.capabilities)
    applying = {clause for law, _ in plan if law.needs <= has for clause in law.clauses if clause in about}
    return Report(
        subject=subject.name,
        seed=seed,
        cases=cases,
        capabilities=has,
        clauses=tuple(clause for clause in CLAUSES if clause in judged),
        required=tuple(c for c in CLAUSES if c in applying and CLAUSES[c].level == "REQUIRED"),
        entries=tuple(entries),
        extended=getattr(subject, "portable", False),
    )


def _asked(clauses: Iterable[str] | None, level: str | None) -> frozenset[str]:
    """The clauses that a run is about. Raises ValueError for one that does not exist."""
    named = list(CLAUSES if clauses is None else clauses)
    unknown = [name for name in named if name not in CLAUSES]
    if unknown:
        msg = f"{', '.join(unknown)}: no such clause; there are {', '.join(CLAUSES)}"
        raise ValueError(msg)
    if level is not None and level.upper() not in ("REQUIRED", "EXTENDED"):
        msg = f"level is 'required' or 'extended', got {level!r}"
        raise ValueError(msg)
    return frozenset(name for name in named if level is None or CLAUSES[name].level == level.upper())


def _trials(law: Law, about: frozenset[str], dtype: str | None, subject: Subject) -> list[tuple[int, Trial]]:
    """The trials of a law that are asked about. A compiled subject is asked one, since each is a compilation."""
    jitted = getattr(subject, "jitted", False)
    if about.isdisjoint(law.clauses) or (jitted and not law.jitted):
        return []
    numbered = list(enumerate(law.all_trials))[: 1 if jitted else None]
    return [
        (n, trial)
        for n, trial in numbered
        if not about.isdisjoint(trial.clauses or law.clauses)
        and (dtype is None or all(call.dtype == dtype for call in trial.calls))
    ]


def _entries(subject: Subject, law: Law, number: int, trial: Trial, known: KnownFailure | None) -> Iterator[Entry]:
    """The entry of a trial; a second one where it asks for a part that the subject does not give."""
    clauses = _concerned(trial, law)

    def entry(clauses: tuple[str, ...], outcome: Outcome, message: str = "", worst: float = 0.0) -> Entry:
        return Entry(law.name, clauses, number, outcome, message, worst, trial.calls)

    lacking = sorted(law.needs.difference(subject.capabilities))
    if known is not None and known.kind == "never":
        yield entry(clauses, "known", known.why)
        return
    if lacking:
        yield entry(clauses, "unsupported", f"{subject.name} does not declare {', '.join(lacking)}")
        return
    try:
        verdict, lacks = put(trial, subject)
    except UnsupportedError as reason:
        yield entry(clauses, "unsupported", str(reason))
        return
    except NotJudgedError as reason:
        yield entry(clauses, "not judged", str(reason))
        return
    unseen = tuple(clause for clause in clauses if _ABOUT.get(clause) in lacks)
    seen = tuple(clause for clause in clauses if clause not in unseen)
    if seen:
        yield entry(seen, *_outcome(verdict))
    if unseen:
        yield entry(unseen, "unsupported", f"it gives no {', '.join(sorted(lacks))}")


def _concerned(trial: Trial, law: Law) -> tuple[str, ...]:
    """The clauses of a trial, less those about a part that none of its calls asks for, unless it has no other."""
    parts = {part for call in trial.calls for part in asked(call)}
    parts |= {"lse" for call in trial.calls if call.dlse is not None}
    clauses = trial.clauses or law.clauses
    return tuple(clause for clause in clauses if _ABOUT.get(clause, "") in {"", *parts}) or clauses


def _outcome(verdict: Verdict) -> tuple[Outcome, str, float]:
    return ("passed", "", verdict.worst) if verdict.ok else ("failed", verdict.message, verdict.worst)


def _excused(entries: list[Entry], known: KnownFailure, whole: bool) -> list[Entry]:
    """Failures become known ones. A law that is known to fail and does not is a failure of its own."""
    if whole and all(entry.outcome == "passed" for entry in entries):
        message = f"passes, but known_failures.toml says that it fails ({known.why}): remove the entry"
        return [*entries, replace(entries[0], outcome="failed", message=message)]
    return [
        replace(entry, outcome="known", message=f"{known.why}: {entry.message}") if entry.outcome == "failed" else entry
        for entry in entries
    ]


def _lies(subject: Subject) -> Iterator[Entry]:
    """A failure for each capability that the subject declares and, asked the plainest call that needs it, denies."""
    if _denial(subject, problem()) is not None:
        return
    for capability, (clause, probe) in _PROBES.items():
        if capability in subject.capabilities and (reason := _denial(subject, probe)) is not None:
            message = f"declares {capability}, and does not support the plainest call that needs it: {reason}"
            yield Entry("a_declared_capability_is_there", (clause,), 0, "failed", message, math.inf, (probe,))


def _denial(subject: Subject, call: Call) -> str | None:
    try:
        return subject.supports(call)
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"


_PROBES = {
    **{dtype: ("SHAPE-3", problem(dtype=dtype)) for dtype in ("float64", "float16", "bfloat16")},
    "vjp": ("MASK-6c", problem(want="gradients", dout=normal(3, 2, 6, 5, 3))),
}


def _tally(clause: str, entries: list[Entry]) -> Tally:
    count = Counter(entry.outcome for entry in entries)
    reasons = Counter(entry.message for entry in entries if entry.outcome in ("unsupported", "not judged"))
    worst = max((entry.worst for entry in entries), default=0.0)
    numbers = {outcome.replace(" ", "_"): count[outcome] for outcome in OUTCOMES}
    return Tally(clause, **numbers, worst=worst, reasons=tuple(reason for reason, _ in reasons.most_common()))


def _clause(tally: Tally, required: bool) -> dict[str, Any]:
    return {
        "clause": tally.clause,
        "level": CLAUSES[tally.clause].level,
        "required": required,
        "outcome": tally.outcome,
        "passed": tally.passed,
        "failed": tally.failed,
        "unsupported": tally.unsupported,
        "known": tally.known,
        "not judged": tally.not_judged,
        "worst": _finite(tally.worst),
        "reasons": list(tally.reasons),
    }


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None
