"""attnspec traced by ndonnx into an ONNX model, which onnxruntime runs with the same numbers, or the same bits.

Every axis needs a length: ndonnx has `None` for a symbolic one, and tiles are cut by length.

Needs: pip install 'attnspec[numpy]' ndonnx onnxruntime
"""

import ndonnx as ndx
import numpy as np
import onnxruntime

import attnspec
from attnspec import reproducible


def exported(function, *arrays):
    """The session of the ONNX model that `function` is, for arrays of these shapes and dtypes."""
    traced = [ndx.argument(shape=x.shape, dtype=getattr(ndx, str(x.dtype))) for x in arrays]
    model = ndx.build({f"x{n}": x for n, x in enumerate(traced)}, {"out": function(*traced)})
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def run(session, *arrays):
    """What the model answers."""
    return session.run(None, {f"x{n}": x for n, x in enumerate(arrays)})[0]


rng = np.random.default_rng(0)
shapes = ((2, 6, 5, 4), (2, 2, 7, 4), (2, 2, 7, 3))  # (B, H, Q, D), (B, G, K, D), (B, G, K, E)
q, k, v = (rng.standard_normal(shape).astype("float32") for shape in shapes)
lengths = np.asarray([7, 3], dtype="int32")

# 1. attnspec's rules and the lengths, which are an input of the model.


def attend(q, k, v, lengths):
    """Causal attention over padded sequences."""
    return attnspec.attention(q, k, v, mask=attnspec.causal(align="end") & attnspec.padding(lengths))


session = exported(attend, q, k, v, lengths)
assert np.allclose(run(session, q, k, v, lengths), attend(q, k, v, lengths), atol=1e-6)
assert np.allclose(run(session, q, k, v, lengths[::-1].copy()), attend(q, k, v, lengths[::-1]), atol=1e-6)

# 2. Reproducible mode: the bits of NumPy.

session = exported(reproducible.attention, q, k, v)
assert (run(session, q, k, v) == reproducible.attention(q, k, v)).all()

# 3. A whole layer, its parameters in the model.

options = {"model_width": 12, "heads": 6, "kv_heads": 2, "hidden_width": 20, "order": "pre"}
layer = attnspec.LayerParams.init(attnspec.random.key(0), **options, like=np)
constants = {name: ndx.asarray(x) for name, x in attnspec.params.flatten(layer).items()}
in_onnx = attnspec.params.unflatten(layer, constants)
x = rng.standard_normal((2, 5, 12)).astype("float32")
session = exported(lambda x: attnspec.transformer_layer(in_onnx, x), x)
assert np.allclose(run(session, x), attnspec.transformer_layer(layer, x), atol=1e-5)
