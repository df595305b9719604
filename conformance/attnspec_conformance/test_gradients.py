"""Gradients of attention: those of the formulas, exactly zero where nothing was seen, and the same by every route."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import attnspec
from attnspec.host import host_of

from . import masks, oracle
from .attention_cases import CASES, case
from .differentiating import (
    Case,
    Flat,
    against_central_differences,
    by_framework,
    by_tape,
    compiled,
    found,
    quick,
)
from .judges import all_of, holds, near
from .masks import Array
from .operands import Operands
from .oracle_gradients import tangent
from .problems import beyond_a_tile, constant, normal, problem, some_mask
from .trials import Call
from .values import allowed

# What float32, half types, frameworks and compilers are asked beside what every case is asked in float64.
SOME = ("everything", "near saturation", "three terms", "as many heads as batches", "a sink in rows without keys")


@pytest.mark.clause("GRADIENT-1")
@pytest.mark.needs("float64")
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_the_formulas_and_of_central_differences(backend: Any, name: str) -> None:
    got = found(backend, CASES[name]("float64"))
    holds(got.against_the_oracle())
    holds(against_central_differences(got))


@pytest.mark.clause("GRADIENT-1")
@pytest.mark.parametrize("name", SOME)
def test_gradients_in_float32_are_those_of_the_formulas(backend: Any, name: str) -> None:
    holds(found(backend, CASES[name]("float32")).against_the_oracle())


@pytest.mark.clause("GRADIENT-1", "SHAPE-3")
@pytest.mark.needs("float16")
@pytest.mark.parametrize("name", SOME[:2])
def test_gradients_of_float16_are_computed_in_float32(backend: Any, name: str) -> None:
    holds(found(backend, CASES[name]("float16")).against_the_oracle())


@pytest.mark.clause("GRADIENT-1", "SHAPE-3")
@pytest.mark.needs("bfloat16")
@pytest.mark.parametrize("name", SOME[:2])
def test_gradients_of_bfloat16_are_computed_in_float32(backend: Any, name: str) -> None:
    holds(found(backend, CASES[name]("bfloat16")).against_the_oracle())


@pytest.mark.clause("GRADIENT-3")
@pytest.mark.parametrize("name", ["dropout", "dropout of most"])
def test_the_gradient_goes_through_the_very_entries_that_the_forward_kept(backend: Any, name: str) -> None:
    """The oracle's mask is the draw of the specification; a value that no kept weight reaches gets exactly 0."""
    got = found(backend, CASES[name]("float32"))
    holds(got.against_the_oracle())
    kept = oracle.attention(problem(4, dropout=masks.Dropout(0.875, 3), mask=masks.Causal()))
    if name == "dropout of most":
        unused = ~(kept.weights * kept.factors > 0).any(-2)
        assert unused.any()
        np.testing.assert_array_equal(got.gradients["2"][unused], 0)


@pytest.mark.clause("GRADIENT-4", "PATH-1")
@pytest.mark.parametrize("name", SOME)
def test_recording_changes_no_bit_of_the_answer(backend: Any, name: str) -> None:
    flat = Flat(backend, CASES[name]("float32"))
    recorded, _ = attnspec.vjp(flat, *flat.floats)
    routes = [recorded]
    if "vjp" in backend.capabilities:
        routes.append(backend.vjp(flat, *flat.floats)[0])
    for results in routes:
        for one, other in zip(flat(*flat.floats), results, strict=True):
            np.testing.assert_array_equal(backend.to_numpy(one), backend.to_numpy(other))


@pytest.mark.clause("GRADIENT-4")
@pytest.mark.needs("vjp")
@pytest.mark.parametrize("name", SOME)
def test_the_frameworks_reverse_mode_gives_the_same(backend: Any, name: str) -> None:
    holds(found(backend, CASES[name]("float32"), quick(backend, by_framework(backend))).against_the_oracle())


GROUPED = case(problem(3, G=2, mask=masks.Causal(1)))


def grouped(q: Any, k: Any, v: Any) -> Any:
    """The same in the words of a user."""
    return attnspec.attention(q, k, v, mask=attnspec.causal(1))


