"""Whom `attnspec bench` measures: each computes the case, and what is wrong shows in the column of errors."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest

from attnspec.cli import bench_peers
from attnspec.cli.bench_limit import tiles
from attnspec.cli.bench_peers import Absent, field
from attnspec.cli.bench_problems import CASES, problem
from attnspec.cli.bench_reference import error, exact
from attnspec.cli.bench_sizes import Size
from attnspec.cli.bench_subjects import UnsuitedError
from attnspec.cli.bench_threads import threads

SMALL = Size(B=2, H=6, G=6, Q=40, K=72, D=8, E=8)
COMPUTING = [case for case in CASES.values() if case.what in ("attention", "gradients")]
ROUNDING = 1e-5  # float32, some tens of terms; what is wrong is wrong by far more


def test_what_is_not_installed_is_named_and_no_error(monkeypatch):
    monkeypatch.setattr(bench_peers, "find_spec", lambda name: None)
    found = field(["numpy"], ["naive", "sdpa", "onnxruntime"])
    assert [subject.name for subject in found.subjects] == ["attnspec numpy", "naive numpy"]
    assert found.absent == [
        Absent("sdpa", "torch not installed"), Absent("onnxruntime", "onnxruntime and onnx not installed"),
    ]  # fmt: skip


def test_each_peer_stands_beside_attnspec_on_its_own_framework(installed):
    if not {"numpy", "torch", "jax"} <= set(installed):
        pytest.skip("needs numpy, torch and jax")
    found = field(["numpy", "jax:eager", "jax", "torch"], ["naive", "limit", "sdpa", "jax"])
    assert {subject.name: subject.beside for subject in found.subjects} == {
        "attnspec numpy": "attnspec numpy",
        "attnspec jax:eager": "attnspec jax:eager",
        "attnspec jax": "attnspec jax:eager",
        "attnspec torch": "attnspec torch",
        "naive numpy": "attnspec numpy",
        "naive jax": "attnspec jax:eager",
        "naive torch": "attnspec torch",
        "limit numpy": "attnspec numpy",
        "limit torch": "attnspec torch",
        "sdpa": "attnspec torch",
        "jax": "attnspec jax:eager",
    }
    assert [absent.name for absent in found.absent] == ["limit jax"]
    assert {subject.beside for subject in field(["numpy"], ["sdpa"]).subjects} == {"attnspec numpy"}


@pytest.mark.parametrize("case", COMPUTING, ids=lambda case: case.name)
def test_every_subject_computes_the_case(case, installed):
    backends = [name for name in ("numpy", "torch", "jax") if name in installed]
    with threads(1):
        subjects = field(backends, bench_peers.PEERS).subjects
        (size,) = case.sized([SMALL])
        asked = problem(case, size)
        right = exact(asked)
        judged = {}
        for subject in subjects:
            try:
                ready = subject.prepare(asked)
            except UnsuitedError:
                continue
            results = ready.results(ready.call())
            if results:
                judged[subject.name] = error(results, right)
    assert {f"attnspec {name}" for name in backends} <= judged.keys()
    assert {name: e for name, e in judged.items() if not e < ROUNDING} == {}


@pytest.mark.parametrize("case", COMPUTING, ids=lambda case: case.name)
def test_what_is_wrong_has_a_large_error(case):
    (size,) = case.sized([SMALL])
    right = exact(problem(case, size))
    results = [whole.values.astype("float32") for whole in right]
    assert error(results, right) < 1e-6
    for n, result in enumerate(results):
        others = list(results)
        others[n] = result * np.float32(1.001)
        assert 5e-4 < error(others, right) < 2e-3
        others[n] = result.copy()
        others[n][-1, -1, -1, -1] = nan
        assert error(others, right) == inf


def test_a_wrong_mask_has_a_large_error():
    asked = problem(CASES["causal"], SMALL)
    right = exact(replace(asked, causal=False))
    assert error([exact(asked)[0].values], right) > 1e-2


def test_long_calls_are_compared_in_some_rows_first_and_last_among_them(monkeypatch):
    from attnspec.cli import bench_reference

    asked = problem(CASES["causal"], SMALL)
    (whole,) = exact(asked)
    monkeypatch.setattr(bench_reference, "ALL", 7 * SMALL.B * SMALL.H * SMALL.K)
    (some,) = exact(asked)
    assert len(some.rows) == 7
    assert (some.rows[0], some.rows[-1]) == (0, SMALL.Q - 1)
    np.testing.assert_allclose(some.values, whole.values[..., some.rows, :], rtol=0, atol=1e-14)
    assert error([whole.values], [some]) < 1e-14


@pytest.mark.parametrize("rows", [512, 16, 7])
@pytest.mark.parametrize("case", ["plain", "causal", "padding"])
def test_the_limit_multiplies_the_tiles_that_a_rule_leaves(case, rows, monkeypatch):
    from attnspec.cli import bench_limit

    monkeypatch.setattr(bench_limit, "SIDE", 11)
    asked = problem(CASES[case], SMALL)
    covered = np.zeros((SMALL.Q, SMALL.K), dtype=int)
    visible = asked.visible()
    visible = np.ones_like(covered, dtype=bool) if visible is None else visible[0, 0]
    for tile in tiles(asked, rows):
        covered[tile] += 1
        assert visible[tile].any()
    assert covered.max() == 1
    assert (covered[visible] == 1).all()
