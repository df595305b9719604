"""The plug-in judged: marks, capabilities, known failures, and what it says at the end."""

from __future__ import annotations

import json
import re
from textwrap import dedent

import pytest
from attnspec_conformance.clauses import CLAUSES
from distributions import backend, suite

TESTS = """
    import pytest

    @pytest.mark.clause("NORM-1")
    def test_passes(backend):
        assert backend.name == "fake"

    @pytest.mark.clause("NORM-2")
    def test_fails(backend):
        assert False

    @pytest.mark.clause("MASK-1")
    @pytest.mark.needs("vmap")
    def test_needs(backend):
        assert False
"""


@pytest.fixture
def root(tmp_path):
    return backend(tmp_path, "fake")


def run(root, *args, tests=TESTS, known=None):
    (root / "test_some.py").write_text(dedent(tests))
    if known is not None:
        (root / "attnspec_fake" / "known_failures.toml").write_text(dedent(known))
    return suite(root, str(root / "test_some.py"), *args)


def test_the_end_of_a_run_says_what_became_of_each_clause(root):
    done = run(root)
    assert done.returncode == 1
    of = len(CLAUSES)
    assert f"fake: 1 passed, 1 failed, 0 known, 1 unsupported, {of - 3} not judged, of {of} clauses" in done.stdout
    assert "failed: NORM-2" in done.stdout
    assert "unsupported: MASK-1" in done.stdout
    assert re.search(r"not judged: .*MASK-6b \(E\)", done.stdout)
    assert "fake does not declare vmap" in done.stdout
    known = run(root, known='[test_fails]\nkind = "todo"\nreason = "not yet"\n')
    assert "known: NORM-2" in known.stdout
    never = run(root, known='[test_fails]\nkind = "never"\nreason = "another design"\n')
    assert "known: NORM-2" in never.stdout


def test_the_clauses_and_the_level_that_are_asked_about_choose_the_tests(root):
    extended = (
        TESTS
        + """
    @pytest.mark.clause("MASK-6b", "NORM-1")
    def test_extended(backend):
        pass
"""
    )
    norms = run(root, "--attnspec-clause", "NORM", tests=extended)
    assert "1 failed, 2 passed, 1 deselected" in norms.stdout
    assert "of 2 clauses" in norms.stdout
    one = run(root, "--attnspec-clause", "NORM-1", "--attnspec-level", "required", tests=extended)
    assert "2 passed, 2 deselected" in one.stdout
    assert "1 passed, 1 skipped, 2 deselected" in run(root, "--attnspec-clause", "MASK", tests=extended).stdout
    assert "1 passed, 3 deselected" in run(root, "--attnspec-level", "extended", tests=extended).stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--attnspec-clause", "MASK-9"), "no clause 'MASK-9'; there are SHAPE-1, "),
        (("--attnspec-level", "desired"), "no level 'desired'; choose one of required, extended"),
        (("--attnspec-clause", "NORM-1", "--attnspec-level", "extended"), "none of NORM-1 is EXTENDED"),
        (("--attnspec-subject", "nowhere:attention"), "nowhere"),
    ],
)
def test_an_option_that_means_nothing_stops_the_run(root, arguments, says):
    done = run(root, *arguments)
    assert done.returncode == 4
    assert says in done.stderr


def test_the_report_of_a_run_is_written_to_files(root):
    done = run(root, "--attnspec-json", str(root / "a.json"), "--attnspec-html", str(root / "a.html"))
    assert done.returncode == 1
    document = json.loads((root / "a.json").read_text("utf-8"))
    (report,) = document["reports"]
    outcomes = {entry["law"]: entry["outcome"] for entry in report["entries"]}
    assert outcomes == {
        "test_some::test_passes[fake]": "passed",
        "test_some::test_fails[fake]": "failed",
        "test_some::test_needs[fake]": "unsupported",
    }
    assert not document["conforms"]
    assert "NORM-2" in (root / "a.html").read_text("utf-8")


