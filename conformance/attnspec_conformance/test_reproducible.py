"""REPRO: reproducible mode is the default mode with other operations: its names, its laws, its accuracy, its gradients.

That its bits are the same everywhere is the matter of `test_identity`; that it keeps the rule they follow from is
watched in the meta tests (`exactness`).
"""

from __future__ import annotations

import inspect
from typing import Any

import mpmath
import numpy as np
import pytest

import attnspec
from attnspec import reproducible
from attnspec.errors import DTypeError
from attnspec.host import DEFAULT, host_of
from attnspec.struct import arrays_in

from . import bounds, oracle, oracle_random
from .laws import LAWS
from .masks import Array
from .operands import Operands
from .problems import integers, normal, problem, rounded, some_mask
from .subjects import REPRODUCIBLE, Reproducible, judge
from .trials import Call


@pytest.mark.clause("REPRO-2")
def test_every_public_name_is_there_with_its_signature(backend: Any) -> None:
    for name in attnspec.__all__:
        if name in ("gradients", "params"):  # modules of the default mode
            continue
        ours, theirs = getattr(attnspec, name), getattr(reproducible, name)
        if inspect.isfunction(ours):
            assert inspect.signature(theirs) == inspect.signature(ours), name
            assert theirs.__doc__, name


@pytest.mark.clause("REPRO-2")
@pytest.mark.parametrize("name", LAWS)
def test_a_law_of_the_default_mode_holds(backend: Any, name: str) -> None:
    """Its first trial; `test_all_trials_of_a_law_hold` has the others."""
    hold(backend, name, 1)


@pytest.mark.slow
@pytest.mark.clause("REPRO-2")
@pytest.mark.parametrize("name", LAWS)
def test_all_trials_of_a_law_hold(backend: Any, name: str) -> None:
    hold(backend, name, None)


def hold(backend: Any, name: str, most: int | None) -> None:
    """The trials of a law, answered in reproducible mode."""
    if host_of(backend.like).run is not DEFAULT.run and "lazy" not in backend.capabilities:
        pytest.skip("each call of a law would be a program to compile")
    verdicts, unsupported = judge(LAWS[name], Reproducible(backend), most)
    if not verdicts:
        pytest.skip(f"unsupported: {unsupported[0]}")
    failed = [verdict.message for _, verdict in verdicts if not verdict.ok]
    assert not failed, failed[0]


def unrounded(backend: Any, call: Call) -> Array:
    """The output before its last rounding."""
    operands = Operands(backend, call, REPRODUCIBLE)
    with reproducible.before_rounding():
        return np.asarray(backend.to_numpy(operands.function(*operands.arrays)))


def units(got: Array, exact: oracle.Exact) -> Array:
    """Errors in units of 2**-24 of sum p |v|."""
    p = np.where(exact.visible, exact.weights, 0.0)
    magnitude = np.einsum("...ij,...jc->...ic", p, np.abs(exact.values))
    return np.abs(got - exact.out) / np.where(magnitude == 0, 1.0, magnitude) * 2.0**24


ORDINARY: dict[str, Call] = {
    "normal": problem(1, lead=(), H=2, Q=4, K=300, D=64, E=5),
    "masked": problem(2, H=4, G=2, Q=6, K=40, D=16, mask=some_mask(3, 6, 40)),
    "biased and capped": problem(4, lead=(), H=2, Q=5, K=50, D=16, softcap=5.0, bias=normal(5, 5, 50)),
}


def asked(kind: str, dtype: str, backend: Any) -> Call:
    if dtype != "float32" and dtype not in backend.capabilities:
        pytest.skip(f"{backend.name} does not declare {dtype}")
    call = ORDINARY[kind]
    bias = None if call.bias is None else rounded(call.bias, dtype)
    return call.but(
        dtype=dtype, q=rounded(call.q, dtype), k=rounded(call.k, dtype), v=rounded(call.v, dtype), bias=bias
    )


@pytest.mark.clause("REPRO-2")
@pytest.mark.parametrize("kind", ORDINARY)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_ordinary_inputs_are_within_a_unit_before_the_last_rounding(backend: Any, kind: str, dtype: str) -> None:
    call = asked(kind, dtype, backend)
    worst = float(np.max(units(unrounded(backend, call), oracle.attention(call))))
    assert 0.0 < worst <= 1.0, worst


@pytest.mark.clause("REPRO-2")
@pytest.mark.parametrize("size", [1.0, 4.0, 16.0])
def test_sharp_scores_and_spread_values_stay_in_the_bound_of_the_default_mode(backend: Any, size: float) -> None:
    """Scores up to 16 times as large, and exponents of values that vary inside rows."""
    sharp = problem(7, lead=(), H=2, Q=4, K=60, D=16)
    spread = np.ldexp(sharp.v, integers(8, *sharp.v.shape, low=-20, high=0)).astype(np.float32)
    for call in (sharp.but(q=sharp.q * np.float32(size)), sharp.but(q=sharp.q * np.float32(size), v=spread)):
        exact = oracle.attention(call)
        off = np.abs(unrounded(backend, call) - exact.out)
        assert np.all(off <= bounds.out(exact, "float32")), np.max(off)


