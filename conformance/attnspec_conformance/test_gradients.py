"""Gradients: those of the formulas, exactly zero where nothing was seen, and the same by every route."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnspec.host import host_of

from . import bounds, masks
from .judges import all_of, near
from .masks import Array
from .oracle_gradients import Gradients, gradients, tangent
from .problems import constant, normal, problem, some_mask
from .subjects import Operands
from .trials import Call

U = bounds.UNIT["float32"]


def of_inputs(backend: Any, call: Call) -> tuple[Any, ...]:
    """The answer as a function of q, k and v alone, and the three of them."""
    made = Operands(backend, call)
    options = made.arrays[3:]
    return lambda q, k, v: made.function(q, k, v, *options), *made.arrays[:3]


def pulled(backend: Any, call: Call, g: Array, h: Array | None = None) -> list[Array]:
    """dq, dk, dv by the backend's reverse mode, for cotangents g of out and h of lse."""
    _, pull = backend.vjp(*of_inputs(backend, call.but(want="out" if h is None else "lse")))
    cotangent = backend.asarray(g) if h is None else (backend.asarray(g), backend.asarray(h))
    return [np.asarray(backend.to_numpy(d)).astype(np.float64) for d in pull(cotangent)]


def compare(got: list[Array], wanted: Gradients) -> None:
    """Each within its bound."""
    parts = zip(("dq", "dk", "dv"), got, (wanted.q, wanted.k, wanted.v), strict=True)
    verdict = all_of(near(name, x, value.exact, value.error) for name, x, value in parts)
    assert verdict.ok, verdict.message


CALLS = {
    "plain": problem(1),
    "grouped": problem(2, G=2, mask=some_mask(3, 2, 6, 5, 7), bias=normal(4, 6, 5, 7), sink=normal(5, 6), scale=0.7),
    "rows without keys": problem(3, mask=masks.Both(masks.Causal(-1), masks.Padding(np.array([0, 4], np.int32)))),
    "dropout": problem(4, dropout=masks.Dropout(0.25, 9)),
}


@pytest.mark.needs("vjp")
@pytest.mark.clause("SCORE-4", "MASK-5", "DROPOUT-2")
@pytest.mark.parametrize("name", CALLS)
def test_gradients_are_those_of_the_formulas(backend: Any, name: str) -> None:
    call, g = CALLS[name], normal(6, 2, 6, 5, 3)
    compare(pulled(backend, call, g), gradients(call, g))


@pytest.mark.needs("vjp")
@pytest.mark.clause("SOFTMAX-3")
def test_lse_is_differentiable_beside_the_output(backend: Any) -> None:
    call, g, h = problem(1, mask=masks.Causal(1)), normal(6, 2, 6, 5, 3), normal(7, 2, 6, 5)
    compare(pulled(backend, call, g, h), gradients(call, g, h))


@pytest.mark.needs("vjp")
@pytest.mark.clause("MASK-5")
def test_an_empty_row_contributes_nothing_to_gradients(backend: Any) -> None:
    """FM-02: pytorch/pytorch#41508. The literal is the softmax Jacobian by hand."""
    eye, v = np.array([[[1, 0], [0, 1]]], np.float32), np.array([[[1, 2], [3, 4]]], np.float32)
    call, g = Call(eye, eye, v, mask=masks.Dense(np.array([[True, True], [False, False]]))), constant(1, 1, 2, 2)
    wanted = gradients(call, g)
    literal = np.array([[-0.6255943861804416, 0.6255943861804416], [0, 0]])
    assert np.all(np.abs(wanted.q.exact[0] - literal) < 1e-12)
    compare(pulled(backend, call, g), wanted)


LARGEST = float(np.finfo(np.float32).max)


