"""Keras's attention on its torch backend."""

import os

os.environ["KERAS_BACKEND"] = "torch"

from dataclasses import replace

import keras_peers
from attnspec_conformance.trials import Call

HAS = "torch", "float64", "float16", "bfloat16", "vjp"


def _limits(call: Call) -> str | None:
    if call.bias is not None and call.mask is not None:
        return "it takes a bias or a mask, and refuses both on this backend"
    return of_backends.limits(call)


of_backends = keras_peers.attention(*HAS)
ops = replace(of_backends, limits=_limits)
layer = keras_peers.layer(*HAS)
layer_with_scores = keras_peers.with_scores(layer)
grouped_layer = keras_peers.grouped_layer(*HAS)
grouped_layer_with_scores = keras_peers.with_scores(grouped_layer)
