"""NORM: layer norm, root-mean-square norm, and the two orders of the skip connection."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attnspec
from attnspec.errors import DTypeError, OptionError, ShapeError

from . import bounds, oracle_layers, oracle_random
from .bounds import UNIT, inside
from .judges import near
from .masks import Array
from .oracle_layers import Value
from .problems import constant, normal, rounded

SHAPES = ((2, 3, 16), (5,), (4, 1), (3, 64), (0, 4))


def plain(backend: Any, x: Any) -> Array:
    return np.asarray(backend.to_numpy(x)).astype(np.float64)


def compare(backend: Any, got: Any, wanted: Value, dtype: str = "float32") -> None:
    """Within the bound of the value, and in the dtype."""
    assert str(got.dtype).rpartition(".")[2] == dtype
    value = wanted.stored(dtype)
    verdict = near("y", plain(backend, got), value.exact, value.error)
    assert verdict.ok, verdict.message


def check_layer_norm(backend: Any, x: Array, dtype: str = "float32", eps: float = 1e-5, affine: bool = True) -> None:
    M, u = x.shape[-1], UNIT[inside(dtype)]
    gamma, beta = (normal(8, M, dtype=dtype), normal(9, M, dtype=dtype)) if affine else (None, None)
    made = [None if a is None else backend.asarray(a, dtype=dtype) for a in (gamma, beta)]
    got = attnspec.layer_norm(backend.asarray(x, dtype=dtype), *made, eps=eps)
    compare(backend, got, oracle_layers.layer_norm(Value.given(x), gamma, beta, eps, u), dtype)


@pytest.mark.clause("NORM-1")
@pytest.mark.parametrize("shape", SHAPES)
def test_layer_norm_is_its_definition(backend: Any, shape: tuple[int, ...]) -> None:
    for affine in (False, True):
        check_layer_norm(backend, normal(1, *shape), affine=affine)


@pytest.mark.clause("NORM-1")
def test_the_variance_is_the_populations_and_eps_is_inside_the_root(backend: Any) -> None:
    """NO-01: harvardnlp/annotated-transformer#119. Width 2 tells the variances apart, a small variance the eps."""
    x = np.array([0, 2], np.float32)
    literal = np.array([-0.9999950000374997, 0.9999950000374997])
    allowed = oracle_layers.layer_norm(Value.given(x), None, None, 1e-5, UNIT["float32"]).error
    compare(backend, attnspec.layer_norm(backend.asarray(x), eps=1e-5), Value(literal, allowed))
    spread = rounded(1e-2 * np.array([[1, -1, 1, -1], [1, 1, -1, -1]]), "float32")
    for eps in (1e-12, 1e-6, 1e-4, 1e-2, 1.0):
        check_layer_norm(backend, spread, eps=eps, affine=False)


@pytest.mark.clause("NORM-1")
def test_a_large_mean_does_not_cancel_the_variance(backend: Any) -> None:
    """NO-02: tracel-ai/burn#5607."""
    x = (1000 + np.arange(16) * 1e-3).astype(np.float32)
    check_layer_norm(backend, x, affine=False)
    literal = np.array([-1.3415077616349704, -1.166825163985656, -0.9812249039832591])
    allowed = oracle_layers.layer_norm(Value.given(x), None, None, 1e-5, UNIT["float32"]).error
    compare(backend, attnspec.layer_norm(backend.asarray(x))[:3], Value(literal, allowed[:3]))
    for offset in (1e2, -1e3, 1e4):
        check_layer_norm(backend, rounded(normal(3, 4, 32) + offset, "float32"))


@pytest.mark.clause("NORM-1")
@pytest.mark.parametrize("value", [0.0, 1234.0, 0.1, -3e4])
def test_a_constant_row_gives_beta_exactly(backend: Any, value: float) -> None:
    x, beta = backend.asarray(constant(value, 3, 256)), normal(2, 256)
    got = attnspec.layer_norm(x, backend.asarray(normal(1, 256)), backend.asarray(beta))
    np.testing.assert_array_equal(plain(backend, got), np.broadcast_to(beta, (3, 256)))