@pytest.mark.clause("GRADIENT-4")
@pytest.mark.needs("vjp", "jit")
def test_compiled_gradients_are_the_same(backend: Any) -> None:
    def whole(function: Any, floats: Any, cotangents: Any) -> Any:
        out, pull = backend.vjp(grouped, *floats)
        return (out,), pull(*cotangents)

    holds(found(backend, GROUPED, compiled(backend, whole)).against_the_oracle())


@pytest.mark.clause("GRADIENT-4")
@pytest.mark.needs("vjp", "vmap")
def test_mapped_gradients_are_those_of_each_item(backend: Any) -> None:
    """The gradients of a map, and a map of gradients."""

    def of_map(function: Any, floats: Any, cotangents: Any) -> Any:
        out, pull = backend.vjp(backend.vmap(grouped), *floats)
        return (out,), pull(*cotangents)

    def map_of(function: Any, floats: Any, cotangents: Any) -> Any:
        def each(q: Any, k: Any, v: Any, g: Any) -> Any:
            out, pull = backend.vjp(grouped, q, k, v)
            return out, pull(g)

        out, gradients = backend.vmap(each)(*floats, *cotangents)
        return (out,), gradients

    for how in (of_map, map_of):
        holds(found(backend, GROUPED, quick(backend, how)).against_the_oracle())


