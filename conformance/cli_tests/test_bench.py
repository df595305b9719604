"""`attnspec bench`: what is asked, in which order, what is computed from samples, what is written. Nothing is timed."""

from __future__ import annotations

import doctest
import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from typer.testing import CliRunner

from attnspec.cli import bench_memory, bench_peers, bench_run
from attnspec.cli.app import app
from attnspec.cli.bench_measure import Sample, Spread, exponent, ratio, take_turns, timer
from attnspec.cli.bench_problems import CASES
from attnspec.cli.bench_reference import exact
from attnspec.cli.bench_report import COLUMNS, Report, Row, cells, growth, lines
from attnspec.cli.bench_run import run as measured
from attnspec.cli.bench_sizes import Size, parsed, spelled
from attnspec.cli.bench_subjects import Prepared, Subject, UnsuitedError
from attnspec.cli.bench_threads import VARIABLES, threads
from attnspec.errors import OptionError

WIDE = {"COLUMNS": "200"}
SMALL = Size(B=2, H=6, G=6, Q=40, K=72, D=8, E=8)
ROUNDING = 1e-5  # float32, some tens of terms; what is wrong is wrong by far more


def run(*arguments, code=0):
    result = CliRunner().invoke(app, ["bench", *arguments], env=WIDE)
    assert result.exit_code == code, result.output
    return result


def row(subject, cpu, *, beside="attnspec numpy", K=64, **more):
    return Row("plain", Size(1, 2, 2, K, K, 16, 16), subject, beside, tuple(cpu), tuple(2 * t for t in cpu), **more)


@pytest.mark.parametrize("name", ["bench_sizes", "bench_measure"])
def test_the_examples_run(name):
    assert doctest.testmod(import_module(f"attnspec.cli.{name}")).failed == 0


@pytest.mark.parametrize("text", ["2x6x40x8", "B2 H6 G3 Q40 K72 D8 E12", "B2 H6 Q1 K72 D8", "1x8x512x64"])
def test_a_size_is_spelled_as_it_is_read(text):
    (size,) = parsed(text)
    assert spelled(size) == text
    assert parsed(f"1x1x1x1, {text}")[1] == size