@pytest.mark.clause("NORM-1")
def test_eps_zero_is_legal(backend: Any) -> None:
    check_layer_norm(backend, normal(4, 3, 8), eps=0.0)


@pytest.mark.clause("NORM-1")
@pytest.mark.needs("float16")
def test_float16_squares_do_not_overflow(backend: Any) -> None:
    for size in (1.0, 300.0, 2e4):
        x = normal(5, 3, 16, dtype="float16", size=size)
        check_layer_norm(backend, x, "float16")
        got = attnspec.rms_norm(backend.asarray(x), eps=1e-5)
        compare(backend, got, oracle_layers.rms_norm(Value.given(x), None, 1e-5, UNIT["float32"]), "float16")


@pytest.mark.clause("NORM-1")
@pytest.mark.needs("bfloat16")
def test_bfloat16_is_normed_in_float32(backend: Any) -> None:
    check_layer_norm(backend, normal(5, 3, 16, dtype="bfloat16") + 0.0, "bfloat16")


@pytest.mark.clause("NORM-1")
@pytest.mark.needs("float64")
def test_float64_stays_float64(backend: Any) -> None:
    """The oracle sums exactly and rounds its square root and quotient, which the 5 u of the bound covers."""
    check_layer_norm(backend, normal(6, 3, 16, dtype="float64") + 10.0, "float64")


@pytest.mark.clause("NORM-1")
def test_a_non_finite_entry_spoils_its_own_row_only(backend: Any) -> None:
    x = normal(7, 3, 8)
    x[1, 2] = np.inf
    for function in (attnspec.layer_norm, attnspec.rms_norm):
        got = plain(backend, function(backend.asarray(x)))
        assert np.isnan(got[1]).any()
        assert np.isfinite(got[[0, 2]]).all()


@pytest.mark.clause("NORM-1")
@pytest.mark.parametrize("eps", [1e-5, 0.1])
def test_rms_norm_is_its_definition(backend: Any, eps: float) -> None:
    x, gamma = normal(1, 2, 3, 16), normal(2, 16)
    made = backend.asarray(x), backend.asarray(gamma)
    wanted = oracle_layers.rms_norm(Value.given(x), gamma, eps, UNIT["float32"])
    compare(backend, attnspec.rms_norm(*made, eps=eps), wanted)
    row = Value(wanted.exact[1, 2], wanted.error[1, 2])
    compare(backend, attnspec.rms_norm(made[0][1, 2, :], made[1], eps=eps), row)
    if eps == 1e-5:
        compare(backend, attnspec.rms_norm(*made), wanted)


@pytest.mark.clause("NORM-1")
@pytest.mark.needs("float64")
def test_gain_and_offset_may_be_wider_than_the_rows(backend: Any) -> None:
    x, gamma, beta = normal(1, 3, 8), *(normal(n, 8, dtype="float64") for n in (2, 3))
    made = [backend.asarray(a, dtype="float64") for a in (gamma, beta)]
    wanted = oracle_layers.layer_norm(Value.given(x), gamma, beta, 1e-5, UNIT["float32"])
    rounding = UNIT["float32"] * (np.abs(wanted.exact - beta) + np.abs(beta))
    compare(backend, attnspec.layer_norm(backend.asarray(x), *made), Value(wanted.exact, wanted.error + rounding))


@pytest.mark.clause("NORM-1")
def test_rows_of_one_entry_and_of_none(backend: Any) -> None:
    one = backend.asarray(np.array([[2.0**70], [-3.0], [2.0**-70]], np.float32))
    np.testing.assert_array_equal(plain(backend, attnspec.layer_norm(one)), np.zeros((3, 1)))
    np.testing.assert_array_equal(plain(backend, attnspec.rms_norm(one, eps=0.0)), [[1], [-1], [1]])
    none = backend.asarray(np.zeros((3, 0), np.float32))
    for y in (attnspec.layer_norm(none), attnspec.rms_norm(none)):
        assert tuple(y.shape) == (3, 0)
        assert y.dtype == none.dtype