def dense(xp: Any, options: Mapping[str, Any], call: Call, visible: Array) -> Any:
    """Attention written out over all pairs, for `options` in the backend's arrays; (out, lse)."""
    q, k, v, given = (options[n] for n in ("q", "k", "v", "given"))
    H, G = q.shape[-3], k.shape[-3]
    k, v = (xp.repeat(x, H // G, axis=-3) for x in (k, v))
    s = given.get("scale", call.scale or q.shape[-1] ** -0.5) * xp.matmul(q, xp.matrix_transpose(k))
    cap = given.get("softcap", call.softcap)
    s = s if cap is None else cap * xp.tanh(s / cap)
    s = s if "bias" not in given else s + given["bias"]["array"]
    empty = ~xp.any(visible, axis=-1, keepdims=True)
    top = xp.max(xp.where(visible, s, -1e300), axis=-1, keepdims=True)
    e = xp.where(visible, xp.exp(xp.where(visible, s, top) - top), 0.0)
    total = xp.sum(e, axis=-1, keepdims=True)
    if "sink" in given:
        total = total + xp.exp(given["sink"][..., None, None] - top)
    total = xp.where(empty, 1.0, total)
    p = e / total
    if call.dropout is not None:
        keep = options["keep"]
        p = xp.where(keep, p / (1 - given.get("rate", call.dropout.rate)), 0.0)
    return xp.matmul(p, v), (top + xp.log(total))[..., 0]


DENSE: dict[str, tuple[Call, dict[str, Array], tuple[str, ...]]] = {
    "grouped heads and a mask": (problem(3, G=2, mask=some_mask(3, 2, 6, 5, 7), dtype="float64"), {}, ()),
    "every option": (
        problem(
            2, G=3, mask=some_mask(3, 6, 5, 7), sink=normal(5, 6, dtype="float64"), scale=0.75, softcap=2.0,
            dropout=masks.Dropout(0.25, 9), dtype="float64",
        ),
        {"array": normal(4, 6, 1, 7, dtype="float64")},
        ("scale", "softcap", "rate"),
    ),
}  # fmt: skip


@pytest.mark.clause("GRADIENT-1")
@pytest.mark.needs("autodiff", "float64")
@pytest.mark.parametrize("name", DENSE)
def test_gradients_are_those_of_the_framework_through_the_dense_formula(backend: Any, name: str) -> None:
    """Both are within the bound of the formulas, and so at most twice it apart."""
    call, bias, arrays = DENSE[name]
    made = case(call, bias, arrays, lse=True)
    exact, xp = oracle.attention(call.but(bias=bias.get("array"))), backend.xp
    visible, keep = backend.asarray(exact.visible), backend.asarray(exact.factors > 0)

    def written_out(backend: Any, q: Any, k: Any, v: Any, given: Any) -> Any:
        return dense(xp, {"q": q, "k": k, "v": v, "given": given, "keep": keep}, call, visible)

    theirs = Case(made.dtype, made.args, written_out, made.results, made.pull)
    got = found(backend, made)
    reference = found(backend, theirs, quick(backend, by_framework(backend)))
    wanted = got.flat.wanted()
    holds(
        all_of(
            near(n, x, reference.gradients[n], 2 * allowed(wanted[n], "float64").error)
            for n, x in got.gradients.items()
        )
    )


@pytest.mark.clause("GRADIENT-1")
def test_gradients_over_several_tiles_are_those_of_the_formulas(backend: Any) -> None:
    """A few keys of each tile to every query, so that the oracle has not all pairs to go through."""
    call = beyond_a_tile(mask=some_mask(3, 513, 525, share=0.04), softcap=3.0)
    holds(found(backend, case(call, lse=True)).against_the_oracle())


@pytest.mark.clause("MASK-5", "GRADIENT-1")
def test_an_empty_row_contributes_nothing_to_gradients(backend: Any) -> None:
    """pytorch/pytorch#41508. The literal is the softmax Jacobian by hand."""
    eye, v = np.array([[[1, 0], [0, 1]]], np.float32), np.array([[[1, 2], [3, 4]]], np.float32)
    made = case(Call(eye, eye, v, mask=masks.Dense(np.array([[True, True], [False, False]]))))
    flat = Flat(backend, made)
    flat.cotangents = [constant(1, 1, 2, 2)]
    literal = np.array([[-0.6255943861804416, 0.6255943861804416], [0, 0]])
    assert np.all(np.abs(flat.wanted()["0"].exact[0] - literal) < 1e-12)
    _, gradients = flat.pulled(by_tape)
    holds(near("dq", gradients["0"], literal[None], flat.wanted()["0"].error))
    np.testing.assert_array_equal(gradients["0"][0, 1], 0)


FORWARD = {
    "plain": problem(1),
    "grouped": problem(2, G=2, mask=some_mask(3, 2, 6, 5, 7), bias=normal(4, 6, 5, 7), sink=normal(5, 6), scale=0.7),
    "rows without keys": problem(3, mask=masks.Both(masks.Causal(-1), masks.Padding(np.array([0, 4], np.int32)))),
    "dropout": problem(4, dropout=masks.Dropout(0.25, 9)),
}


def of_inputs(backend: Any, call: Call) -> tuple[Any, ...]:
    """The answer as a function of q, k and v alone, and the three of them."""
    made = Operands(backend, call)
    options = made.arrays[3:]
    return lambda q, k, v: made.function(q, k, v, *options), *made.arrays[:3]


def tangents(call: Call) -> tuple[Array, Array, Array]:
    """Directions for q, k and v."""
    q, k, v = (normal(n, *x.shape) for n, x in enumerate((call.q, call.k, call.v), 20))
    return q, k, v


@pytest.mark.needs("jvp")
@pytest.mark.clause("SCORE-4", "MASK-5")
@pytest.mark.parametrize("name", FORWARD)
def test_forward_mode_is_that_of_the_formulas(backend: Any, name: str) -> None:
    if not hasattr(backend, "jvp"):
        pytest.skip(f"{backend.name} has the capability and no function for it")
    call = FORWARD[name]
    function, *inputs = of_inputs(backend, call.but(implementation="portable"))
    _, got = backend.jvp(function, tuple(inputs), tuple(map(backend.asarray, tangents(call))))
    wanted = tangent(call, tangents(call))
    holds(near("tangent", np.asarray(backend.to_numpy(got)), wanted.exact, wanted.error))


@pytest.mark.needs("autodiff")
@pytest.mark.clause("SCORE-4", "MASK-5")
@pytest.mark.parametrize("name", FORWARD)
def test_the_reverse_of_reverse_mode_is_the_forward_derivative(backend: Any, name: str) -> None:
    """J^T g is linear in g, so its own transpose is J: portable operations are differentiated twice here."""
    call = FORWARD[name]
    function, *inputs = of_inputs(backend, call.but(implementation="portable"))
    _, back = backend.vjp(lambda g: backend.vjp(function, *inputs)[1](g), backend.asarray(constant(0, 2, 6, 5, 3)))
    (got,) = back(tuple(map(backend.asarray, tangents(call))))
    wanted = tangent(call, tangents(call))
    holds(near("tangent", np.asarray(backend.to_numpy(got)), wanted.exact, wanted.error))


@pytest.mark.needs("autodiff")
@pytest.mark.clause("GRADIENT-4")
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