@pytest.mark.needs("vjp")
@pytest.mark.clause("MASK-6c")
@pytest.mark.parametrize("value", [1e30, np.nan, np.inf, LARGEST])
def test_hidden_keys_cannot_be_observed_in_gradients(backend: Any, value: float) -> None:
    seen: Array = np.ones((5, 7), bool)
    seen[:, [1, 4]] = False
    seen[2] = False
    call, g = problem(5, mask=masks.Dense(seen)), normal(6, 2, 6, 5, 3)
    q, k, v = (x.copy() for x in (call.q, call.k, call.v))
    k[..., [1, 4], :] = v[..., [1, 4], :] = q[..., 2, :] = value
    clean = pulled(backend, call, g)
    for one, other in zip(clean, pulled(backend, call.but(q=q, k=k, v=v), g), strict=True):
        np.testing.assert_array_equal(one, other)
    for gradient in clean[1:]:
        np.testing.assert_array_equal(gradient[..., [1, 4], :], 0.0)
    np.testing.assert_array_equal(clean[0][..., 2, :], 0.0)


def tangents(call: Call) -> tuple[Array, Array, Array]:
    """Directions for q, k and v."""
    q, k, v = (normal(n, *x.shape) for n, x in enumerate((call.q, call.k, call.v), 20))
    return q, k, v


@pytest.mark.needs("jvp")
@pytest.mark.clause("SCORE-4", "MASK-5")
@pytest.mark.parametrize("name", CALLS)
def test_forward_mode_is_that_of_the_formulas(backend: Any, name: str) -> None:
    if not hasattr(backend, "jvp"):
        pytest.skip(f"{backend.name} has the capability and no function for it")
    call = CALLS[name]
    function, *inputs = of_inputs(backend, call.but(implementation="portable"))
    _, got = backend.jvp(function, tuple(inputs), tuple(map(backend.asarray, tangents(call))))
    wanted = tangent(call, tangents(call))
    verdict = near("tangent", np.asarray(backend.to_numpy(got)), wanted.exact, wanted.error)
    assert verdict.ok, verdict.message


@pytest.mark.needs("vjp")
@pytest.mark.clause("SCORE-4", "MASK-5")
@pytest.mark.parametrize("name", CALLS)
def test_the_reverse_of_reverse_mode_is_the_forward_derivative(backend: Any, name: str) -> None:
    """J^T g is linear in g, so its own transpose is J: portable operations are differentiated twice here."""
    call = CALLS[name]
    function, *inputs = of_inputs(backend, call.but(implementation="portable"))
    _, back = backend.vjp(lambda g: backend.vjp(function, *inputs)[1](g), backend.asarray(constant(0, 2, 6, 5, 3)))
    (got,) = back(tuple(map(backend.asarray, tangents(call))))
    wanted = tangent(call, tangents(call))
    verdict = near("tangent", np.asarray(backend.to_numpy(got)), wanted.exact, wanted.error)
    assert verdict.ok, verdict.message


@pytest.mark.needs("vjp")
@pytest.mark.clause("PATH-1")
def test_recording_gradients_changes_no_bit_of_the_answer(backend: Any) -> None:
    for call in (CALLS["grouped"], CALLS["dropout"]):
        function, *inputs = of_inputs(backend, call.but(want="lse"))
        recorded, _ = backend.vjp(function, *inputs)
        for one, other in zip(function(*inputs), recorded, strict=True):
            np.testing.assert_array_equal(backend.to_numpy(one), backend.to_numpy(other))


@pytest.mark.needs("vjp")
@pytest.mark.clause("PATH-1")
def test_a_function_given_its_backward_is_differentiated_by_it(backend: Any) -> None:
    """A derivative that no rule of calculus would give: 3 for x * x, so that only the one given can have made it."""
    x = backend.asarray(np.array([1.0, 2.0], np.float32))
    with_vjp = host_of(x).with_vjp
    assert with_vjp is not None
    function = with_vjp(lambda x: (x * x,), lambda arrays, results, cotangents: (3.0 * cotangents[0],))
    (y,), pull = backend.vjp(function, x)
    np.testing.assert_array_equal(backend.to_numpy(y), [1, 4])
    (gradient,) = pull((backend.asarray(np.array([1.0, -2.0], np.float32)),))
    np.testing.assert_array_equal(backend.to_numpy(gradient), [3, -6])