@pytest.mark.clause("NORM-1")
@pytest.mark.parametrize("exponent", [-110, -70, 70, 125])
def test_rows_out_of_the_range_of_squares_are_normed_as_others(backend: Any, exponent: int) -> None:
    """Without eps a power of two changes no bit; with it the row is judged as any other."""
    x = normal(3, 4, 8)
    far = x * np.float32(2.0**exponent)
    for function in (attnspec.layer_norm, attnspec.rms_norm):
        near_one, scaled = (plain(backend, function(backend.asarray(a), eps=0.0)) for a in (x, far))
        np.testing.assert_array_equal(scaled, near_one)
    check_layer_norm(backend, far, affine=False)
    wanted = oracle_layers.rms_norm(Value.given(far), None, 1e-5, UNIT["float32"])
    compare(backend, attnspec.rms_norm(backend.asarray(far), eps=1e-5), wanted)


@pytest.mark.clause("NORM-1", "ERROR-1")
def test_norms_refuse_what_does_not_fit(backend: Any) -> None:
    x = backend.asarray(normal(1, 2, 5))
    short = backend.asarray(normal(2, 4))
    with pytest.raises(ShapeError, match=r"^gamma has shape \(4,\); \(M,\) = \(5,\)"):
        attnspec.layer_norm(x, short)
    with pytest.raises(ShapeError, match=r"^beta has shape \(4,\); \(M,\) = \(5,\)"):
        attnspec.layer_norm(x, None, short)
    with pytest.raises(ShapeError, match=r"^gamma has shape \(4,\)"):
        attnspec.rms_norm(x, short)
    for eps in (-1e-5, float("nan"), float("inf")):
        with pytest.raises(OptionError, match=r"^eps="):
            attnspec.layer_norm(x, eps=eps)
    with pytest.raises(DTypeError, match="int32"):
        attnspec.layer_norm(backend.asarray(np.ones((2, 5), np.int32)))


@pytest.mark.clause("NORM-2")
def test_the_two_orders_are_two_functions(backend: Any) -> None:
    """NO-04: harvardnlp/annotated-transformer#13."""
    x, shift = np.array([1, 2, 3, 6], np.float32), np.array([0, 1, 0, 0], np.float32)
    u = UNIT["float32"]
    made, moved = backend.asarray(x), backend.asarray(shift)
    post = attnspec.add_and_norm(made, 2 * made + moved)
    literal = np.array([-1.137539199570951, -0.4095141118455424, -0.04550156798283804, 1.5925548793993314])
    wanted = oracle_layers.layer_norm(Value.given(3 * x + shift), None, None, 1e-5, u)
    compare(backend, post, Value(literal, wanted.error))
    pre = attnspec.pre_norm(made, lambda t: 2 * t + moved)
    literal = np.array([-1.138086880891747, 1.9309565595541265, 3.0, 9.20713032133762])
    inner = oracle_layers.layer_norm(Value.given(x), None, None, 1e-5, u)
    doubled = oracle_layers.add(Value(2 * inner.exact, 2 * inner.error), Value.given(shift), u)
    wanted = oracle_layers.add(Value.given(x), doubled, u)
    compare(backend, pre, Value(literal, wanted.error))