def test_arrays_are_made_on_the_device_that_was_asked_for(root):
    more = """
        def asarray(x, *, dtype=None, device=None, made=asarray):
            assert device == "cpu"
            return made(x, dtype=dtype)
    """
    with (root / "attnspec_fake" / "backend.py").open("a") as module:
        module.write(dedent(more))
    law = ("--pyargs", "attnspec_conformance", "-k", "true_means_may_attend or test_norm")
    done = suite(root, *law, "-v", "--attnspec-device", "cpu")
    assert done.returncode == 0, done.stdout
    assert "attnspec backends: fake (attnspec-fake 1.0), on cpu" in done.stdout
    unknown = suite(root, *law, "--attnspec-device", "tpu:7")
    assert unknown.returncode == 4
    assert "fake has no device 'tpu:7'; it has cpu" in unknown.stderr


@pytest.mark.parametrize("mark", ['clause("NORM-9")', 'needs("levitation")'])
def test_a_mark_that_names_nothing_stops_the_run(root, mark):
    done = run(root, tests=f"import pytest\n@pytest.mark.{mark}\ndef test_some(backend):\n    pass\n")
    assert done.returncode == 4
    assert mark.split('"')[1] in done.stderr


def test_an_unknown_mark_stops_the_run(root):
    done = run(root, tests="import pytest\n@pytest.mark.claus('NORM-1')\ndef test_some(backend):\n    pass\n")
    assert done.returncode != 0
    assert "claus" in done.stdout + done.stderr


def test_a_known_failure_is_expected(root):
    known = '[test_fails]\nkind = "todo"\nreason = "not yet"\n'
    done = run(root, known=known)
    assert done.returncode == 0
    assert "ours to fix: not yet" in done.stdout
    upstream = '[test_fails]\nkind = "upstream"\nreason = "theirs"\nlink = "https://example.org/1"\n'
    assert "theirs to fix: theirs (https://example.org/1)" in run(root, known=upstream).stdout


def test_a_known_failure_that_passes_shouts(root):
    known = '[test_passes]\nkind = "todo"\nreason = "not yet"\n[test_fails]\nkind = "never"\nreason = "no"\n'
    done = run(root, known=known)
    assert done.returncode == 1
    assert "XPASS(strict)" in done.stdout


def test_what_never_will_is_skipped(root):
    done = run(root, known='[test_fails]\nkind = "never"\nreason = "another design"\n')
    assert done.returncode == 0
    assert "by design: another design" in done.stdout


@pytest.mark.parametrize(
    "entry",
    [
        'kind = "someday"\nreason = "x"',
        'kind = "todo"',
        'kind = "todo"\nreason = ""',
        'kind = "upstream"\nreason = "no link"',
        'kind = "todo"\nreason = "x"\nlink = "https://example.org"',
    ],
)
def test_an_entry_that_says_too_little_stops_the_run(root, entry):
    done = run(root, known=f"[test_fails]\n{entry}\n")
    assert done.returncode == 4
    assert "test_fails" in done.stderr


def test_an_entry_without_a_test_stops_a_run_of_the_whole_suite_only(root):
    known = '[masked_keys_cannot_be_observde]\nkind = "todo"\nreason = "a typing error"\n'
    assert run(root, known=known, tests=TESTS.replace("assert False", "pass")).returncode == 0
    whole = suite(root, "--pyargs", "attnspec_conformance", "--collect-only")
    assert whole.returncode == 4
    assert "masked_keys_cannot_be_observde" in whole.stderr
    part = suite(root, "--pyargs", "attnspec_conformance", "--collect-only", "-k", "true_means_may_attend")
    assert part.returncode == 0


def test_a_law_is_a_known_failure_by_its_name(root):
    text = '[true_means_may_attend]\nkind = "never"\nreason = "false means attend here"\n'
    (root / "attnspec_fake" / "known_failures.toml").write_text(text)
    done = suite(root, "--pyargs", "attnspec_conformance", "-k", "true_means_may_attend")
    assert done.returncode == 0
    assert "false means attend here" in done.stdout


