"""attnspec.vjp itself: operations between the components, the structure of what it takes and gives, what it refuses."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import array_api_compat
import numpy as np
import pytest

import attnspec
from attnspec.errors import DTypeError, OptionError, ShapeError
from attnspec.tape_rules import RULES

from .differentiating import Case, against_central_differences, found
from .masks import Array
from .oracle_layers import Value
from .problems import constant, normal
from .values import unit

Operation = tuple[Callable[..., Any], tuple[Array, ...]]


def wide(seed: int, *shape: int) -> Array:
    return normal(seed, *shape, dtype="float64")


def above(seed: int, *shape: int) -> Array:
    """Numbers from 0.5 to 2 or so."""
    return 0.5 + np.abs(wide(seed, *shape))


X, Y = wide(1, 2, 3, 4), wide(2, 3, 1)
TALL = wide(3, 4, 5)
OPERATIONS: dict[str, list[Operation]] = {
    "add": [(lambda xp, a, b: a + b, (X, Y)), (lambda xp, a: 1.5 + a, (X,))],
    "subtract": [(lambda xp, a, b: a - b, (Y, X)), (lambda xp, a: 1.5 - a, (X,)), (lambda xp, a: a - 1.5, (X,))],
    "multiply": [(lambda xp, a, b: a * b, (X, Y)), (lambda xp, a: a * a, (X,)), (lambda xp, a: 3.0 * a, (X,))],
    "divide": [(lambda xp, a, b: a / b, (X, above(4, 3, 1))), (lambda xp, a: 2.0 / a, (above(4, 3),))],
    "pow": [
        (lambda xp, a, b: a**b, (above(1, 2, 3), wide(5, 3))), (lambda xp, a: a**3, (X,)),
        (lambda xp, a: 2.0**a, (X,)),
    ],
    "maximum": [(lambda xp, a, b: xp.maximum(a, b), (X, Y))],
    "minimum": [(lambda xp, a, b: xp.minimum(a, b), (X, Y))],
    "negative": [(lambda xp, a: -a, (X,))],
    "abs": [(lambda xp, a: abs(a), (X,))],
    "square": [(lambda xp, a: xp.square(a), (X,))],
    "reciprocal": [(lambda xp, a: xp.reciprocal(a), (above(1, 3),))],
    **{name: [(lambda xp, a, n=name: getattr(xp, n)(a), (above(1, 2, 3),))] for name in ("log", "log1p", "sqrt")},
    **{
        name: [(lambda xp, a, n=name: getattr(xp, n)(a), (X,))]
        for name in ("exp", "expm1", "tanh", "sin", "cos", "matrix_transpose")
    },
    "where": [(lambda xp, a, b: xp.where(a > b, a * 2.0, b), (X, Y))],
    "clip": [(lambda xp, a: xp.clip(a, -0.7, 0.6), (X,))],
    "matmul": [
        (lambda xp, a, b: a @ b, (X, TALL)), (lambda xp, a, b: a @ b, (X, wide(3, 4))),
        (lambda xp, a, b: a @ b, (wide(3, 4), TALL)), (lambda xp, a, b: a @ b, (wide(3, 4), wide(4, 4))),
    ],
    "sum": [
        (lambda xp, a: xp.sum(a), (X,)), (lambda xp, a: xp.sum(a, axis=-2), (X,)),
        (lambda xp, a: xp.sum(a, axis=(0, 2), keepdims=True), (X,)),
    ],
    "mean": [(lambda xp, a: xp.mean(a), (X,)), (lambda xp, a: xp.mean(a, axis=(0, -1)), (X,))],
    "max": [(lambda xp, a: xp.max(a, axis=1), (X,)), (lambda xp, a: xp.max(a, keepdims=True), (X,))],
    "astype": [(lambda xp, a: xp.astype(a, xp.float64, copy=False) * a, (X,))],
    "reshape": [(lambda xp, a: xp.reshape(a, (4, -1)), (X,))],
    "broadcast_to": [(lambda xp, a: xp.broadcast_to(a, (2, 3, 4)), (Y,))],
    "permute_dims": [(lambda xp, a: xp.permute_dims(a, (2, 0, 1)), (X,))],
    "moveaxis": [(lambda xp, a: xp.moveaxis(a, 0, -1), (X,))],
    "expand_dims": [(lambda xp, a: xp.expand_dims(a, axis=1) * a, (Y,))],
    "squeeze": [(lambda xp, a: xp.squeeze(a, axis=-1), (Y,))],
    "concat": [(lambda xp, a, b: xp.concat([a, b * 2.0, a], axis=1), (X, wide(4, 2, 2, 4)))],
    "stack": [(lambda xp, a, b: xp.stack([a, b], axis=1), (X, wide(4, 2, 3, 4)))],
    "getitem": [
        (lambda xp, a: a[..., ::2, 1], (X,)), (lambda xp, a: a[1, ...], (X,)), (lambda xp, a: a[-1, ..., None], (X,)),
        (lambda xp, a: a[0, None, 1:, -3:-1], (X,)), (lambda xp, a: a[:, ::2, 4:], (X,)),
    ],
}  # fmt: skip


@pytest.mark.clause("GRADIENT-6")
def test_every_rule_is_tried() -> None:
    assert set(RULES) | {"getitem"} == set(OPERATIONS)


def of_operation(function: Callable[..., Any], args: tuple[Array, ...]) -> Case:
    """A sum of n products or less, or a function within 8 u: (n + 8) u of what it is of magnitudes."""

    def applied(*args: Any) -> Any:
        return function(array_api_compat.array_namespace(*args), *args)

    y = np.asarray(applied(*args))
    n = max(x.size for x in args)
    magnitude = np.maximum(np.abs(y), np.abs(applied(*map(np.abs, args))))
    value = Value(y, (n + 8) * unit("float64") * magnitude)
    return Case("float64", args, lambda backend, *a: applied(*a), {"": value}, lambda given: {})


@pytest.mark.clause("GRADIENT-6")
@pytest.mark.needs("float64")
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_between_components_have_their_derivatives(backend: Any, name: str) -> None:
    for function, args in OPERATIONS[name]:
        verdict = against_central_differences(found(backend, of_operation(function, args)))
        assert verdict.ok, verdict.message


class Stranger:
    """What is no array, and stands on the right of one."""

    __array_ufunc__ = None

    def __radd__(self, other: Any) -> bool:
        return True


def asks_strangers(a: Any) -> bool:
    """Whether an array leaves an operator to what it does not know, as Python means it. (array-api-strict refuses.)"""
    try:
        return bool(a + Stranger())
    except TypeError:
        return False


@pytest.mark.clause("GRADIENT-6")
@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "pow", "matmul"])
def test_a_constant_may_stand_on_either_side_of_an_operator(backend: Any, name: str) -> None:
    """With the bits of the gradients of both."""
    apply = getattr(operator, name)
    a, b = (backend.asarray(0.5 + np.abs(normal(n, 4, 4))) for n in (1, 2))
    g = backend.asarray(normal(3, 4, 4))
    y, pull = attnspec.vjp(apply, a, b)
    of_a, of_b = pull(g)
    routes = [(*attnspec.vjp(lambda a: apply(a, b), a), of_a)]
    if asks_strangers(a):
        routes.append((*attnspec.vjp(lambda b: apply(a, b), b), of_b))
    np.testing.assert_array_equal(backend.to_numpy(y), backend.to_numpy(apply(a, b)))
    for result, back, wanted in routes:
        np.testing.assert_array_equal(backend.to_numpy(result), backend.to_numpy(y))
        np.testing.assert_array_equal(backend.to_numpy(back(g)[0]), backend.to_numpy(wanted))


def params(backend: Any) -> attnspec.NormParams:
    return attnspec.NormParams(backend.asarray(normal(1, 4)), backend.asarray(normal(2, 4)))


@pytest.mark.clause("GRADIENT-6")
def test_gradients_have_the_structure_of_the_arguments(backend: Any) -> None:
    """Dictionaries, lists, tuples, parameters; zeros for what is unused, None for what is no floating array."""
    x, unused = backend.asarray(normal(3, 3, 4)), backend.asarray(normal(4, 5))
    ids, seen = backend.asarray(np.array([2, 0], np.int32)), backend.asarray(np.array([True, False]))

    def function(tree: Any, norm: Any, count: int) -> Any:
        rows = attnspec.embed(tree["x"], tree["more"][0])
        return {"y": attnspec.normalise(norm, rows), "z": [rows * count]}

    tree = {"x": x, "more": [ids, (unused, seen)]}
    result, pull = attnspec.vjp(function, tree, params(backend), 3)
    assert set(result) == {"y", "z"}
    assert type(result["z"]) is list
    g = {"y": backend.asarray(normal(5, 2, 4)), "z": [backend.asarray(normal(6, 2, 4))]}
    of_tree, of_norm, of_count = pull(g)
    assert of_count == 3 or of_count is None
    assert set(of_tree) == {"x", "more"}
    of_ids, (of_unused, of_seen) = of_tree["more"]
    assert of_ids is None
    assert of_seen is None
    np.testing.assert_array_equal(backend.to_numpy(of_unused), np.zeros(5))
    assert type(of_norm) is attnspec.NormParams
    assert tuple(attnspec.params.flatten(of_norm)["gamma"].shape) == (4,)
    np.testing.assert_array_equal(backend.to_numpy(of_tree["x"])[1], 0)
    assert np.abs(backend.to_numpy(of_tree["x"])[[0, 2]]).min() > 0


@pytest.mark.clause("GRADIENT-6")
def test_a_result_may_be_parameters(backend: Any) -> None:
    result, pull = attnspec.vjp(lambda p: attnspec.NormParams(p.gamma * 2.0, p.beta), params(backend))
    assert type(result) is attnspec.NormParams
    ones = backend.asarray(constant(1, 4))
    (got,) = pull(attnspec.NormParams(ones, ones))
    np.testing.assert_array_equal(backend.to_numpy(got.gamma), constant(2, 4))
    np.testing.assert_array_equal(backend.to_numpy(got.beta), constant(1, 4))


@pytest.mark.clause("GRADIENT-6")
def test_a_pullback_may_be_called_again(backend: Any) -> None:
    q, v = backend.asarray(normal(1, 2, 5, 4)), backend.asarray(normal(2, 2, 5, 3))
    _, pull = attnspec.vjp(lambda q, v: attnspec.attention(q, q, v), q, v)
    g, h = (backend.asarray(normal(n, 2, 5, 3)) for n in (3, 4))
    first, other, again = pull(g), pull(h), pull(g)
    for one, two, three in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(backend.to_numpy(one), backend.to_numpy(two))
        assert (backend.to_numpy(one) != backend.to_numpy(three)).any()


@pytest.mark.clause("GRADIENT-6")
def test_the_cotangent_of_a_single_number_is_one_unless_given(backend: Any) -> None:
    x = backend.asarray(normal(1, 3, 4))
    y, pull = attnspec.vjp(lambda x: summed(x * x), x)
    assert tuple(y.shape) == ()
    np.testing.assert_array_equal(backend.to_numpy(pull()[0]), 2 * normal(1, 3, 4))
    np.testing.assert_array_equal(backend.to_numpy(pull(backend.asarray(np.float32(2)))[0]), 4 * normal(1, 3, 4))


def summed(x: Any) -> Any:
    return array_api_compat.array_namespace(x).sum(x)


@pytest.mark.clause("GRADIENT-6", "GRADIENT-4")
def test_the_result_has_the_bits_of_the_plain_call(backend: Any) -> None:
    made, x = params(backend), backend.asarray(normal(3, 2, 3, 4))

    def function(norm: Any, x: Any) -> Any:
        y = attnspec.normalise(norm, x)
        return attnspec.attention(x, y, x, mask=attnspec.causal()) * 2.0 - y

    recorded, _ = attnspec.vjp(function, made, x)
    np.testing.assert_array_equal(backend.to_numpy(recorded), backend.to_numpy(function(made, x)))
    assert type(recorded) is type(x)


@pytest.mark.clause("GRADIENT-1")
@pytest.mark.parametrize("score", [-13.0, 0.0, 68.0])
@pytest.mark.parametrize("power", [-60, 100])
def test_gradients_of_attention_are_linear_in_the_cotangent_to_the_bit(backend: Any, score: float, power: int) -> None:
    """Powers of two change no digit, unless something on the way is too large or too small."""
    q, v = backend.asarray(np.ones((1, 1), np.float32)), backend.asarray(np.array([[1.0], [2.0]], np.float32))
    k = backend.asarray(np.array([[score], [score - 1]], np.float32))
    _, pull = attnspec.vjp(lambda *x: attnspec.attention(*x, scale=1.0), q, k, v)
    one = backend.asarray(np.ones((1, 1), np.float32))
    for x, y in zip(pull(one), pull(one * 2.0**power), strict=True):
        expected = backend.to_numpy(x) * np.float32(2.0**power)
        np.testing.assert_array_equal(backend.to_numpy(y), expected)


@pytest.mark.clause("GRADIENT-6", "ERROR-1")
def test_what_has_no_rule_is_refused_by_name(backend: Any) -> None:
    x = backend.asarray(normal(1, 3, 4))
    with pytest.raises(DTypeError, match="cumulative_sum"):
        attnspec.vjp(lambda x: array_api_compat.array_namespace(x).cumulative_sum(x, axis=0), x)
    with pytest.raises(OptionError, match="vjp inside vjp"):
        attnspec.vjp(lambda x: attnspec.vjp(lambda y: y * y, x)[0], x)
    _, pull = attnspec.vjp(lambda x: x * 2.0, x)
    for wrong in (backend.asarray(normal(2, 4, 3)), None, (x, x)):
        with pytest.raises(ShapeError, match=r"cotangent.*\(3, 4\)"):
            pull(wrong)
