"""The plug-in judged: marks, capabilities, known failures, and what it says at the end."""

from __future__ import annotations

import re
from textwrap import dedent

import pytest
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


def test_the_end_of_a_run_says_what_was_judged(root):
    done = run(root)
    assert done.returncode == 1
    assert re.search(r"fake: 2 judged, 1 failed, \d+ not judged", done.stdout)
    assert "failed: NORM-2" in done.stdout
    assert re.search(r"not judged: .*MASK-1", done.stdout)
    assert "fake does not declare vmap" in done.stdout


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
