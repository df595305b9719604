"""Gradients of every component but attention; the activations and the loss themselves."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest

import attnspec
from attnspec.errors import DTypeError, MaskError, OptionError, ShapeError
from attnspec.host import host_of

from . import oracle_layer_pullbacks
from .bounds import LEAST
from .component_cases import CASES, EXTREMES, cross_entropy_case
from .differentiating import against_central_differences, by_framework, found, quick
from .judges import holds, near
from .oracle_layers import Value
from .problems import normal, rounded
from .values import allowed, unit

# Those that round to the dtype of their input between their parts are judged in float32 and float64.
COMPOSED = ("layer:", "stack", "multi", "cross-attention", "heads", "weights", "merged", "pre-norm")
HALF = [n for n in CASES if not n.startswith(COMPOSED)]
SINGLE = [*(n for n in HALF if not n.endswith("gated")), "multi-head attention", "merged attention", "stack"]
ROUTES = (
    "attention weights", "dropout", "layer norm", "rms norm", "add and norm", "rotary of halves", "cross-attention",
    "feed forward: gelu, gated", "layer: pre, layer", "embedding", "cross-entropy", "merged attention",
)  # fmt: skip


@pytest.mark.clause("GRADIENT-2")
@pytest.mark.needs("float64")
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_the_definition_and_of_central_differences(backend: Any, name: str) -> None:
    got = found(backend, CASES[name]("float64"))
    holds(got.against_the_oracle())
    holds(against_central_differences(got))


@pytest.mark.clause("GRADIENT-2")
@pytest.mark.parametrize("name", SINGLE)
def test_gradients_in_float32_are_those_of_the_definition(backend: Any, name: str) -> None:
    holds(found(backend, CASES[name]("float32")).against_the_oracle())


@pytest.mark.clause("GRADIENT-2")
@pytest.mark.needs("float16")
@pytest.mark.parametrize("name", HALF)
def test_gradients_of_float16_are_computed_in_float32(backend: Any, name: str) -> None:
    holds(found(backend, CASES[name]("float16")).against_the_oracle())


@pytest.mark.clause("GRADIENT-2")
@pytest.mark.needs("bfloat16")
@pytest.mark.parametrize("name", ["layer norm", "add and norm", "embedding", "cross-entropy"])
def test_gradients_of_bfloat16_are_computed_in_float32(backend: Any, name: str) -> None:
    holds(found(backend, CASES[name]("bfloat16")).against_the_oracle())


@pytest.mark.clause("GRADIENT-2", "GRADIENT-4")
@pytest.mark.needs("vjp")
@pytest.mark.parametrize("name", ROUTES)
def test_the_frameworks_reverse_mode_gives_the_same(backend: Any, name: str) -> None:
    holds(found(backend, CASES[name]("float32"), quick(backend, by_framework(backend))).against_the_oracle())


@pytest.mark.clause("GRADIENT-2", "NORM-1")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", EXTREMES)
def test_gradients_of_norms_survive_extreme_rows(backend: Any, name: str, dtype: str) -> None:
    """Squares that overflow and that vanish, a large mean, and a row without any deviation."""
    if dtype != "float32" and dtype not in backend.capabilities:
        pytest.skip(f"{backend.name} does not declare {dtype}")
    holds(found(backend, EXTREMES[name](dtype)).against_the_oracle())


def activated(backend: Any, name: Any, x: Any, dtype: str) -> Any:
    """The activation by itself: a network whose matrices are the number 1."""
    one = backend.asarray(np.ones((1, 1)), dtype=dtype)
    params = attnspec.FeedForwardParams(one, one, activation=name)
    y = attnspec.feed_forward(params, backend.asarray(x[:, None], dtype=dtype))
    return np.asarray(backend.to_numpy(y)).astype(np.float64)[:, 0]


POINTS = np.concatenate([np.linspace(-13, 13, 105), [-37.5, -26.0, -1e-3, 1e-30, 30.0, 1e4, -1e4, 3e38, -3e38]])


@pytest.mark.clause("FEEDFORWARD-1")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["relu", "gelu", "gelu_tanh", "silu"])
def test_activations_are_their_formulas_from_tail_to_tail(backend: Any, name: Any, dtype: str) -> None:
    if dtype != "float32" and dtype not in backend.capabilities:
        pytest.skip(f"{backend.name} does not declare {dtype}")
    x = rounded(POINTS, dtype)
    with np.errstate(all="ignore"):
        y, _ = oracle_layer_pullbacks.activation(name, Value.given(x), unit(dtype))
    # Two products with 1, and what is lost where the exponential is no normal number.
    off = 2 * unit(dtype) * np.abs(y.exact) + LEAST[dtype] * (1 + np.abs(x.astype(np.float64)))
    wanted = allowed(Value(y.exact, y.error + off), dtype)
    holds(near(name, activated(backend, name, x, dtype), wanted.exact, wanted.error))


@pytest.mark.clause("FEEDFORWARD-1")
@pytest.mark.needs("float64")
def test_gelu_is_exact_by_the_error_function(backend: Any) -> None:
    """The values of mpmath: of the approximation by a hyperbolic tangent they are off by up to 5e-4."""
    x = np.linspace(-8, 8, 33)
    wanted = np.array([float(z * mpmath.ncdf(z)) for z in map(mpmath.mpf, x)])
    error = 2 * ((2 * x * x + 42) * unit("float64")) * np.abs(wanted)
    holds(near("gelu", activated(backend, "gelu", x, "float64"), wanted, error))


@pytest.mark.clause("FEEDFORWARD-1")
def test_the_slope_of_relu_is_zero_at_zero(backend: Any) -> None:
    one = backend.asarray(np.ones((1, 1), np.float32))
    params = attnspec.FeedForwardParams(one, one, activation="relu")
    _, pull = attnspec.vjp(
        lambda x: attnspec.feed_forward(params, x), backend.asarray(np.array([[0], [1], [-1]], np.float32))
    )
    (got,) = pull(backend.asarray(np.ones((3, 1), np.float32)))
    np.testing.assert_array_equal(backend.to_numpy(got), [[0], [1], [0]])


@pytest.mark.clause("LOSS-1")
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_the_loss_and_its_gradient_are_those_of_the_definition(backend: Any, dtype: str) -> None:
    """Logits beyond the range of the exponential among them."""
    if dtype != "float32" and dtype not in backend.capabilities:
        pytest.skip(f"{backend.name} does not declare {dtype}")
    for size in (1.0, 3e3):
        holds(found(backend, cross_entropy_case(dtype, size)).against_the_oracle())


@pytest.mark.clause("LOSS-1")
def test_what_the_mask_of_the_loss_hides_changes_no_bit(backend: Any) -> None:
    logits, labels, mask = normal(1, 3, 4), np.array([0, 3, 2], np.int32), np.array([True, False, True])
    answers = []
    for value, label in ((0.5, 3), (np.nan, -1), (np.inf, 4), (1e30, 2**31 - 1)):
        x, t = logits.copy(), labels.copy()
        x[1], t[1] = value, label
        made = backend.asarray(t), backend.asarray(mask)
        loss, pull = attnspec.vjp(lambda x, t, m: attnspec.cross_entropy(x, t, mask=m), backend.asarray(x), *made)
        gradient, *others = pull(backend.asarray(normal(2, 3)))
        assert others == [None, None]
        answers.append([np.asarray(backend.to_numpy(a)) for a in (loss, gradient)])
    for answer in answers:
        for one, other in zip(answer, answers[0], strict=True):
            np.testing.assert_array_equal(one, other)
            np.testing.assert_array_equal(one[1], 0)


@pytest.mark.clause("LOSS-1", "ERROR-1")
def test_the_loss_refuses_what_does_not_fit(backend: Any) -> None:
    logits, labels = backend.asarray(normal(1, 3, 4)), backend.asarray(np.array([0, 1, 2], np.int32))
    for shift, text in ((2, r"2 to 4; 0 to 3"), (-1, r"-1 to 1; 0 to 3")):
        if host_of(logits).concrete(logits):
            with pytest.raises(OptionError, match=text):
                attnspec.cross_entropy(logits, labels + shift)
        else:
            loss = np.asarray(backend.to_numpy(attnspec.cross_entropy(logits, labels + shift)))
            np.testing.assert_array_equal(np.isnan(loss), [shift < 0, False, shift > 0])
    with pytest.raises(DTypeError, match="float32"):
        attnspec.cross_entropy(logits, logits[:, 0])
    with pytest.raises(ShapeError, match=r"\(3, 4\).*\(2,\)"):
        attnspec.cross_entropy(logits, labels[:2])
    with pytest.raises(MaskError, match="boolean"):
        attnspec.cross_entropy(logits, labels, mask=labels)
    with pytest.raises(MaskError, match=r"\(2,\).*\(3,\)"):
        attnspec.cross_entropy(logits, labels, mask=backend.asarray(np.array([True, False])))
