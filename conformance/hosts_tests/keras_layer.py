"""The laws of attnspec's layer for Keras, on the backend that KERAS_BACKEND names, for `test_keras_layer.py`."""

from __future__ import annotations

from functools import partial

import keras
import numpy as np
import pytest
from attnspec_conformance.masks import Causal, Dense, Dropout
from attnspec_conformance.trials import Call
from judging import draw, judged
from keras.layers import MultiHeadAttention as KerasLayer

import attnspec
from attnspec.errors import OptionError, ShapeError
from attnspec.integrations import keras_layers
from attnspec.integrations.keras_layers import MultiHeadAttention

B, H, Q, K, D, E, M = 3, 2, 5, 7, 4, 6, 10
X, Y = draw(B, Q, M), draw(B, K, M, seed=1)
SEEN = draw(B, Q, K, seed=2) > -0.5
SEEN[..., 0] = True
BACKEND = keras.backend.backend()
# Keras's variables, where their values are asked for.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
TRAINS = pytest.mark.skipif(BACKEND == "numpy", reason="Keras does not train on NumPy")

numbers = keras.ops.convert_to_numpy
# Of two layers in float32. Another scale is off by 0.1.
close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)


@pytest.fixture
def calls(monkeypatch):
    """What attnspec's attention was asked for and what it answered, in NumPy."""
    asked = []

    def recorded(*arrays, **options):
        out = attnspec.attention(*arrays, **options)
        asked.append((arrays, options, out))
        return out

    monkeypatch.setattr(keras_layers, "attention", recorded)
    return asked


def pair(*shapes, **options):
    """attnspec's layer and Keras's, with the same weights."""
    ours, own = (kind(H, D, seed=4, **options) for kind in (MultiHeadAttention, KerasLayer))
    for layer in (ours, own):
        layer.build(*shapes)
    own.set_weights(ours.get_weights())
    return ours, own


def model(layer):
    """A functional model of that layer, for rows of any number."""
    rows = keras.Input((None, M))
    return keras.Model(rows, layer(rows, rows, use_causal_mask=True))


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ({}, None),
        ({"use_causal_mask": True}, Causal()),
        ({"attention_mask": SEEN}, Dense(SEEN[:, None])),
        ({"attention_mask": SEEN[:, None].astype("int32")}, Dense(SEEN[:, None])),
        ({"attention_mask": SEEN, "use_causal_mask": True}, Dense(SEEN[:, None] & np.tri(Q, K, dtype=bool))),
    ],
    ids=["none", "causal", "mask", "mask with heads", "both"],
)
def test_it_is_keras_layer_and_its_attention_within_the_bound(options, meant, calls):
    ours, own = pair(X.shape, Y.shape)
    close(numbers(ours(X, Y, **options)), numbers(own(X, Y, **options)))
    ((arrays, _, out),) = calls
    verdict = judged(Call(*map(numbers, arrays), mask=meant), numbers(out))
    assert verdict.ok, verdict.message


def test_values_may_have_a_width_of_their_own(calls):
    layer = MultiHeadAttention(H, D, value_dim=E, output_shape=9)
    assert layer(X, Y).shape == (B, Q, 9)
    ((arrays, _, out),) = calls
    assert arrays[2].shape == (B, H, K, E)
    assert judged(Call(*map(numbers, arrays)), numbers(out)).ok


def test_scores_are_keras_and_change_no_bit():
    ours, own = pair(X.shape, Y.shape)
    out, scores = ours(X, Y, attention_mask=SEEN, return_attention_scores=True)
    close(numbers(scores), numbers(own(X, Y, attention_mask=SEEN, return_attention_scores=True)[1]))
    np.testing.assert_array_equal(numbers(out), numbers(ours(X, Y, attention_mask=SEEN)))


@pytest.mark.parametrize("scores", [False, True])
def test_dropout_draws_from_the_seed_alike_on_every_backend(scores, calls):
    ours, own = pair(X.shape, Y.shape, dropout=0.4)
    given = {"training": True, "return_attention_scores": scores}
    dropped, kept = ours(X, Y, **given), ours(X, Y)
    (arrays, _, out), (_, without, _) = calls
    verdict = judged(Call(*map(numbers, arrays), dropout=Dropout(0.4, 4 << 32)), numbers(out))
    assert verdict.ok, verdict.message
    assert without["dropout"] is None
    close(numbers(kept), numbers(own(X, Y)))
    if BACKEND == "jax":
        theirs = own(X, Y, **given)
        close(*(numbers(x[0] if scores else x) for x in (dropped, theirs)))


def test_a_row_that_sees_nothing_is_zero(calls):
    layer = MultiHeadAttention(H, D)
    layer(X, Y, attention_mask=np.zeros((B, Q, K), bool))
    assert (numbers(calls[0][2]) == 0).all()


def test_the_masks_of_keras_reach_it(calls):
    padded = X.copy()
    padded[1, 3:] = 0
    ours, own = pair(X.shape, X.shape)
    # Masked for each, because a layer takes the masks from its inputs.
    got, theirs = (numbers(layer(x, x)) for layer in (ours, own) for x in [keras.layers.Masking()(padded)])
    close(got[1, :3], theirs[1, :3])
    close(got[0], theirs[0])
    seen = numbers(calls[0][1]["mask"])
    assert seen.shape == (B, 1, Q, Q)
    assert not seen[1, 0, :, 3:].any()
    assert seen[0].all()


def test_half_precision_is_computed_in_float32(calls):
    layer = MultiHeadAttention(H, D, dtype="mixed_float16")
    assert keras.backend.standardize_dtype(layer(X, Y).dtype) == "float16"
    ((arrays, _, out),) = calls
    verdict = judged(Call(*map(numbers, arrays), dtype="float16"), numbers(out))
    assert verdict.ok, verdict.message


def test_a_functional_model_predicts_and_comes_back_from_its_file(tmp_path, calls):
    ours, own = pair(X.shape, X.shape)
    made = model(ours)
    close(made.predict(X, verbose=0), numbers(own(X, X, use_causal_mask=True)))
    asked = len(calls)
    made.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.layers[-1]) is MultiHeadAttention
    np.testing.assert_array_equal(loaded.predict(Y, verbose=0), made.predict(Y, verbose=0))
    assert len(calls) >= asked + 2


@TRAINS
def test_fit_goes_down_as_with_keras_attention(calls):
    losses = []
    for layer in pair(X.shape, X.shape):
        made = model(layer)
        made.compile("adam", "mse")
        losses.append(made.fit(X, X, epochs=4, verbose=0, shuffle=False).history["loss"])
    ours, own = losses
    close(ours, own)
    assert ours[-1] < ours[0]
    assert calls


def test_what_it_cannot_do_is_refused():
    with pytest.raises(OptionError, match="flash_attention"):
        MultiHeadAttention(H, D, flash_attention=True)
    with pytest.raises(ShapeError, match="rows, width"):
        MultiHeadAttention(H, D)(draw(B, 2, Q, M), draw(B, 2, K, M))
    with pytest.raises(AttributeError, match="GroupedQueryAttention"):
        _ = keras_layers.GroupedQueryAttention
