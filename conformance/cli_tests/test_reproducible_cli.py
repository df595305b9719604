"""Reproducible mode on the command line: the digests are those of the numbers, and the same on every backend."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from attnspec.cli import digests
from attnspec.cli.app import app
from attnspec.errors import DTypeError

DATA = Path(__file__).parent / "data"
TEXTS = ["a cat", "the fat cat sat on the mat, and a dog saw it from the house"]


def run(*arguments):
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "ATTNSPEC_BACKEND": ""})
    assert result.exit_code == 0, result.output
    return result.stdout


def embedded(*arguments):
    return [json.loads(line) for line in run("embed", "--reproducible", "--json", *arguments).splitlines()]


def sha256(numbers, dtype):
    return hashlib.sha256(np.asarray(numbers, dtype).tobytes()).hexdigest()


def test_embeddings_have_the_same_bits_on_every_backend(name, weights):
    rows = embedded("--backend", name, *TEXTS)
    assert [row["text"] for row in rows] == TEXTS
    assert [row["sha256"] for row in rows] == [sha256(row["embedding"], "<f4") for row in rows]
    assert rows == embedded("--backend", "numpy", *TEXTS)


def test_embeddings_in_float64_have_the_same_bits_on_every_backend(name, weights):
    """In `--dtype float64` the digest is that of the float64 numbers."""
    (row,) = embedded("--backend", name, "--dtype", "float64", TEXTS[0])
    assert row["sha256"] == sha256(row["embedding"], "<f8")
    assert [row] == embedded("--backend", "numpy", "--dtype", "float64", TEXTS[0])


def test_an_embedding_has_the_same_bits_alone_as_beside_a_longer_text(name, weights):
    assert embedded("--backend", name, TEXTS[0]) == embedded("--backend", name, *TEXTS)[:1]


def test_reproducible_embeddings_are_the_reference(weights):
    sentences = json.loads((DATA / "minilm_reference.json").read_text())["sentences"]
    with np.load(DATA / "minilm_reference.npz") as reference:
        expected = reference["sentence_embedding"]
    np.testing.assert_allclose([row["embedding"] for row in embedded(*sentences)], expected, rtol=0, atol=1e-6)


def test_digests_are_shown_if_asked_for(weights):
    (row,) = embedded("cat")
    assert f"sha256 {row['sha256']}" in run("embed", "--reproducible", "cat").splitlines()
    assert "sha256" not in run("embed", "cat") + run("embed", "--json", "cat")


def test_the_demo_ends_with_equal_digests(installed):
    shown = run("demo")
    table = shown[shown.index("Reproducible mode") :]
    found = [line.split() for line in table.splitlines()]
    digests = {line[3] for name in installed for line in found if line[1:2] == [name]}
    assert len(digests) == 1
    assert len(digests.pop()) == 16
    assert (f"The digests are equal on {', '.join(installed)}." in table) == (len(installed) > 1)


def test_the_digest_of_the_demo_is_about_the_words():
    shown = [run("demo", "--backend", "numpy", text) for text in ("the cat sat", "the cat sat", "the mat sat on")]
    ends = [text[text.index("Reproducible mode") :] for text in shown]
    assert ends[0] == ends[1] != ends[2]


def test_digests_that_differ_are_said_to():
    assert digests.tabulate("", ["a", "b"], {"one": ["1", "2"], "other": ["1", "3"]})[1:] == [
        "The digests are NOT equal on one, other."
    ]


def test_one_bit_changes_the_digest():
    x = np.arange(6, dtype="float32").reshape(2, 3)
    y = x.copy()
    y[1, 2] = np.nextafter(y[1, 2], np.float32(9))
    assert digests.digest([x]) == digests.digest([x[0], x[1]]) == sha256(x, "<f4")
    assert digests.digest([y]) != digests.digest([x])


def test_a_device_without_float64_is_named_and_the_demo_goes_on(monkeypatch):
    def without_float64(*given):
        raise DTypeError("there is no float64 here.")

    monkeypatch.setattr(digests, "_computed", without_float64)
    assert "numpy: there is no float64 here." in run("demo", "--backend", "numpy")


@pytest.mark.parametrize("arguments", [["--model", "minilm"], ["--stack", "2"]])
def test_every_demo_ends_with_digests(arguments, weights):
    assert "Reproducible mode" in run("demo", "--backend", "numpy", *arguments)