def test_cases_fit_the_size_that_is_given():
    given = parsed("2x6x40x8")
    assert CASES["decode"].sized(given) == [Size(2, 6, 6, 1, 40, 8, 8)]
    assert CASES["grouped"].sized(given) == [Size(2, 6, 1, 40, 40, 8, 8)]
    assert CASES["grouped"].sized(parsed("1x8x40x8"))[0].G == 2
    assert CASES["grouped-decode"].sized(parsed("H6 G3 Q40 K72")) == [Size(1, 6, 3, 1, 72, 64, 64)]
    assert CASES["decode"].sized(parsed("2x6x40x8,B2 H6 Q7 K40 D8")) == [Size(2, 6, 6, 1, 40, 8, 8)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--backend", "mlx9"], "no backend named 'mlx9'"),
        (["--backend", "numpy:fast"], "no way 'fast' to run backend 'numpy'"),
        (["--against", "naive,flash9"], "no peer 'flash9'. There are naive, limit, sdpa, jax, keras, onnxruntime."),
        (["--case", "plain,diagonal"], "no case 'diagonal'. There are plain, causal,"),
        (["--shapes", "1x8x512"], "no shape '1x8x512'. Write \"1x8x2048x64\""),
        (["--shapes", "B1 H8 K5"], "Q is needed"),
        (["--shapes", "B1 H8 G3 Q5"], "H=8 a multiple of G=3"),
        (["--shapes", "1x8x0x64"], "every axis needs to be 1 or more"),
        (["--dtype", "float16", "--backend", "numpy"], "no dtype 'float16' here"),
        (["--svg", "a.svg", "--shapes", "1x1x8x8"], "--svg needs two lengths"),
        (["--json", "no_such_folder/a.json"], "--json no_such_folder/a.json"),
    ],
)
def test_a_refusal_is_one_line(arguments, says):
    result = run(*arguments, code=1)
    assert says in result.stderr
    assert result.stderr.startswith("attnspec: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_subjects_take_turns_and_nobody_always_follows_the_same():
    order = []
    timers = {name: lambda name=name: order.append(name) or Sample(len(order), 0.0) for name in "abc"}
    samples = take_turns(timers, rounds=3, told=lambda: order.append("."))
    assert "".join(order) == "a.b.c.b.c.a.c.a.b."
    assert [sample.cpu for sample in samples["b"]] == [3.0, 7.0, 17.0]


def test_a_quick_call_is_repeated_and_a_sample_is_of_one_call():
    clock = {"calls": 0}

    def call():
        clock["calls"] += 1

    take = timer(call, lambda: Sample(clock["calls"] * 0.002, clock["calls"] * 0.001))  # 1 ms each, on two processors
    before = clock["calls"]
    assert take() == pytest.approx(Sample(0.002, 0.001))
    assert clock["calls"] - before == 4
    slow = timer(call, lambda: Sample(0.0, clock["calls"] * 1.0))
    before = clock["calls"]
    slow()
    assert clock["calls"] - before == 1


def test_ratios_are_those_within_rounds():
    assert ratio([2.0, 20.0, 3.0], [1.0, 10.0, 1.0]) == Spread(2.0, 2.0, 2.5)
    assert ratio([3.0], [2.0]) == Spread(1.5, 1.5, 1.5)


def test_a_tables_columns_are_computed_from_the_samples():
    own = row("attnspec numpy", [0.010, 0.020, 0.010], peak=2_500_000, error=3.06e-7)
    peer = row("naive numpy", [0.020, 0.040, 0.030], peak=385_000_000, error=5e-7)
    report = Report([own, peer, row("lost", []), row("elsewhere", [1.0], beside="nobody")])
    assert COLUMNS == ("", "CPU", "wall", "CPU ratio", "wall ratio", "memory", "error")
    assert cells(report, own) == ("attnspec numpy", "10 ms", "20 ms", "-", "-", "2.5 MB", "3e-07")
    ratios = ("2.00 (2.00-2.50)",) * 2
    assert cells(report, peer) == ("naive numpy", "30 ms", "60 ms", *ratios, "385 MB", "5e-07")
    assert cells(report, report.rows[3]) == ("elsewhere", "1 s", "2 s", "-", "-", "-", "-")


def test_growth_is_the_exponent_of_the_costs():
    lengths = [512, 1024, 2048, 4096]
    assert exponent(lengths, [7e-9 * n**1.75 for n in lengths]) == pytest.approx(1.75)
    assert exponent([64], [1.0]) is None
    rows = [row("naive numpy", [n * n * 1e-9] * 3, K=n, peak=8 * n * n) for n in lengths]
    flat = [row("attnspec numpy", [n * 1e-6] * 3, K=n, peak=1000 * n) for n in lengths]
    other = replace(rows[0], size=rows[0].size._replace(H=3, G=3))
    found = lines(Report([other, *rows, *flat]), "plain")
    assert found == {"naive numpy": rows, "attnspec numpy": flat}
    assert growth(found["naive numpy"]) == pytest.approx((2.0, 2.0))
    assert growth(found["attnspec numpy"]) == pytest.approx((1.0, 1.0))
    tiny = [replace(r, peak=4096 * n) for n, r in enumerate(rows)]
    assert growth(tiny)[1] is None
    assert growth([replace(rows[0], peak=None), *rows[1:]])[1] is None


def test_a_report_is_read_as_it_was_written():
    rows = [row("attnspec numpy", [0.1, 0.25], peak=7, error=1.5e-7), row("sdpa", [], why='it says "no"')]
    report = Report(rows, [("keras", "keras not installed")], {"cpu": "x", "cores": 2}, {"numpy": "2"}, 3, ["so"], 2)
    assert Report.read(report.json()) == report
    assert Report.read(Report([]).json()) == Report([])
    with pytest.raises(OptionError, match="a report of the schema"):
        Report.read(report.json().replace("attnspec bench 1", "attnspec bench 0"))


def test_one_that_fails_is_a_row_that_says_why(monkeypatch):
    def broken(asked):
        raise RuntimeError("no kernel\nat all")

    def unsuited(asked):
        raise UnsuitedError("it cannot")

    def fine(asked):
        (out,) = exact(asked)
        return Prepared(lambda: out.values, lambda result: [result])

    subjects = [Subject(f.__name__, "fine", "numpy", f) for f in (broken, unsuited, fine)]
    huge = Subject("huge", "fine", "numpy", fine, matrices=2)
    monkeypatch.setattr(bench_run, "field", lambda *_: bench_peers.Field([*subjects, huge], []))
    monkeypatch.setattr(bench_run, "free", lambda: 4.0 * SMALL.scores)
    told = []
    report = measured(
        [CASES["plain"]], [SMALL], None, [], rounds=2, memory=False, told=lambda *progress: told.append(progress)
    )
    assert [row.why for row in report.rows] == [
        "RuntimeError: no kernel", "it cannot", None, "it needs 0.0 GB, more than is free",
    ]  # fmt: skip
    assert [len(row.cpu) for row in report.rows] == [0, 0, 2, 0]
    assert told[-1][1] == told[-1][2]


def test_a_run_is_printed_written_and_drawn(tmp_path):
    told, drawn = tmp_path / "a.json", tmp_path / "a.svg"
    shown = run(
        "--backend", "numpy", "--against", "naive,limit", "--case", "plain,gradients,dropout", "--no-memory",
        "--shapes", "1x2x32x8,1x2x64x8", "--rounds", "3", "--json", str(told), "--svg", str(drawn),
    ).stdout  # fmt: skip
    assert "plain 1x2x64x8: every key visible" in shown
    assert "exponents of the growth from 32 to 64" in shown
    assert "limit numpy is not measured: it has no matrix product" in shown
    report = Report.read(told.read_text("utf-8"))
    assert json.loads(told.read_text("utf-8"))["schema"] == "attnspec bench 1"
    assert {row.case for row in report.rows} == {"plain", "gradients", "dropout"}
    assert all(len(row.cpu) == len(row.wall) == 3 for row in report.rows if row.why is None)
    errors = [row.error for row in report.rows if row.case != "dropout" and row.subject != "limit numpy"]
    assert len(errors) == 8
    assert max(errors) < ROUNDING
    assert report.libraries["numpy"] == np.__version__
    svg = drawn.read_text("utf-8")
    assert "naive numpy" in svg
    assert ">32<" in svg


def test_imports_are_measured_in_processes_of_their_own(monkeypatch):
    statements = []
    monkeypatch.setattr(
        bench_run, "imported", lambda statement: lambda: statements.append(statement) or Sample(0.5, 1.0)
    )
    report = measured([CASES["import"]], [SMALL], ["numpy"], [], rounds=1)
    assert statements == [
        "import array_api_compat",
        "import attnspec",
        "from attnspec.backend import numpy",
        "import numpy",
    ]
    assert [(row.subject, row.beside, row.cpu) for row in report.rows] == [
        ("array_api_compat", "attnspec", (0.5,)),
        ("attnspec", "attnspec", (0.5,)),
        ("attnspec numpy", "attnspec numpy", (0.5,)),
        ("numpy alone", "attnspec numpy", (0.5,)),
    ]


@pytest.mark.skipif(not bench_memory.RESET.exists(), reason="needs Linux's /proc")
def test_the_peak_has_the_matrices_of_a_dense_call_and_not_what_was_there_before():
    size = Size(1, 2, 2, 1024, 1024, 16, 16)
    matrix = 4 * size.scores
    assert 2 * matrix <= bench_memory.peak("naive numpy", "plain", size, "float32") <= 4 * matrix
    assert bench_memory.peak("limit numpy", "plain", size, "float32") < matrix


def test_a_peak_that_cannot_be_measured_is_none(monkeypatch):
    assert bench_memory.peak("nobody", "plain", SMALL, "float32") is None
    monkeypatch.setattr(bench_memory, "RESET", bench_memory.RESET / "no such file")
    assert bench_memory.peak("limit numpy", "plain", SMALL, "float32") is None


def test_threads_are_limited_inside_only(monkeypatch):
    monkeypatch.setenv(VARIABLES[0], "5")
    monkeypatch.delenv(VARIABLES[1], raising=False)
    before = dict(os.environ)
    with threads(3) as said:
        assert {os.environ[name] for name in VARIABLES} == {"3"}
        assert "numpy" in said[1] or "threadpoolctl" in said[1]  # numpy has been loaded by this file
    assert dict(os.environ) == before


def test_the_command_loads_no_framework_before_threads_are_limited():
    program = "import sys, attnspec.cli.app; print([m for m in ('numpy', 'torch', 'jax', 'keras') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
