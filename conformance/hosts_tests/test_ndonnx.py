"""attnspec traced by ndonnx into ONNX models, and what onnxruntime makes of them."""

from __future__ import annotations

import numpy as np
import pytest
from attnspec_conformance.masks import Both, Causal, Dense, Dropout, Padding, Window
from attnspec_conformance.trials import Call
from judging import draw, judged

import attnspec
from attnspec import reproducible
from attnspec.errors import DeviceError, ShapeError

ndx = pytest.importorskip("ndonnx")
onnxruntime = pytest.importorskip("onnxruntime")

B, H, G, Q, K, D, E = 3, 6, 2, 5, 7, 4, 8
SEEN = draw(B, 1, Q, K) > 0
BIAS, SINK = draw(H, Q, K), draw(H)


def heads(dtype="float32", queries=Q, keys=K):
    return draw(B, H, queries, D).astype(dtype), draw(B, G, keys, D).astype(dtype), draw(B, G, keys, E).astype(dtype)


def traced(x, shape=None):
    return ndx.argument(shape=x.shape if shape is None else shape, dtype=getattr(ndx, str(x.dtype)))


def through_onnx(function, *arrays):
    """What the model that `function` becomes answers, in a list."""
    arguments = {f"x{n}": traced(x) for n, x in enumerate(arrays)}
    answers = function(*arguments.values())
    answers = answers if isinstance(answers, tuple) else (answers,)
    model = ndx.build(arguments, {f"y{n}": y for n, y in enumerate(answers)})
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run([f"y{n}" for n in range(len(answers))], dict(zip(arguments, arrays, strict=True)))


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ({}, {}),
        ({"mask": attnspec.causal(-1)}, {"mask": Causal(-1)}),
        ({"mask": attnspec.window(1, 2, align="end")}, {"mask": Window(1, 2, align="end")}),
        ({"softcap": 2.0, "scale": -0.3}, {"softcap": 2.0, "scale": -0.3}),
        ({"dropout": attnspec.Dropout(0.4, attnspec.random.key(3))}, {"dropout": Dropout(0.4, 3)}),
    ],
    ids=["none", "causal", "window", "softcap", "dropout"],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_model_answers_within_the_bound(options, meant, dtype):
    arrays = heads(dtype)
    (out,) = through_onnx(lambda *a: attnspec.attention(*a, **options), *arrays)
    verdict = judged(Call(*arrays, dtype=dtype, **meant), out)
    assert verdict.ok, verdict.message


@pytest.mark.parametrize(
    ("name", "array", "meant"),
    [("mask", SEEN, Dense(SEEN)), ("bias", BIAS, BIAS), ("sink", SINK, SINK)],
    ids=["mask", "bias", "sink"],
)
def test_an_option_may_be_an_input_of_the_model(name, array, meant):
    arrays = heads()
    (out,) = through_onnx(lambda q, k, v, x: attnspec.attention(q, k, v, **{name: x}), *arrays, array)
    verdict = judged(Call(*arrays, **{name: meant}), out)
    assert verdict.ok, verdict.message


def test_lengths_may_be_an_input_and_what_they_hide_is_not_seen():
    q, k, v = heads()
    lengths = np.asarray([K, 3, 0], dtype="int32")
    v[1, :, 3:] = np.nan
    seen = Both(Causal(), Padding(lengths))
    (out,) = through_onnx(
        lambda q, k, v, n: attnspec.attention(q, k, v, mask=attnspec.causal() & attnspec.padding(n)), q, k, v, lengths
    )
    assert not out[2].any()
    verdict = judged(Call(q, k, v, mask=seen), out)
    assert verdict.ok, verdict.message


def test_tiles_are_unrolled_into_the_model():
    q, k, v = draw(1, 2, 300, D), draw(1, 2, 600, D), draw(1, 2, 600, E)
    (out,) = through_onnx(lambda *a: attnspec.attention(*a, mask=attnspec.causal()), q, k, v)
    assert abs(out - attnspec.attention(q, k, v, mask=attnspec.causal())).max() < 1e-5


@pytest.mark.parametrize("mask", [None, reproducible.causal()], ids=["none", "causal"])
def test_reproducible_mode_has_the_bits_of_numpy(mask):
    arrays = heads()
    (out,) = through_onnx(lambda *a: reproducible.attention(*a, mask=mask), *arrays)
    np.testing.assert_array_equal(out, reproducible.attention(*arrays, mask=mask))


def test_random_bits_are_those_of_numpy():
    like = np.zeros(1, "float32")
    (out,) = through_onnx(lambda x: x[0] + attnspec.random.uniform(attnspec.random.key(7), (4, 5), like=x), like)
    np.testing.assert_array_equal(out, attnspec.random.uniform(attnspec.random.key(7), (4, 5), like=np))


def test_the_gradient_becomes_a_model_too():
    arrays = heads("float64")

    def gradient(q, k, v):
        out, pullback = attnspec.vjp(lambda *a: attnspec.attention(*a, mask=attnspec.causal()), q, k, v)
        return tuple(pullback(out * out))

    for got, wanted in zip(through_onnx(gradient, *arrays), gradient(*arrays), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("axis", range(4))
def test_a_symbolic_axis_is_refused(axis):
    q, k, v = heads()
    shape = (*k.shape[:axis], "N", *k.shape[axis + 1 :])
    with pytest.raises(ShapeError, match="known length"):
        attnspec.attention(traced(q), traced(k, shape), traced(v))


def test_arrays_of_numpy_beside_traced_ones_are_refused():
    q, k, v = heads()
    with pytest.raises(DeviceError, match="one framework"):
        attnspec.attention(traced(q), k, v)
