"""Keras's attention on its numpy backend."""

import os

os.environ["KERAS_BACKEND"] = "numpy"

import keras_peers

HAS = "numpy", "float64", "float16", "bfloat16"
ops = keras_peers.attention(*HAS)
layer = keras_peers.layer(*HAS)
layer_with_scores = keras_peers.with_scores(layer)
grouped_layer = keras_peers.grouped_layer(*HAS)
grouped_layer_with_scores = keras_peers.with_scores(grouped_layer)
