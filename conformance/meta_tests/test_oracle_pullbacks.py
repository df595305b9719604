"""The oracle's gradients against derivatives that no formula for a gradient entered.

Formulas of results alone, over mpmath's numbers, and central differences: with 60 digits and a step of 1e-20 these are
right to 1e-35. The oracle works in float64; its own bound for that is what it may be off by.
"""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from attnspec_conformance import masks, oracle_layer_pullbacks, oracle_model_pullbacks, oracle_pullbacks, oracle_random
from attnspec_conformance.judges import near
from attnspec_conformance.oracle_layers import Value
from attnspec_conformance.problems import normal, problem
from attnspec_conformance.values import unit

U = unit("float64")
STEP = mpmath.mpf(10) ** -20
exp, log, tanh, root = (np.vectorize(f, otypes=[object]) for f in (mpmath.exp, mpmath.log, mpmath.tanh, mpmath.sqrt))


@pytest.fixture(autouse=True)
def digits():
    with mpmath.workdps(60):
        yield


def exact(x):
    return np.vectorize(lambda z: mpmath.mpf(float(z)), otypes=[object])(x)


def compare(function, args, cotangents, wanted):
    """Each gradient by differences of sum(g y), beside the oracle's value of it."""
    args = {name: exact(x) for name, x in args.items()}

    def total():
        return sum(np.sum(exact(g) * y) for g, y in zip(cotangents, function(**args), strict=True))

    for name, x in args.items():
        slopes = np.zeros(x.shape)
        for at in np.ndindex(x.shape):
            here = x[at]
            x[at] = here + STEP
            up = total()
            x[at] = here - STEP
            slopes[at] = (up - total()) / (2 * STEP)
            x[at] = here
        verdict = near(name, wanted[name].exact, slopes, wanted[name].error)
        assert verdict.ok, verdict.message


def test_attention():
    factors = oracle_random.bernoulli(oracle_random.key(4), 0.75, (2, 3, 4)) / 0.75
    seen = np.array([[True, False, True, True], [False] * 4, [True] * 4])
    call = problem(
        1, lead=(), H=2, G=1, Q=3, K=4, D=2, E=2, dtype="float64", mask=masks.Dense(seen),
        bias=normal(5, 3, 4, dtype="float64"), sink=normal(6, 2, dtype="float64"), scale=0.5, softcap=1.5,
        dropout=masks.Dropout(0.25, 4),
    )  # fmt: skip
    g, h = normal(7, 2, 3, 2, dtype="float64"), normal(8, 2, 3, dtype="float64")

    def attend(q, k, v, bias, sink, scale, softcap):
        s = softcap * tanh(scale * (q @ k.swapaxes(-1, -2)) / softcap) + bias
        e = np.where(seen, exp(s), mpmath.mpf(0))
        total = e.sum(-1) + exp(sink)[:, None]
        return (factors * e / total[..., None]) @ v, log(total)

    names = ("q", "k", "v", "bias", "sink", "scale", "softcap")
    args = {name: np.asarray(getattr(call, name)) for name in names}
    wanted = oracle_pullbacks.of_arrays(call, np.abs(call.bias)).pull(Value.given(g), Value.given(h))
    wanted["bias"] = oracle_pullbacks.to_shape(wanted["bias"], (3, 4), U)
    compare(attend, args, (g, h), wanted)


