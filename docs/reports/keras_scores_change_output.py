import os
import sys

os.environ.setdefault("KERAS_BACKEND", "numpy")
import keras
import numpy as np

print("keras", keras.__version__)
x = np.array([[[1.0], [3.0]]])
mask = np.array([[[False, False], [True, True]]])  # the first of two queries may attend to nothing
ways = {
    "attention_mask alone": ({}, {}),
    "and return_attention_scores=True": ({}, {"return_attention_scores": True}),
    "and dropout=0.5, not training": ({"dropout": 0.5}, {"training": False}),
}
answers = []
for way, (init, call) in ways.items():
    layer = keras.layers.MultiHeadAttention(1, 1, kernel_initializer="ones", use_bias=False, **init)
    out = layer(x, x, attention_mask=mask, **call)
    out = keras.ops.convert_to_numpy(out[0] if isinstance(out, (tuple, list)) else out)
    answers.append(out[0, 0, 0])
    print(f"{way}: {out[0, 0, 0]:.1f}")
print("right: one answer")
sys.exit(int(len(set(answers)) > 1))
