"""Calls in files and answers from files: the same bytes everywhere, and the verdicts of a live run."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import attnspec_conformance.exchange as package
import jsonschema
import numpy as np
import pytest
import safetensors
from attnspec_conformance import exchange
from attnspec_conformance.clauses import CLAUSES
from attnspec_conformance.exchange import ExchangeError, tensors
from attnspec_conformance.exchange.calls import Export
from attnspec_conformance.problems import normal
from attnspec_conformance.trials import OF_SUBJECTS
from attnspec_conformance.verdict import judge_all
from distributions import code
from wrong import Faultless

from attnspec.registry import CAPABILITIES

CASES = 12
SHARD = {clause for clause in CLAUSES if clause.startswith("SHARD")}  # of those who divide calls
EXPORT = "from attnspec_conformance import exchange; exchange.export({!r}, seed=3, cases=12)"


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """An export of seed 3."""
    folder = tmp_path_factory.mktemp("exchange") / "calls"
    exchange.export(folder, seed=3, cases=CASES)
    return folder


@pytest.fixture(scope="module")
def answers(calls):
    """The answers of a faultless implementation, written as any program would."""
    folder = calls.parent / "answers"
    folder.mkdir()
    made, subject = Export.of(3, CASES), Faultless()
    for call in (call for law in made.laws for trial in law.all_trials for call in trial.calls):
        stem = folder / made.identifiers[id(call)]
        result = subject.vjp(call) if call.want == "gradients" else subject.forward(call)
        if result.error:
            stem.with_suffix(".json").write_text(json.dumps({"error": "refused", "reason": result.message}))
            continue
        parts = dict.fromkeys(("out", "weights", "dq", "dk", "dv"), result.dtype) | {"lse": result.lse_dtype}
        given = {part: (x, dtype) for part, dtype in parts.items() if (x := getattr(result, part)) is not None}
        stem.with_suffix(".safetensors").write_bytes(tensors.encode(given, {}))
    itself = {"name": "Faultless", "capabilities": ["float64", "float16", "bfloat16", "vjp", *OF_SUBJECTS]}
    (folder / "subject.json").write_text(json.dumps(itself))
    return folder


@pytest.fixture(scope="module")
def unspoilt(calls, answers):
    """The report on the answers as they are."""
    return exchange.judge(calls, answers)


@pytest.fixture
def copies(calls, answers, tmp_path):
    """Copies of both, to be spoilt."""
    return [Path(shutil.copytree(folder, tmp_path / folder.name)) for folder in (calls, answers)]


def outcomes(report):
    return [(entry.law, entry.trial, entry.clauses, entry.outcome) for entry in report.entries]


def test_an_export_has_the_same_bytes_in_every_process(calls, tmp_path):
    code(EXPORT.format(str(tmp_path / "again")))
    files = sorted(path.name for path in calls.iterdir())
    assert files == sorted(path.name for path in (tmp_path / "again").iterdir())
    for name in files:
        assert (calls / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name


def test_an_export_of_the_default_size_is_small(tmp_path):
    exchange.export(tmp_path / "calls")
    assert sum(path.stat().st_size for path in (tmp_path / "calls").iterdir()) < 20e6


def test_random_numbers_are_the_same_on_every_machine():
    """Literals, made once: integers from a counter, one rounded product, one rounding to the dtype."""
    assert normal(1, 3).tolist() == [-0.04759865254163742, 0.8851255774497986, 1.7878928184509277]
    assert normal(1, 2, dtype="float64").tolist() == [1.542125275304604, -0.7517671499858009]


def test_the_seed_draws_other_calls():
    first, other = (Export.of(seed, CASES).files for seed in (3, 4))
    assert set(first.values()) != set(other.values())


def schema(name):
    return json.loads((Path(package.__file__).parent / f"{name}.schema.json").read_text())


def test_tables_follow_the_published_schema(calls, answers):
    def validate(path, name):
        jsonschema.Draft202012Validator.check_schema(schema(name))
        jsonschema.Draft202012Validator(schema(name)).validate(json.loads(path.read_text()))

    validate(calls / "calls.json", "calls")
    validate(answers / "subject.json", "subject")
    validate(min(answers.glob("[0-9]*.json")), "answer")
    with pytest.raises(jsonschema.ValidationError):
        validate(answers / "subject.json", "calls")


def test_files_are_safetensors_with_bfloat16_kept(calls):
    table = json.loads((calls / "calls.json").read_text())
    half = next(call["id"] for call in table["calls"] if call["dtype"] == "bfloat16")
    content = (calls / f"{half}.safetensors").read_bytes()
    tensor = dict(safetensors.deserialize(content))["q"]
    assert tensor["dtype"] == "BF16"
    bits = np.frombuffer(tensor["data"], np.uint16).astype(np.uint32) << 16
    made = Export.of(3, CASES)
    asked = [call for law in made.laws for trial in law.all_trials for call in trial.calls]
    (exact, *_) = (call.q for call in asked if made.identifiers[id(call)] == half)
    np.testing.assert_array_equal(bits.view(np.float32).reshape(tensor["shape"]), exact)


def test_files_are_judged_as_a_live_subject_is(unspoilt):
    live = judge_all(Faultless(), Export.of(3, CASES).laws, seed=3, cases=CASES)
    assert outcomes(unspoilt) == outcomes(live)
    assert unspoilt.conforms() == live.conforms()
    worst = {clause: tally.worst for clause, tally in live.by_clause().items()}
    assert {clause: tally.worst for clause, tally in unspoilt.by_clause().items()} == worst


def test_a_missing_answer_is_not_judged(calls, copies):
    _, results = copies
    missing = min(results.glob("0*.safetensors"))
    missing.unlink()
    entries = exchange.judge(calls, results).entries
    reasons = {entry.message for entry in entries if entry.outcome == "not judged"}
    assert reasons == {f"no answer: {missing.name} is missing"}


def test_nothing_answered_is_nothing_judged(calls, tmp_path):
    report = exchange.judge(calls, tmp_path)
    assert {entry.outcome for entry in report.entries if "shards" not in entry.message} == {"not judged"}
    assert not report.conforms()


def worsened(before, report):
    """The entries that passed and now fail."""
    passed = {key[:3] for key in outcomes(before) if key[3] == "passed"}
    return [e for e in report.entries if e.outcome == "failed" and (e.law, e.trial, e.clauses) in passed]


def asking(calls, name):
    """The trials that ask a call."""
    table = json.loads((calls / "calls.json").read_text())
    return {(trial["law"], trial["trial"]) for trial in table["trials"] if name in trial["calls"]}


@pytest.mark.parametrize("content", [b"", b"\x08\0\0\0\0\0\0\0{}      x", None], ids=["empty", "torn", "integers"])
def test_an_answer_that_cannot_be_read_fails_by_name(calls, copies, unspoilt, content):
    _, results = copies
    broken = min(results.glob("0*.safetensors"))
    broken.write_bytes(tensors.encode({"out": (np.zeros((2, 6, 5, 3)), "int32")}, {}) if content is None else content)
    failed = worsened(unspoilt, exchange.judge(calls, results))
    assert {(entry.law, entry.trial) for entry in failed} == asking(calls, broken.stem)
    assert all(broken.name in entry.message for entry in failed)


@pytest.mark.parametrize("want", ["lse", "weights", "gradients"])
def test_an_answer_that_is_off_fails_the_trials_that_ask_it(calls, copies, unspoilt, want):
    _, results = copies
    table = json.loads((calls / "calls.json").read_text())
    first = next(call["id"] for call in table["calls"] if call["want"] == want)
    path = results / f"{first}.safetensors"
    arrays = tensors.decode(path.read_bytes())
    path.write_bytes(tensors.encode({name: (x + 1e-2, dtype) for name, (x, dtype) in arrays.items()}, {}))
    failed = worsened(unspoilt, exchange.judge(calls, results))
    assert {(entry.law, entry.trial) for entry in failed} == asking(calls, first)


def test_every_gradient_in_a_file_has_the_dtype_of_the_inputs(calls, copies, unspoilt):
    _, results = copies
    table = json.loads((calls / "calls.json").read_text())
    asked = [call["id"] for call in table["calls"] if (call["want"], call["dtype"]) == ("gradients", "float32")]
    (law,) = (one for one in Export.of(3, CASES).laws if one.name == "gradients_are_those_of_the_formulas")
    for name in asked:
        path = results / f"{name}.safetensors"
        arrays = {part: x for part, (x, _) in tensors.decode(path.read_bytes()).items()}
        dtypes = {"dq": "float32", "dk": "float64", "dv": "float32"}
        path.write_bytes(tensors.encode({part: (x, dtypes[part]) for part, x in arrays.items()}, {}))
    failed = [entry for entry in worsened(unspoilt, exchange.judge(calls, results)) if entry.law == law.name]
    assert len(failed) == len(law.all_trials)
    assert all("float32 and float64 for float32 inputs" in entry.message for entry in failed)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"capabilities": "vjp"}, "capabilities 'vjp', wanted a list of"),
        ({"capabilities": ["nonsense"]}, r"capabilities \['nonsense'\], wanted a list of float64, float16"),
        ({"capabilities": None}, "capabilities None"),
        ({"capabilities": 5}, "capabilities 5"),
        ({"capabilities": [["vjp"]]}, r"capabilities \[\['vjp'\]\]"),
        ({"lacks": ["out"]}, r"lacks \['out'\], wanted a list of lse"),
        ({"lacks": 5}, "lacks 5"),
        ({"name": 5}, "name 5, wanted a string"),
        ({"rounds_weights": "no"}, "rounds_weights 'no', wanted true or false"),
        ({"base_two": 1}, "base_two 1, wanted true or false"),
    ],
)
def test_what_a_program_may_not_say_of_itself_is_refused(calls, tmp_path, said, words):
    path = tmp_path / "subject.json"
    path.write_text(json.dumps(said))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(said, schema("subject"))
    with pytest.raises(ExchangeError, match=f"subject.json has {words}"):
        exchange.judge(calls, tmp_path)


def test_a_program_may_have_every_capability_that_laws_need(calls, tmp_path):
    needed = {need for law in Export.of(3, CASES).laws for need in law.needs}
    said = {"capabilities": sorted(needed)}
    jsonschema.validate(said, schema("subject"))
    (tmp_path / "subject.json").write_text(json.dumps(said))
    assert exchange.judge(calls, tmp_path).capabilities == needed <= {*CAPABILITIES, *OF_SUBJECTS}


def test_answers_are_read_from_a_folder_that_is_there(calls, tmp_path):
    with pytest.raises(ExchangeError, match="absent is no folder"):
        exchange.judge(calls, tmp_path / "absent")


def test_calls_that_were_changed_are_refused(copies):
    folder, results = copies
    first = folder / "00000.safetensors"
    content = first.read_bytes()
    first.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ExchangeError, match=r"00000.safetensors is changed"):
        exchange.judge(folder, results)
    first.write_bytes(content)
    table = json.loads((folder / "calls.json").read_text())
    for change in ({"seed": 5}, {"schema": 9}, {"calls": table["calls"][1:]}):
        (folder / "calls.json").write_text(json.dumps(table | change))
        with pytest.raises(ExchangeError, match=r"calls.json"):
            exchange.judge(folder, results)


def test_calls_are_exported_into_a_folder_of_their_own(calls):
    with pytest.raises(ExchangeError, match="not empty"):
        exchange.export(calls)


COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
def test_a_program_in_c_conforms(calls, tmp_path):
    source = Path(__file__).parents[1] / "examples" / "naive_attention.c"
    program, results = tmp_path / "naive", tmp_path / "answers"
    results.mkdir()
    options = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([COMPILER, *options, "-o", str(program), str(source), "-lm"], check=True)
    subprocess.run([str(program), str(calls), str(results)], check=True)
    report = exchange.judge(calls, results)
    assert [entry.message for entry in report.entries if entry.outcome == "failed"] == []
    assert report.conforms()
    assert report.subject == "naive attention in C"
    assert {clause for clause, tally in report.by_clause().items() if not tally.passed} == {"MASK-6c", *SHARD}
