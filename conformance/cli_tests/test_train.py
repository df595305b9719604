"""Heads that learn: the same losses on every backend, and what one layer can't learn and two can."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from attnspec import params, random, reproducible
from attnspec._compat import dtype_name
from attnspec.backend import choose
from attnspec.cli import learned_head, train
from attnspec.cli.app import app
from attnspec.cli.learned_head import NONE

ONE_LAYER, TOLD_POSITIONS, TWO_LAYERS = train.KINDS
UNIT = 2.0**-24
FEW = 12
SENTENCE = [NONE, "the", "fat", "cat", "saw", "the", "mat"]
THE, CAT, SECOND_THE, MAT = 1, 3, 5, 6
# A product of M terms is off by M units, and the scores of an untrained head are within +-10.
EQUAL = 2 * learned_head.M * UNIT * 10


@pytest.fixture
def backend(name):
    return choose(name)


def trained(kind, backend, dtype="float32", steps=FEW, mode=learned_head.as_it_is):
    return train.train(kind, train.lesson(backend, steps, dtype, mode=mode), backend, after=lambda: None)


def losses(*given, **options):
    return np.array(trained(*given, **options).losses)


@pytest.fixture(scope="module", params=[TOLD_POSITIONS, TWO_LAYERS], ids=lambda kind: kind.title)
def reference(request):
    """A kind of model, its losses in float64, and how far rounding to float32 took them away, step by step."""
    numpy = choose("numpy")
    exact, rounded = (losses(request.param, numpy, dtype) for dtype in ("float64", "float32"))
    return request.param, exact, np.maximum.accumulate(np.abs(rounded - exact))


def test_a_backend_is_as_far_from_float64_as_rounding_takes_it(reference, backend):
    """Its steps are those of NumPy but for the order of sums, so its distance is another sample of the same size."""
    kind, exact, rounding = reference
    apart = np.abs(losses(kind, backend) - exact)
    assert np.all(apart <= 8 * (rounding + UNIT * exact))


def test_rounding_is_small(reference):
    _, exact, rounding = reference
    assert rounding.max() < 1e-5 * exact[0]


def test_what_drops_shows_in_the_losses(reference):
    """So that equal losses mean equal masks: one other key, at the first step, moves them far beyond rounding."""
    kind, exact, rounding = reference
    numpy = choose("numpy")
    lesson = train.lesson(numpy, FEW, "float64")
    other = lesson._replace(keys=[random.key(99), *lesson.keys[1:]])
    moved = np.abs(np.array(train.train(kind, other, numpy, after=lambda: None).losses) - exact)
    assert moved[0] > 1000 * rounding[0]
    assert moved.max() > 1000 * rounding.max()


# A transformer layer, and rotary embedding in the head: all that the three kinds have.
EVERYTHING = train.Kind("two layers, told positions", layers=1, positions=True)


@pytest.fixture(scope="module")
def reproduced():
    return trained(EVERYTHING, choose("numpy"), steps=3, mode=reproducible.identically)


def test_a_reproducible_training_ends_in_the_same_bits(reproduced, backend):
    training = trained(EVERYTHING, backend, steps=3, mode=reproducible.identically)
    assert training.losses == reproduced.losses
    for name, x in params.flatten(training.model).items():
        np.testing.assert_array_equal(backend.to_numpy(x), params.flatten(reproduced.model)[name])


def test_a_reproducible_training_is_nearer_to_float64(reference):
    kind, exact, rounding = reference
    apart = np.abs(losses(kind, choose("numpy"), mode=reproducible.identically) - exact)
    assert np.all(apart <= 2 * (rounding + UNIT * exact))


def test_sentences_are_the_same_on_every_backend(backend):
    drawn = learned_head.sentences(random.key(3), 40, backend)
    assert drawn == learned_head.sentences(random.key(3), 40, choose("numpy"))
    assert len({len(text) for text in drawn}) > 5
    assert max(map(len, drawn)) <= learned_head.LONGEST


def test_a_noun_is_to_look_at_the_nearest_article_before_it(backend):
    texts = [SENTENCE, [NONE, "cat", "sat", "a", "mat"]]
    made = learned_head.batch(texts, backend)
    articles, real = backend.to_numpy(made.articles), backend.to_numpy(made.real)
    assert articles[0, [CAT, MAT]].tolist() == [THE, SECOND_THE]
    assert articles[1, :5].tolist() == [0, 0, 0, 0, 3]
    assert real.sum(axis=1).tolist() == [7, 5]


def looks(kind, backend):
    model = train.lesson(backend, 1).start(kind).model
    return backend.to_numpy(learned_head.weights(model, learned_head.batch([SENTENCE], backend)))[0]


def test_one_layer_without_positions_gives_equal_words_equal_weights(backend):
    """At any weights, these are random ones: that is why no training helps it."""
    row = looks(ONE_LAYER, backend)[MAT]
    np.testing.assert_allclose(row[THE], row[SECOND_THE], rtol=EQUAL)


@pytest.mark.parametrize("kind", [TOLD_POSITIONS, TWO_LAYERS], ids=lambda kind: kind.title)
def test_positions_or_a_layer_below_tell_equal_words_apart(kind, backend):
    row = looks(kind, backend)[MAT]
    assert abs(row[THE] / row[SECOND_THE] - 1) > 100 * EQUAL


def test_the_limits_of_one_layer():
    found = learned_head.limits([SENTENCE])
    assert found.loss == pytest.approx(math.log(2) / 7)
    assert found.found == 0.5
    assert learned_head.limits([[NONE, "the", "cat", "saw", "a", "mat"]]) == (0.0, 1.0)


def test_no_training_takes_one_layer_past_its_limits(backend):
    lesson = train.lesson(backend, 100)
    score = train.train(ONE_LAYER, lesson, backend, after=lambda: None).score
    limits = learned_head.limits(lesson.texts)
    assert limits.loss < score.loss < 0.3
    assert 0.3 < score.found <= limits.found < 0.7


def test_two_layers_find_the_nearest_article(backend):
    lesson = train.lesson(backend, 100)
    assert train.train(TWO_LAYERS, lesson, backend, after=lambda: None).score.found > 0.9


def test_padding_cannot_be_observed(backend):
    """Neither in the loss nor in any bit of the weights after a step."""
    lesson, step = train.lesson(backend, 1), train.compiled(backend)
    state, examples, rng = lesson.start(TWO_LAYERS), lesson.batches[0], lesson.keys[0]
    garbled = examples._replace(ids=backend.xp.where(examples.real, examples.ids, examples.ids + 5))
    (moved, loss), (other, other_loss) = step(state, examples, rng), step(state, garbled, rng)
    assert backend.to_numpy(loss) == backend.to_numpy(other_loss)
    for name, x in params.flatten(moved.model).items():
        np.testing.assert_array_equal(backend.to_numpy(x), backend.to_numpy(params.flatten(other.model)[name]))


def run(*arguments, code=0):
    result = CliRunner().invoke(app, ["demo", "--train", *arguments], env={"COLUMNS": "200", "ATTNSPEC_BACKEND": ""})
    assert result.exit_code == code, result.output
    return result


def test_the_demo_shows_losses_side_by_side_and_the_heads(name, tmp_path):
    svg = tmp_path / "heads.svg"
    chosen = dict.fromkeys(["numpy", name])
    shown = run("--steps", "3", "--svg", str(svg), *(x for n in chosen for x in ("--backend", n))).stdout
    assert all(kind.title in shown for kind in train.KINDS)
    assert f"{losses(TWO_LAYERS, choose('numpy'), steps=1)[0]:.6f}" in shown
    assert "at least 0.0" in shown
    assert ("nothing to compare" in shown) == (len(chosen) == 1)
    assert "built by hand" in svg.read_text()


def test_the_demo_in_float64_has_no_other_reference():
    assert "apart from" not in run("--steps", "2", "--dtype", "float64", "--backend", "numpy").stdout
    assert "apart from float64" in run("--steps", "2", "--backend", "numpy").stdout


def test_the_demo_reports_the_real_difference(name, monkeypatch):
    """A backend that is off by more than rounding is seen to be."""
    learn = train.train

    def off(kind, lesson, backend, after, device=None):
        made = learn(kind, lesson, backend, after, device)
        if dtype_name(made.model.table) == "float64":
            return made
        return made._replace(losses=[loss + 0.25 for loss in made.losses])

    monkeypatch.setattr(train, "train", off)
    assert "2.5e-01" in run("--steps", "2", "--backend", name).stdout


def test_a_reproducible_demo_shows_the_digests_of_all_parameters_and_losses():
    shown = run("--reproducible", "--steps", "2", "--backend", "numpy").stdout
    parameters, curves = hashlib.sha256(), hashlib.sha256()
    for kind in train.KINDS:
        training = trained(kind, choose("numpy"), steps=2, mode=reproducible.identically)
        curves.update(np.asarray(training.losses, "<f8").tobytes())
        for x in params.flatten(training.model).values():
            parameters.update(np.asarray(x, "<f4").tobytes())
    assert parameters.hexdigest()[:16] in shown
    assert curves.hexdigest()[:16] in shown
    assert "SHA-256" not in run("--steps", "2", "--backend", "numpy").stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--steps", "0"], "at least one step, got 0"),
        (["--stack", "2"], "Leave out --stack"),
        (["--model", "minilm"], "Leave out --stack"),
        (["--backend", "numpy", "the walrus sat"], "walrus"),
    ],
)
def test_a_refusal_is_one_line(arguments, says):
    result = run(*arguments, code=1)
    assert result.stdout == ""
    assert says in result.stderr
    assert result.stderr.startswith("attnspec: ")
    assert result.stderr.count("\n") == 1
