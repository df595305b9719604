"""Keras's MultiHeadAttention computed by attnspec: a model that is built, trained where Keras trains, and saved.

    KERAS_BACKEND=torch python docs/examples/hosts/keras_layer.py

Needs: pip install attnspec keras, and one of numpy, jax and torch
"""

import tempfile

import keras
import numpy as np

from attnspec.integrations import keras as attnspec_keras
from attnspec.integrations.keras_layers import MultiHeadAttention

x = np.random.default_rng(0).standard_normal((4, 9, 16)).astype("float32")  # (B, Q, M)

# 1. The layer, in a functional model for sequences of any length.

rows = keras.Input((None, 16))
y = MultiHeadAttention(num_heads=2, key_dim=8, dropout=0.1, name="attention")(rows, rows, use_causal_mask=True)
model = keras.Model(rows, keras.layers.Dense(16)(y))
before = model.predict(x, verbose=0)
assert before.shape == x.shape

if keras.backend.backend() != "numpy":  # Keras does not train there
    model.compile("adam", "mse")
    losses = model.fit(x, x, epochs=20, verbose=0).history["loss"]
    assert losses[-1] < losses[0]

with tempfile.TemporaryDirectory() as folder:
    model.save(f"{folder}/model.keras")
    loaded = keras.models.load_model(f"{folder}/model.keras")
assert (loaded.predict(x, verbose=0) == model.predict(x, verbose=0)).all()

# 2. A model that exists already, with Keras's own layer: attention within `install` is attnspec's.

theirs = keras.layers.MultiHeadAttention(num_heads=2, key_dim=8)
own = keras.ops.convert_to_numpy(theirs(x, x))
with attnspec_keras.install():
    installed = keras.ops.convert_to_numpy(theirs(x, x))
assert np.allclose(own, installed, atol=1e-5)