@pytest.mark.parametrize("capability", ["jit", "vmap", "vjp"])
def test_a_capability_that_is_declared_and_missing_fails(tmp_path, capability):
    backend(tmp_path, "fake", ("known_shapes", capability))
    done = suite(tmp_path, "--pyargs", "attnspec_conformance", "-k", "test_transforms and not subject")
    assert done.returncode == 1
    assert "test_optional_parts_are_there_if_declared" in done.stdout


def test_a_dtype_that_is_declared_and_missing_fails(tmp_path):
    more = """
        def asarray(x, *, dtype=None, device=None, made=asarray):
            return made(x, dtype="float32" if dtype == "float64" else dtype, device=device)
    """
    backend(tmp_path, "fake", ("known_shapes", "float64"), more)
    done = suite(tmp_path, "--pyargs", "attnspec_conformance", "-k", "float64_stays or a_dtype_is_there")
    assert done.returncode == 1
    assert "float64_stays_float64_throughout" in done.stdout
    assert "a_dtype_is_there_if_and_only_if_it_is_declared" in done.stdout


def test_slow_tests_wait_to_be_asked(root):
    slow = "import pytest\n@pytest.mark.slow\ndef test_some(backend):\n    assert False\n"
    assert run(root, tests=slow).returncode == 0
    assert run(root, "--attnspec-slow", tests=slow).returncode == 1


def test_a_backend_that_does_not_load_is_named(root):
    done = suite(root, "--pyargs", "attnspec_conformance", name="nowhere")
    assert done.returncode == 4
    assert "nowhere" in done.stderr


KERNELS = """
    import attnspec

    def right(q, k, v, *, mask=None, scale=None):
        return attnspec.attention(q, k, v, mask=mask, scale=scale)

    def inverted(q, k, v, *, mask=None, scale=None):
        return right(q, k, v, mask=mask if mask is None else ~attnspec.as_mask(mask), scale=scale)
"""


def test_a_foreign_subject_is_held_to_the_laws_alone(root):
    (root / "kernels.py").write_text(dedent(KERNELS))
    law = ("--pyargs", "attnspec_conformance", "--attnspec-clause", "MASK-1", "-rA")
    wrong = suite(root, "--attnspec-subject", "kernels:inverted", *law, name=None)
    assert wrong.returncode == 1
    assert "FAILED" in wrong.stdout
    assert "kernels:inverted-true_means_may_attend" in wrong.stdout
    assert re.search(r"kernels:inverted: 0 passed, 1 failed, .* of 1 clauses", wrong.stdout)
    right = suite(root, "--attnspec-subject", "kernels:right", *law, name=None)
    assert right.returncode == 0, right.stdout
    assert "test_misuse" not in right.stdout
    assert re.search(r"kernels:right: 1 passed, 0 failed, .* of 1 clauses", right.stdout)


def test_a_foreign_subject_beside_a_backend_leaves_each_its_own(root):
    (root / "kernels.py").write_text(dedent(KERNELS))
    law = ("--pyargs", "attnspec_conformance", "--attnspec-clause", "MASK-1")
    done = suite(root, "--attnspec-subject", "kernels:inverted", *law)
    assert re.search(r"fake: 1 passed, 0 failed", done.stdout)
    assert re.search(r"kernels:inverted: 0 passed, 1 failed", done.stdout)


def test_a_star_import_brings_the_suite_into_tests_of_ones_own(root):
    (root / "test_theirs.py").write_text(
        "from attnspec_conformance.test_laws import *\nfrom attnspec_conformance.test_norm import *\n"
    )
    asked = ("--attnspec-clause", "NORM-2", "--attnspec-clause", "MASK-1")
    done = suite(root, str(root / "test_theirs.py"), *asked, "-rA")
    assert done.returncode == 0, done.stdout
    assert "fake-true_means_may_attend" in done.stdout
    assert "test_theirs.py::test_the_two_orders_are_two_functions" in done.stdout
    assert re.search(r"fake: 2 passed, 0 failed, .* of 2 clauses", done.stdout)