@pytest.mark.clause("REPRO-2")
def test_layer_norm_is_within_an_ulp_of_its_row(backend: Any) -> None:
    for size, offset in ((1.0, 0.0), (1.0, 1e3), (1e-3, 0.0), (1e30, 0.0)):
        x = rounded(normal(3, 4, 37) * size + offset, "float32")
        got = np.asarray(backend.to_numpy(reproducible.layer_norm(backend.asarray(x)))).astype(np.float64)
        for row, found in zip(x, got, strict=True):
            numbers = [mpmath.mpf(float(n)) for n in row]
            mean = mpmath.fsum(numbers) / len(numbers)
            root = mpmath.sqrt(mpmath.fsum((n - mean) ** 2 for n in numbers) / len(numbers) + mpmath.mpf(1e-5))
            wanted = np.array([float((n - mean) / root) for n in numbers])
            ulp = np.spacing(np.float32(np.max(np.abs(wanted))))
            assert np.all(np.abs(found - wanted) <= ulp)


@pytest.mark.needs("vjp")
@pytest.mark.clause("REPRO-1")
def test_reverse_mode_of_the_framework_gives_the_bits_of_vjp(backend: Any) -> None:
    q, k, v, g = (backend.asarray(normal(n, 2, 5, 4)) for n in range(4))

    def function(q: Array, k: Array, v: Array) -> Array:
        return reproducible.attention(q, k, v, mask=attnspec.causal(), softcap=3.0)

    (out, pull), (same, pullback) = backend.vjp(function, q, k, v), reproducible.vjp(function, q, k, v)
    np.testing.assert_array_equal(backend.to_numpy(out), backend.to_numpy(same))
    for x, y in zip(pull(g), pullback(g), strict=True):
        np.testing.assert_array_equal(backend.to_numpy(x), backend.to_numpy(y))


@pytest.mark.needs("jvp")
@pytest.mark.clause("REPRO-1")
def test_forward_mode_is_refused_and_gives_no_silent_zero(backend: Any) -> None:
    x = backend.asarray(normal(1, 3, 8))
    with pytest.raises((NotImplementedError, RuntimeError)):
        backend.jvp(reproducible.layer_norm, (x,), (x,))


@pytest.mark.clause("REPRO-2")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_column_that_is_always_small_keeps_its_digits(backend: Any, dtype: str) -> None:
    if dtype not in {"float32", *backend.capabilities}:
        pytest.skip(f"{backend.name} does not declare {dtype}")
    call = problem(3, lead=(), H=1, Q=5, K=50, D=8, E=4)
    v = np.ldexp(call.v, np.asarray([0, -4, -8, -12])).astype(np.float32)
    call = call.but(dtype=dtype, q=rounded(call.q, dtype), k=rounded(call.k, dtype), v=rounded(v, dtype))
    assert np.max(units(unrounded(backend, call), oracle.attention(call))) <= 16.0


@pytest.mark.clause("REPRO-1")
def test_what_a_function_reads_beside_its_arguments_is_taken_in(backend: Any) -> None:
    x, gamma = backend.asarray(normal(1, 3, 8)), backend.asarray(normal(2, 8))

    def function(x: Array) -> Array:
        return reproducible.layer_norm(x, gamma)

    wanted, pull = reproducible.vjp(reproducible.layer_norm, x, gamma)
    got, pullback = reproducible.vjp(function, x)
    for y in (got, reproducible.identically(lambda x: attnspec.layer_norm(x, gamma))(x)):
        np.testing.assert_array_equal(backend.to_numpy(y), backend.to_numpy(wanted))
    np.testing.assert_array_equal(backend.to_numpy(pullback(x)[0]), backend.to_numpy(pull(x)[0]))
    params = attnspec.FeedForwardParams(backend.asarray(normal(3, 8, 5)), backend.asarray(normal(4, 5, 8)))
    alone, _ = reproducible.vjp(lambda params: reproducible.feed_forward(params, x), params)
    np.testing.assert_array_equal(backend.to_numpy(alone), backend.to_numpy(reproducible.feed_forward(params, x)))


@pytest.mark.clause("REPRO-1")
def test_integers_divide_numbers_and_a_division_by_zero_is_infinite(backend: Any) -> None:
    x, n = backend.asarray(normal(1, 4)), backend.asarray(np.asarray([3, 7, 9, 11], np.int32))
    got = np.asarray(backend.to_numpy(reproducible.identically(lambda x, n: x / n)(x, n)))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, normal(1, 4) / np.asarray([3, 7, 9, 11]), rtol=1e-7)
    infinite = reproducible.identically(lambda x: (x * x) / 0)(x)
    assert np.all(np.isinf(backend.to_numpy(infinite)))


@pytest.mark.clause("REPRO-1")
def test_parameters_are_drawn_alike_everywhere(backend: Any) -> None:
    drawn = reproducible.random.normal(attnspec.random.key(1), (200,), like=backend.like)
    nearest = [float(mpmath.sqrt(2) * mpmath.erfinv(u)) for u in uniforms(200)]
    np.testing.assert_allclose(backend.to_numpy(drawn), nearest, rtol=1e-6)
    params = reproducible.LayerParams.init(
        attnspec.random.key(0), model_width=8, heads=2, hidden_width=16, order="pre", like=backend.like
    )
    assert type(params) is attnspec.LayerParams
    assert all(str(x.dtype).endswith("float32") for x in arrays_in("", params).values())


def uniforms(n: int) -> list[float]:
    """The uniform numbers in (-1, 1) that normal ones are made of."""
    words = oracle_random.bits(oracle_random.key(1), (n,))
    return [float((int(word) >> 9) * 2.0**-23) * 2.0 - (1.0 - 2.0**-24) for word in words]


class Narrow:
    """An array of a framework without float64."""

    dtype = "float32"
    shape, ndim = (3,), 1

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return Narrow


@pytest.mark.clause("REPRO-1")
def test_a_framework_without_float64_is_told_so() -> None:
    with pytest.raises(DTypeError, match="float64"):
        reproducible.identically(lambda x: x)(Narrow())
