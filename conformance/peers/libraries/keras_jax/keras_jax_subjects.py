"""Keras's attention on its jax backend."""

import os

os.environ["KERAS_BACKEND"] = "jax"

from dataclasses import replace

import keras_peers
from wrapping import of_widths_alone, widened, without_more_width

HAS = "jax", "float64", "float16", "bfloat16", "vjp"
ops = keras_peers.attention(*HAS)
layer_widths = replace(keras_peers.layer("jax"), name="keras.MultiHeadAttention widths on jax", limits=of_widths_alone)
of_heads = keras_peers.layer(*HAS)
layer = replace(
    of_heads,
    kernel=widened(of_heads.kernel),
    limits=lambda call: without_more_width(call) or of_heads.limits(call),
)
layer_with_scores = keras_peers.with_scores(of_heads)
grouped_layer = keras_peers.grouped_layer(*HAS)
grouped_layer_with_scores = keras_peers.with_scores(grouped_layer)