@pytest.mark.clause("NORM-2")
def test_dropout_acts_on_the_sublayer_before_the_sum(backend: Any) -> None:
    x, y, gamma, beta = normal(1, 3, 8), normal(2, 3, 8), normal(3, 8), normal(4, 8)
    u = UNIT["float32"]
    keep = oracle_random.bernoulli(oracle_random.key(5), 0.75, y.shape)
    dropped = np.where(keep, y.astype(np.float64) / 0.75, 0.0)
    summed = oracle_layers.add(Value.given(x), Value(dropped, bounds.dropped(dropped, 0.25, "float32")), u)
    option = attnspec.Dropout(0.25, attnspec.random.key(5))
    arrays = [backend.asarray(a) for a in (x, y, gamma, beta)]
    post = attnspec.add_and_norm(*arrays, dropout=option)
    compare(backend, post, oracle_layers.layer_norm(summed, gamma, beta, 1e-5, u))
    pre = attnspec.pre_norm(arrays[0], lambda _: arrays[1], dropout=option)
    compare(backend, pre, summed)


@pytest.mark.clause("NORM-2")
@pytest.mark.needs("float16")
def test_the_sum_is_not_rounded_to_half_on_its_way_into_the_norm(backend: Any) -> None:
    """Beside 1024 half precision has no fractions."""
    x, y = constant(1024, 3, 8).astype(np.float16), normal(2, 3, 8, dtype="float16")
    u = UNIT["float32"]
    summed = oracle_layers.add(Value.given(x), Value.given(y), u)
    got = attnspec.add_and_norm(backend.asarray(x), backend.asarray(y))
    compare(backend, got, oracle_layers.layer_norm(summed, None, None, 1e-5, u), "float16")


@pytest.mark.clause("NORM-2", "ERROR-1")
def test_a_skip_connection_adds_equal_shapes(backend: Any) -> None:
    x, y = backend.asarray(normal(1, 3, 8)), backend.asarray(normal(2, 1, 8))
    with pytest.raises(ShapeError, match=r"\(3, 8\).*\(1, 8\)"):
        attnspec.add_and_norm(x, y)
    with pytest.raises(ShapeError, match=r"\(3, 8\).*\(1, 8\)"):
        attnspec.pre_norm(x, lambda _: y)


@pytest.mark.clause("NORM-1")
@pytest.mark.needs("in_place")
@pytest.mark.parametrize("component", [attnspec.layer_norm, attnspec.rms_norm])
def test_a_row_has_the_same_bits_however_many_there_are(backend: Any, component: Any) -> None:
    x = normal(1, 301, 384)  # more than are computed at once where arrays are written to
    whole, few = (backend.to_numpy(component(backend.asarray(rows))) for rows in (x, x[170:175]))
    assert np.array_equal(whole[170:175], few)


@pytest.mark.clause("NORM-1")
@pytest.mark.parametrize("eps", [0.0, 1e-5])
def test_what_other_rows_hold_changes_no_bit_of_a_row(backend: Any, eps: float) -> None:
    """Rows that are constant, far out of range, tiny or spoilt are normed in ways of their own, and alone."""
    x, gamma, beta = normal(1, 6, 24), *(backend.asarray(normal(n, 24)) for n in (2, 3))

    def normed(rows: Array) -> Array:
        return np.asarray(backend.to_numpy(attnspec.layer_norm(backend.asarray(rows), gamma, beta, eps=eps)))

    before = normed(x)
    for other in (0.0, 3.0, np.nan, np.inf, *(normal(4, 24) * np.float32(2.0**n) for n in (-100, -61, 59, 61, 100))):
        y = x.copy()
        y[2] = other
        np.testing.assert_array_equal(np.delete(normed(y), 2, axis=0), np.delete(before, 2, axis=0))


@pytest.mark.clause("NORM-1")
@pytest.mark.parametrize("exponent", [-100, -61, -59, 57, 59, 61, 100])
@pytest.mark.parametrize("at", [0, 3])
def test_one_entry_may_be_of_another_size_than_its_row(backend: Any, at: int, exponent: int) -> None:
    x = normal(3, 4, 8)
    x[1, at] = 2.0**exponent
    for eps in (0.0, 1e-5):
        check_layer_norm(backend, x, eps=eps)
    x[2] = 3.0
    got = plain(backend, attnspec.layer_norm(backend.asarray(x), eps=0.0))
    np.testing.assert_array_equal(got[2], np.zeros(8))