def test_weights():
    call = problem(1, lead=(), H=2, G=2, Q=2, K=3, D=2, E=1, dtype="float64")

    def weights(q, k):
        e = exp(q @ k.swapaxes(-1, -2) / mpmath.sqrt(2))
        return (e / e.sum(-1, keepdims=True),)

    g = normal(7, 2, 2, 3, dtype="float64")
    wanted = oracle_pullbacks.of_arrays(call, np.zeros(())).pull_weights(Value.given(g))
    compare(weights, {"q": call.q, "k": call.k}, (g,), wanted)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norms(kind):
    x, gamma, beta = (normal(n, *shape, dtype="float64") for n, shape in enumerate(((2, 5), (5,), (5,)), 1))

    def norm(x, gamma, beta, eps):
        d = x - x.sum(-1, keepdims=True) / 5 if kind == "layer" else x
        return (d / root((d * d).sum(-1, keepdims=True) / 5 + eps) * gamma + beta,)

    g = normal(7, 2, 5, dtype="float64")
    _, pull = oracle_layer_pullbacks.norm(Value.given(x), gamma, beta, 0.25, U, kind)
    args = {"x": x, "gamma": gamma, "beta": beta, "eps": np.array(0.25)}
    compare(norm, args, (g,), pull(Value.given(g)))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", ["relu", "gelu", "gelu_tanh", "silu"])
def test_feed_forward(name, gated):
    shapes = {"x": (2, 3), "w_in": (3, 4), "w_out": (4, 3), "b_in": (4,), "b_out": (3,), "w_gate": (3, 4)}
    args = {n: normal(i, *s, dtype="float64") for i, (n, s) in enumerate(shapes.items()) if gated or n != "w_gate"}
    activations = {
        "relu": lambda z: max(z, mpmath.mpf(0)),
        "gelu": lambda z: z * mpmath.ncdf(z),
        "gelu_tanh": lambda z: z * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (z + exact(0.044715) * z**3))) / 2,
        "silu": lambda z: z / (1 + mpmath.exp(-z)),
    }
    activate = np.vectorize(activations[name], otypes=[object])

    def feed(x, w_in, w_out, b_in, b_out, w_gate=None):
        hidden = x @ w_in + b_in
        hidden = activate(hidden) if w_gate is None else activate(x @ w_gate) * hidden
        return (hidden @ w_out + b_out,)

    g = normal(9, 2, 3, dtype="float64")
    params = {n: args.get(n) for n in shapes if n != "x"}
    _, pull = oracle_layer_pullbacks.feed_forward(params, Value.given(args["x"]), name, U)
    compare(feed, args, (g,), pull(Value.given(g)))


def test_rotary():
    x, positions = normal(1, 1, 2, 4, dtype="float64"), np.array([3, 11])

    def turn(x):
        y = x.copy()
        for row, n in np.ndindex(2, 2):
            angle = int(positions[row]) * mpmath.mpf(10000) ** mpmath.mpf(-n / 2)
            cos, sin, a, b = mpmath.cos(angle), mpmath.sin(angle), x[0, row, n], x[0, row, n + 2]
            y[0, row, n], y[0, row, n + 2] = a * cos - b * sin, b * cos + a * sin
        return (y,)

    g = normal(2, 1, 2, 4, dtype="float64")
    _, pull = oracle_layer_pullbacks.rotate(Value.given(x), positions, U)
    compare(turn, {"x": x}, (g,), pull(Value.given(g)))


def test_loss():
    logits, labels = normal(1, 2, 3, dtype="float64"), np.array([2, 0])
    g = normal(2, 2, dtype="float64")
    _, pull = oracle_model_pullbacks.cross_entropy(logits, labels, None, "float64")
    compare(
        lambda logits: (log(exp(logits).sum(-1)) - logits[[0, 1], labels],), {"logits": logits}, (g,),
        pull(Value.given(g)),
    )  # fmt: skip


def test_merged_parts():
    parts = [(normal(2 * n, 2, 3, dtype="float64"), normal(2 * n + 1, 2, dtype="float64")) for n in range(2)]
    g, h = normal(7, 2, 3, dtype="float64"), normal(8, 2, dtype="float64")

    def merge(outs, lses):
        shares = exp(lses)
        return (shares[..., None] * outs).sum(0) / shares.sum(0)[:, None], log(shares.sum(0))

    _, _, pull = oracle_model_pullbacks.merge(parts, U)
    outs, lses = pull(Value.given(g), Value.given(h))
    args = {"outs": np.stack([p[0] for p in parts]), "lses": np.stack([p[1] for p in parts])}
    compare(merge, args, (g, h), {"outs": outs, "lses": lses})
