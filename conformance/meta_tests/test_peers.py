"""The table of peers: what a cell says follows from what was found, and the pages from the data."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import wrong
from attnspec_conformance.laws import LAWS
from attnspec_conformance.verdict import judge_all

PEERS = Path(__file__).parents[1] / "peers"
sys.path.append(str(PEERS))

import catalogue  # noqa: E402  after the path to them
import cells  # noqa: E402
import choosing  # noqa: E402
import tables  # noqa: E402

PEER = catalogue.Peer("a.peer", "a", "A peer", "a_subjects:peer", "https://example.org", ("numpy",), {}, {})
CHOICES = catalogue.Choices({"open": {"MASK-5": "a choice"}}, {})


class BlindToEmptyRows(wrong.Faultless):
    """Gives the mean of v where no key is visible, and takes no sink."""

    def supports(self, call):
        return None if call.sink is None else "it takes no sink"

    def results(self, call, out, lse, weights, visible):
        return out + (~visible.any(-1))[..., None], lse, weights


@pytest.fixture(scope="module")
def report():
    return judge_all(BlindToEmptyRows(), LAWS.values(), clauses=["MASK-5", "SCORE-1", "SOFTMAX-2"])


def cell(report, clause, peer=PEER, choices=CHOICES, left=lambda entry, named: entry.message):
    return cells.cells(report, peer, choices, lambda entry: f"ask {entry.law}", left)[clause]


def test_a_fault_is_a_difference_where_the_clause_is_a_choice(report):
    found = cell(report, "MASK-5")
    assert found["verdict"] == "differs"
    assert found["why different"] == ["a choice"]
    assert found["difference"]["code"].startswith("ask ")
    assert "fault" not in found


def test_a_fault_fails_where_the_clause_is_no_choice(report):
    found = cell(report, "MASK-5", choices=catalogue.Choices({}, {}))
    assert found["verdict"] == "fails"
    assert found["failed"] == cell(report, "MASK-5")["differed"] > 0
    assert found["fault"]["message"]


def test_what_a_documentation_promises_is_no_choice(report):
    assert cell(report, "MASK-5", replace(PEER, promises={"MASK-5": "it says so"}))["verdict"] == "fails"


def test_a_documented_difference_excuses_its_law_alone(report):
    failed = {entry.law for entry in report.entries if entry.outcome == "failed"}
    assert len(failed) > 1
    one = min(failed)
    found = cell(report, "MASK-5", replace(PEER, differs={one: "documented"}), choices=catalogue.Choices({}, {}))
    assert found["verdict"] == "fails"
    assert found["why different"] == ["documented"]
    assert found["difference"]["law"] == one != found["fault"]["law"]


def test_what_was_passed_holds_and_what_could_not_be_asked_cannot_be_said(report):
    assert cell(report, "SCORE-1")["verdict"] == "holds"
    found = cell(report, "SOFTMAX-2")
    assert found["verdict"] == "cannot"
    assert found["why unsupported"] == ["it takes no sink"]


def test_rows_without_keys_make_no_trial_of_another_clause_a_fault_where_they_are_a_choice():
    law = LAWS["causal_sees_one_more_key_with_each_query"]
    report = judge_all(BlindToEmptyRows(), [law])
    free = catalogue.Choices({}, {"MASK-5": "rows"})
    found = cell(report, "MASK-4", choices=free, left=left_of(BlindToEmptyRows()))
    assert found["verdict"] == "differs"
    assert found["why different"] == ["rows"]
    promising = replace(PEER, promises={"MASK-5": "it says so"})
    assert cell(report, "MASK-4", promising, free, left_of(BlindToEmptyRows()))["verdict"] == "fails"


@pytest.mark.parametrize(
    ("name", "verdict"),
    [("MaskedNaNLeaks", "differs"), ("NaNInOneColumnOnly", "differs"), ("NaNTurnsIntoANumber", "fails")],
)
def test_nan_that_leaks_or_keeps_to_its_column_is_a_choice_and_nan_that_is_lost_is_a_fault(name, verdict):
    subject = wrong.CATALOGUE[name][0]()
    report = judge_all(subject, [LAWS["a_visible_nan_reaches_exactly_the_rows_that_see_it"]])
    assert report.by_clause()["MASK-7"].failed
    free = catalogue.Choices({}, {"MASK-6b": "leaks", "MASK-7": "columns"})
    assert cell(report, "MASK-7", choices=free, left=left_of(subject))["verdict"] == verdict


def left_of(subject):
    def left(entry, named):
        trial = LAWS[entry.law].all_trials[entry.trial]
        return choosing.left(trial, choosing.results_of(trial, subject), named)

    return left


class Garbage(wrong.Faultless):
    """7 for half types, for leading axes that broadcast, and for rank 2."""

    def results(self, call, out, lse, weights, visible):
        lead = {x.shape[:-3] for x in (call.q, call.k, call.v)}
        odd = call.dtype in ("float16", "bfloat16") or len(lead) > 1 or call.q.ndim == 2
        return np.full_like(out, 7.0) if odd else out, lse, weights


@pytest.mark.parametrize(
    "name",
    [
        "float16_is_computed_in_float32_and_rounded_once",
        "leading_axes_broadcast_from_the_right",
        "rank_two_is_one_head_without_batch",
    ],
)
def test_a_choice_excuses_no_wrong_number(name):
    report = judge_all(Garbage(), [LAWS[name]])
    (clause,) = LAWS[name].clauses
    assert cell(report, clause, choices=catalogue.choices(), left=left_of(Garbage()))["verdict"] == "fails"


class RoundsSteps(wrong.Faultless):
    """Weights and output are rounded to the dtype of a half-precision call."""

    def results(self, call, out, lse, weights, visible):
        if call.dtype not in ("float16", "bfloat16"):
            return out, lse, weights
        digits = {"float16": 2.0**10, "bfloat16": 2.0**7}[call.dtype]
        return np.round(out * digits) / digits, lse, np.round(weights * digits) / digits


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_few_roundings_to_half_are_a_choice_unless_they_are_promised_not_to_be(dtype):
    name = f"{dtype}_is_computed_in_float32_and_rounded_once"
    report = judge_all(RoundsSteps(), [LAWS[name]])
    free = catalogue.choices()
    assert cell(report, "SHAPE-3", choices=free, left=left_of(RoundsSteps()))["verdict"] == "differs"
    promising = replace(PEER, promises={"SHAPE-3": "it says so"})
    assert cell(report, "SHAPE-3", promising, free, left_of(RoundsSteps()))["verdict"] == "fails"


def test_every_failed_trial_is_counted_once():
    report = judge_all(BlindToEmptyRows(), cases=30)
    found = cells.cells(report, PEER, catalogue.Choices({}, {}), lambda entry: "")
    for clause, tally in report.by_clause().items():
        counted = found[clause]
        assert counted["failed"] + counted["differed"] + counted["of other clauses"] == tally.failed
    assert any(x["of other clauses"] and "MASK-5" in x["other clauses"] for x in found.values())


def test_a_difference_that_is_claimed_and_not_there_is_stale(report):
    assert cells.stale(report, replace(PEER, differs={"MASK-5": "documented"})) == []
    assert cells.stale(report, replace(PEER, differs={"SCORE-1": "documented"})) == ["SCORE-1"]


def test_a_claim_needs_a_reason_and_a_name_that_exists(tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue, "LIBRARIES", tmp_path)
    peer = '["a.peer"]\ntitle="A"\nsubject="a:b"\ndocumentation="https://example.org"\ndistributions=["numpy"]\n'
    (tmp_path / "a").mkdir()

    def read(claims):
        (tmp_path / "a" / "peers.toml").write_text(peer + claims, "utf-8")
        return catalogue.peers("a")

    assert read('differs={"MASK-5"="documented"}\n')[0].differs == {"MASK-5": "documented"}
    for claims, words in {
        'differs={"MASK-99"="documented"}\n': "neither a clause nor a law",
        'differs={"MASK-5"=" "}\n': "no reason for MASK-5",
        'differs={"MASK-5"="a"}\npromises={"MASK-5"="b"}\n': "both differs and is promised",
        'colour="red"\n': "has title, subject, documentation, distributions, colour",
    }.items():
        with pytest.raises(ValueError, match=words):
            read(claims)


def test_every_peer_is_described_pinned_and_judged():
    judged = json.loads((tables.DOCS / "peers.json").read_text("utf-8"))["peers"]
    described = [peer for library in catalogue.libraries() for peer in catalogue.peers(library)]
    assert [peer.name for peer in described] == list(judged)
    assert len({json.dumps(found["suite"]) for found in judged.values()}) == 1
    for peer in described:
        assert judged[peer.name]["suite"]["laws"] == len(catalogue.ASKED)
        folder = catalogue.LIBRARIES / peer.library
        assert (folder / f"{peer.subject.partition(':')[0]}.py").is_file()
        pins = (folder / "constraints.txt").read_text("utf-8").splitlines()
        assert all(re.fullmatch(r"[\w.\-]+(\[[\w,]+\])?==[\w.]+|#.*|", pin) for pin in pins)
        for distribution, version in judged[peer.name]["versions"].items():
            assert f"{distribution}=={version.partition('+')[0]}" in {re.sub(r"\[.*\]", "", pin) for pin in pins}


def test_every_choice_is_one_that_a_law_asks_about():
    choices = catalogue.choices()
    assert choices.trials.keys() == cells.ALLOWS.keys()
    for table in (*choices.trials.values(), choices.rows):
        for name in table:
            assert name in LAWS or any(name in law.clauses for law in LAWS.values())


def test_the_pages_say_what_the_data_say(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tables.py", "--check"])
    assert tables.main() == 0


@pytest.mark.parametrize("name", ["peers.md", "peers.html", "peers.json"])
def test_no_folder_of_a_machine_stands_in_the_pages(name):
    assert not re.search(r"\(/[^)\s]+:\d+\)", (tables.DOCS / name).read_text("utf-8"))
