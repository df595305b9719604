"""`attnspec conformance`: verdicts, reports, reproductions that fail again, and what its exit code means."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from textwrap import dedent
from xml.etree import ElementTree

import jsonschema
import pytest
from attnspec_conformance import reports
from attnspec_conformance.clauses import CLAUSES

CONFORMS, FAILS, COULD_NOT_RUN = 0, 1, 2

KERNELS = """
    from itertools import count

    import attnspec

    calls = count()
    attention, attention_with_lse = attnspec.attention, attnspec.attention_with_lse
    attention_weights = attnspec.attention_weights

    def sees_one_key_more(q, k, v, *, mask=None, **options):
        if isinstance(mask, type(attnspec.causal())):
            mask = attnspec.causal(mask.offset + 1, align=mask.align)
        return attention(q, k, v, mask=mask, **options)

    def leaks(q, k, v, **options):
        return attention(q, k, v, **options) + 0 * k[..., -1:, :1]

    def gives_up(q, k, v):
        raise RuntimeError("not today")

    def refuses_nothing(q, k, v, **options):
        try:
            return attention(q, k, v, **options)
        except ValueError:
            return q

    def leaves(q, k, v, **options):
        raise SystemExit(0)

    def uneven(q, k, v, **options):
        return attention(q, k, v, **options) * q.dtype.type(1 + 1.2e-7 * (next(calls) % 2))

    class Nothing:
        name, capabilities = "nothing", frozenset()

        def supports(self, call):
            return "this is too hard"

        def forward(self, call):
            raise NotImplementedError

    number = 7
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with kernels that are no part of attnspec."""
    (tmp_path / "kernels.py").write_text(dedent(KERNELS))
    (tmp_path / "broken.py").write_text("raise RuntimeError('no such GPU')\n")
    (tmp_path / "leaving.py").write_text("raise SystemExit(0)\n")
    return tmp_path


def command(folder, *arguments, **options):
    environment = os.environ | {"COLUMNS": "200"}
    program = [sys.executable, "-m", "attnspec", "conformance", *arguments]
    return subprocess.run(program, cwd=folder, env=environment, text=True, timeout=300, **options)


def run(folder, *arguments, code):
    done = command(folder, *arguments, capture_output=True)
    assert code in (None, done.returncode), done.stdout + done.stderr
    return done


def judged(folder, *arguments, code):
    """What was printed, and the one report of the JSON document, which is found to follow the schema."""
    done = run(folder, *arguments, "--json", "report.json", code=code)
    document = json.loads((folder / "report.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(reports.schema())
    jsonschema.validate(document, reports.schema())
    (report,) = document["reports"]
    assert document["conforms"] == report["conforms"] == (done.returncode == CONFORMS)
    return done, report


def counts(report):
    return {clause["clause"]: clause for clause in report["clauses"]}


def test_a_backend_is_judged_by_its_laws_and_its_component_tests(name, folder):
    asked = ("--clause", "NORM-2", "--clause", "MASK-1", "--cases", "3", "--seed", "5")
    done, report = judged(folder, "--backend", name, *asked, code=CONFORMS)
    assert (report["subject"], report["seed"], report["cases"]) == (name, 5, 3)
    assert set(counts(report)) == {"NORM-2", "MASK-1"}
    laws = {entry["law"] for entry in report["entries"]}
    assert "true_means_may_attend" in laws
    assert any(law.startswith("attnspec_conformance.test_norm::") for law in laws)
    assert counts(report)["MASK-1"]["worst"] > 0
    assert re.search(r"NORM-2 +required +\d+", done.stdout)
    assert f"{name} conforms: 2 of 2 required clauses hold" in done.stdout


def test_a_faulty_kernel_does_not_conform_and_the_clause_is_named(folder):
    done, report = judged(folder, "--subject", "kernels:sees_one_key_more", "--clause", "MASK-4", code=FAILS)
    assert counts(report)["MASK-4"]["outcome"] == "failed"
    assert "kernels:sees_one_key_more does not conform: " in done.stdout
    assert "1 failed (MASK-4)" in done.stdout


@pytest.mark.parametrize(
    ("kernel", "clause"),
    [
        ("sees_one_key_more", "MASK-4"),
        ("leaks", "MASK-6"),
        ("gives_up", "SHAPE-2"),
        ("leaves", "SHAPE-2"),
        ("refuses_nothing", "MASK-2"),
    ],
)
def test_a_printed_reproduction_fails_again_when_it_is_run(folder, kernel, clause):
    done, report = judged(folder, "--subject", f"kernels:{kernel}", "--clause", clause, code=FAILS)
    assert report["reproductions"]
    for reproduction in report["reproductions"]:
        code = reproduction["code"]
        assert code in done.stdout
        assert len(code.splitlines()) <= 14
        again = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60)
        assert again.returncode == 1
        assert "AssertionError: " in again.stderr, again.stderr


def test_a_reproduction_of_one_wrong_answer_is_as_small_as_can_be(folder):
    _, report = judged(folder, "--subject", "kernels:sees_one_key_more", "--clause", "MASK-4", code=FAILS)
    (reproduction,) = report["reproductions"]
    assert 'k=np.full((2, 1), 0.0, "float32")' in reproduction["code"]
    assert "mask=masks.Causal" in reproduction["code"]


def test_a_subject_that_supports_nothing_does_not_conform(folder):
    done, report = judged(folder, "--subject", "kernels:Nothing", "--level", "required", code=FAILS)
    assert {clause["outcome"] for clause in report["clauses"]} == {"unsupported"}
    assert {reason for clause in report["clauses"] for reason in clause["reasons"]} >= {"this is too hard"}
    assert "nothing does not conform: 0 of " in done.stdout
    assert not report["reproductions"]


def test_a_level_leaves_the_clauses_of_the_other_out(folder):
    asked = ("--subject", "kernels:attention", "--clause", "MASK-6")
    required = judged(folder, *asked, "--level", "required", code=CONFORMS)[1]
    extended = judged(folder, *asked, "--level", "extended", code=None)[1]
    assert set(counts(required)) == {"MASK-6a"}
    assert "MASK-6a" not in counts(extended)


def test_a_dtype_leaves_the_calls_of_others_out(folder):
    asked = ("--subject", "kernels:attention", "--clause", "SHAPE-3", "--cases", "0")
    every, half = (
        counts(judged(folder, *asked, *more, code=CONFORMS)[1])["SHAPE-3"]["passed"]
        for more in ((), ("--dtype", "float16"))
    )
    assert 0 < half < every


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--backend", "mlx9"), "no backend named 'mlx9'"),
        (("--backend", "numpy", "--device", "tpu:7"), "numpy has no device 'tpu:7'"),
        (("--clause", "MASK-9"), "no clause 'MASK-9'"),
        (("--level", "desired"), "no level 'desired'"),
        (("--dtype", "int8"), "no dtype 'int8'"),
        (("--subject", "nowhere:thing"), "nowhere"),
        (("--subject", "broken:thing"), "no such GPU"),
        (("--subject", "kernels:absent"), "absent"),
        (("--subject", "kernels:number"), "number"),
        (("--subject", "kernels:leaks", "--backend", "numpy"), "--subject without --backend"),
        (("--subject", "leaving:thing"), "SystemExit: 0"),
        (("--level", "REQUIRED", "--clause", "mask-6b"), "none of MASK-6b is REQUIRED"),
        (("--subject", "kernels:attention", "--clause", "LOSS"), "no law asks it about LOSS-1"),
        (("--subject", "kernels:attention", "--clause", "SHAPE-3", "--json", "absent/x"), "--json absent/x"),
        (("--subject", "kernels:attention", "--clause", "SHAPE-3", "--html", "absent/x"), "--html absent/x"),
        (("--subject", "kernels:attention", "--clause", "SHAPE-3", "--junit-xml", "absent/x"), "--junit-xml absent/x"),
        (("judge", "nowhere", "results"), "nowhere"),
        (("judge", "nowhere", "results", "--json", "absent/x"), "--json absent/x"),
    ],
)
def test_what_cannot_be_run_is_one_line_and_no_verdict(folder, arguments, says):
    done = run(folder, *arguments, code=COULD_NOT_RUN)
    assert done.stdout == ""
    assert done.stderr.startswith("attnspec: ")
    assert done.stderr.count("\n") == 1
    assert says in done.stderr


def test_a_run_in_which_nothing_is_asked_is_no_verdict(folder):
    asked = ("--subject", "kernels:attention", "--clause", "SCORE-1", "--dtype", "float16", "--cases", "0")
    done = run(folder, *asked, code=COULD_NOT_RUN)
    assert done.stdout == ""
    assert "kernels:attention: no law asks it about SCORE-1 in float16" in done.stderr


def test_an_exit_while_the_suite_is_loaded_is_no_verdict(folder):
    (folder / "hypothesis.py").write_text("raise SystemExit(0)\n")
    done = run(folder, "--subject", "kernels:attention", code=COULD_NOT_RUN)
    assert done.stderr == "attnspec: something ended the run with SystemExit(0)\n"


def test_an_option_that_does_not_exist_is_no_verdict(folder):
    assert "--klause" in run(folder, "--klause", "MASK", code=COULD_NOT_RUN).stderr


@pytest.mark.parametrize("library", ["pytest", "hypothesis", "mpmath"])
def test_without_the_suites_libraries_the_command_says_what_to_install(folder, library):
    program = f"import sys; sys.modules[{library!r}] = None; from attnspec.cli import main; main()"
    arguments = [sys.executable, "-c", program, "conformance", "--backend", "numpy"]
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == COULD_NOT_RUN
    assert done.stderr.endswith(
        f"the suite needs {library!r}, which is not installed: pip install 'attnspec[conformance]'\n"
    )


def test_junit_xml_has_a_case_for_every_trial(folder):
    asked = ("--subject", "kernels:leaks", "--clause", "MASK", "--cases", "9")
    _, report = judged(folder, *asked, "--junit-xml", "junit.xml", code=FAILS)
    (suite,) = ElementTree.parse(folder / "junit.xml").getroot()
    cases = list(suite)
    outcomes = [entry["outcome"] for entry in report["entries"]]
    assert len(cases) == len(outcomes) == int(suite.get("tests"))
    assert sum(case.find("failure") is not None for case in cases) == outcomes.count("failed")
    assert int(suite.get("failures")) == outcomes.count("failed")
    skipped = len(outcomes) - outcomes.count("failed") - outcomes.count("passed")
    assert sum(case.find("skipped") is not None for case in cases) == skipped == int(suite.get("skipped"))
    assert any("np.array" in (case.findtext("failure") or "") for case in cases)


def test_the_page_needs_nothing_but_itself_and_says_all(folder):
    _, report = judged(folder, "--subject", "kernels:leaks", "--clause", "MASK", "--html", "page.html", code=FAILS)
    text = (folder / "page.html").read_text("utf-8")
    assert not re.search(r"https?://|src=|href=|@import|url\(|<script", text)
    assert "prefers-color-scheme: dark" in text
    for name in counts(report):
        assert name in text
        assert CLAUSES[name].sentence.split("(")[0][:20] in text
    assert text.count("<pre>") == len(report["reproductions"])


def test_calls_are_exported_and_answers_from_files_are_judged(folder):
    assert "attnspec conformance judge calls RESULTS" in run(folder, "export", "calls", "--cases", "2", code=0).stdout
    again = run(folder, "export", "calls", code=COULD_NOT_RUN)
    assert "not empty" in again.stderr
    assert "results is no folder" in run(folder, "judge", "calls", "results", code=COULD_NOT_RUN).stderr
    (folder / "results").mkdir()
    _, report = judged(folder, "judge", "calls", "results", code=FAILS)
    assert {clause["outcome"] for clause in report["clauses"]} <= {"not judged", "unsupported"}
    assert report["cases"] == 2


def test_a_terminal_gets_a_bar_and_a_file_plain_lines(folder):
    asked = ("--subject", "kernels:attention", "--clause", "MASK-1")
    plain = run(folder, *asked, code=CONFORMS).stderr
    assert re.fullmatch(r"kernels:attention: laws: \d+ done\n", plain)
    ours, theirs = pty.openpty()
    command(folder, *asked, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    drawn = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "\x1b[" in drawn
    assert re.search(r"laws.*\d+/\d+", drawn)


def test_where_no_call_is_wrong_by_itself_the_reproduction_is_the_trial(folder):
    """Answers that are all within their bounds, and differ from each other in the last bit."""
    _, report = judged(folder, "--subject", "kernels:uneven", "--clause", "DROPOUT-1", "--cases", "0", code=FAILS)
    (reproduction,) = report["reproductions"]
    assert "laws.LAWS[" in reproduction["code"]
    again = subprocess.run(
        [sys.executable, "-c", reproduction["code"]], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert again.returncode == 1
    assert "AssertionError: call 1: out" in again.stderr
