"""Legal inputs at the edge of what the dtypes hold, and narrow integers: a right number or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attnspec
from attnspec.errors import CacheError, DTypeError, OptionError, ShapeError

from . import bounds, masks, oracle
from .judges import near
from .masks import Array
from .problems import constant, normal, problem
from .trials import Call


def numbers(backend: Any, x: Any) -> Any:
    return np.asarray(backend.to_numpy(x)).astype(np.float64)


def answer(backend: Any, q: Any, k: Any, dtype: str = "float32", **options: Any) -> Any:
    """Attention of one head with v = 1, 3: 2 is uniform, 1 and 3 are the first and the second key alone."""
    made = [backend.asarray(np.asarray(x), dtype=dtype) for x in (q, k, [[1.0], [3.0]])]
    return numbers(backend, attnspec.attention(*made, **options))[..., 0]


def within(backend: Any, call: Call, got: Any) -> None:
    """Against the oracle's answer to the call."""
    exact = oracle.attention(call)
    verdict = near("out", numbers(backend, got), exact.answer["out"], bounds.out(exact, call.dtype))
    assert verdict.ok, verdict.message


def two_keys(q: float, k: tuple[float, float], **options: Any) -> Call:
    """The call that `answer` makes."""
    rows = [np.array(x, np.float32) for x in ([[q, 0.0]], [[x, 0.0] for x in k], [[1.0], [3.0]])]
    return Call(rows[0], rows[1], rows[2], **options)


@pytest.mark.clause("SCORE-1")
@pytest.mark.parametrize(("q", "k", "scale"), [
    (1e-30, (1e-30, 2e-30), 1e60),
    (1e35, (1e-36, 0.0), 10.0),
])  # fmt: skip
def test_any_finite_scale_gives_the_representable_score(
    backend: Any, q: float, k: tuple[float, float], scale: float
) -> None:
    call = two_keys(q, k, scale=scale)
    within(backend, call, attnspec.attention(*map(backend.asarray, (call.q, call.k, call.v)), scale=scale))


@pytest.mark.clause("SCORE-1")
@pytest.mark.parametrize(("q", "k", "scale", "wanted"), [
    (1.0, (0.0, 0.0), 1e300, 2.0),
    (1e38, (1e38, 0.0), 1e-40, 1.0),
    (-1.0, (1e30, 0.0), 1e200, 3.0),
])  # fmt: skip
def test_a_scale_out_of_range_leaves_one_key_or_all(
    backend: Any, q: float, k: tuple[float, float], scale: float, wanted: float
) -> None:
    assert np.array_equal(answer(backend, [[q, 0.0]], [[x, 0.0] for x in k], scale=scale), [wanted])


@pytest.mark.clause("SCORE-2")
@pytest.mark.needs("float16")
def test_a_huge_scale_does_not_overflow_before_the_product(backend: Any) -> None:
    assert np.array_equal(answer(backend, [[6e4]], [[6e-8], [0.0]], dtype="float16", scale=1e36), [1.0])


@pytest.mark.clause("SCORE-4")
@pytest.mark.parametrize("softcap", [1e300, 1e-50])
def test_a_softcap_out_of_range_caps_nothing_or_everything(backend: Any, softcap: float) -> None:
    call = two_keys(1.0, (0.0, 1.0), scale=1.0, softcap=softcap)
    made = map(backend.asarray, (call.q, call.k, call.v))
    within(backend, call, attnspec.attention(*made, scale=1.0, softcap=softcap))


@pytest.mark.clause("SCORE-1")
@pytest.mark.parametrize("scale", [10**400, float("nan"), np.float64("inf")])
def test_a_scale_that_is_no_finite_number_is_refused(backend: Any, scale: float) -> None:
    with pytest.raises(OptionError, match="scale"):
        answer(backend, [[1.0]], [[0.0], [1.0]], scale=scale)


@pytest.mark.clause("SHAPE-3")
def test_a_numpy_scalar_is_a_number_and_does_not_widen(backend: Any) -> None:
    x = backend.asarray([[1.0]], dtype="float32")
    options: tuple[dict[str, Any], ...] = ({}, {"softcap": np.float64(3.0), "sink": np.float64(0.0)})
    for more in options:
        out = attnspec.attention(x, x, x, scale=np.float64(0.5), **more)
        assert str(out.dtype).endswith("float32")


@pytest.mark.clause("SCORE-5")
@pytest.mark.parametrize(("dtype", "low"), [("float16", -6e4), ("float32", -3e38), ("float64", -1.7e308)])
def test_finite_biases_add_up_to_a_number_that_masks_nothing(backend: Any, dtype: str, low: float) -> None:
    if dtype not in backend.capabilities and dtype != "float32":
        pytest.skip(f"{backend.name} does not declare {dtype}")
    term = backend.asarray(np.full(2, low), dtype=dtype)
    assert np.array_equal(answer(backend, [[1.0]], [[0.0], [0.0]], bias=attnspec.as_bias(term) + term), [2.0])


@pytest.mark.clause("SCORE-5")
@pytest.mark.needs("float16")
def test_alibi_slopes_in_half_precision_keep_every_distance_apart(backend: Any) -> None:
    K = 2051
    q, k = (backend.asarray(np.zeros((n, 1), np.float32)) for n in (1, K))
    bias = attnspec.alibi(backend.asarray([1.0], dtype="float16"))
    far = attnspec.attention_with_lse(q, k, k, bias=bias, mask=~attnspec.padding(K - 2))[1]
    distance: Array = -np.arange(K, dtype=np.float32)
    seen, zeros = masks.Dense(distance <= 2 - K), constant(0, K, 1)
    exact = oracle.attention(Call(zeros[:1], zeros, zeros, bias=distance, mask=seen))
    verdict = near("lse", numbers(backend, far), exact.answer["lse"], bounds.lse(exact, "float32"))
    assert verdict.ok, verdict.message


@pytest.mark.clause("MASK-4")
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32"])
def test_offsets_and_positions_of_narrow_integers_do_not_wrap(backend: Any, dtype: str) -> None:
    K = 301
    narrow = backend.xp.asarray(100, dtype=getattr(backend.xp, dtype))
    q, k = backend.asarray(np.zeros((1, 1), np.float32)), backend.asarray(np.zeros((K, 1), np.float32))

    def visible(mask: Any, **options: Any) -> int:
        return int(np.count_nonzero(numbers(backend, attnspec.attention_weights(q, k, mask=mask, **options))))

    assert visible(attnspec.causal(narrow)) == 101
    assert visible(attnspec.causal(narrow, align="end")) == K
    assert visible(attnspec.window(200, 0, offset=narrow)) == 101
    assert visible(attnspec.padding(narrow)) == 100
    at = backend.xp.asarray([120], dtype=getattr(backend.xp, dtype))
    assert visible(attnspec.window(200, 0), q_positions=at) == 121
    assert visible(attnspec.window(2**40, 0)) == 1


@pytest.mark.clause("MASK-4")
def test_positions_and_alignment_to_the_end_exclude_each_other(backend: Any) -> None:
    x = backend.asarray(np.zeros((3, 1), np.float32))
    for option in (
        {"mask": attnspec.causal(align="end") & attnspec.padding(2)},
        {"bias": attnspec.alibi(1, align="end")},
    ):
        with pytest.raises(OptionError, match="end"):
            attnspec.attention(x, x, x, q_positions=range(4, 7), **option)


@pytest.mark.clause("NORM-1")
@pytest.mark.parametrize("value", [0.0, 1234.5, 3e38, -1e-30])
def test_a_constant_row_gives_beta_whatever_eps(backend: Any, value: float) -> None:
    beta = np.asarray([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], np.float32)
    x, ones, b = (backend.asarray(a, dtype="float32") for a in (np.full((2, 7), value), np.ones(7), beta))
    for eps in (0.0, 1e-50, 1e-5):
        assert np.array_equal(numbers(backend, attnspec.layer_norm(x, ones, b, eps=eps)), np.stack([beta, beta]))


@pytest.mark.clause("MULTIHEAD-4")
def test_a_length_that_can_be_looked_at_is_checked(backend: Any) -> None:
    one = backend.asarray(np.ones((2, 3, 1, 4), np.float32))
    for length in (-5, backend.xp.asarray([0.0, 1.0], dtype=backend.xp.float32), backend.xp.asarray([1, 1, 1])):
        cache = attnspec.Cache(
            backend.asarray(np.zeros((2, 3, 5, 4), np.float32)),
            backend.asarray(np.zeros((2, 3, 5, 4), np.float32)),
            length,
        )
        with pytest.raises((CacheError, ShapeError)):
            cache.append(one, one)


@pytest.mark.clause("ERROR-1")
def test_parameters_that_do_not_fit_are_refused_with_their_shapes(backend: Any) -> None:
    like = backend.asarray(np.zeros(1, np.float32))
    good = attnspec.MultiHeadParams.init(attnspec.random.key(0), model_width=8, heads=2, like=like)
    x = backend.asarray(np.zeros((3, 8), np.float32))
    wrong = {"wo": (2, 3, 8), "wq": (8, 8), "bq": (4,), "wv": (7, 2, 4), "bo": (9,)}
    for name, shape in wrong.items():
        fields = {f: getattr(good, f) for f in ("wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo")}
        params = attnspec.MultiHeadParams(**{**fields, name: backend.asarray(np.zeros(shape, np.float32))})
        with pytest.raises(ShapeError, match=f"{name} has shape"):
            attnspec.multi_head_attention(params, x)


@pytest.mark.clause("ERROR-1")
def test_a_mask_that_does_not_fit_is_refused_before_anything_is_projected(backend: Any) -> None:
    like = backend.asarray(np.zeros(1, np.float32))
    params = attnspec.MultiHeadParams.init(attnspec.random.key(0), model_width=8, heads=2, like=like)
    with pytest.raises(ShapeError, match=r"\(3, 4\)"):
        attnspec.multi_head_attention(
            params, backend.asarray(np.zeros((3, 8), np.float32)), mask=backend.asarray(np.ones((3, 4), bool))
        )


@pytest.mark.clause("SHAPE-1")
def test_arrays_inside_rules_are_of_the_framework_of_q(backend: Any) -> None:
    x = backend.asarray(np.zeros((3, 1), np.float32))
    stranger: Any = np.ones((3, 3), bool) if backend.name != "numpy" else _Stranger()
    with pytest.raises((DTypeError, attnspec.errors.DeviceError)):
        attnspec.attention(x, x, x, mask=attnspec.causal() & attnspec.as_mask(stranger))


class _Stranger:
    """Looks like an array, and no namespace computes with it."""

    dtype, shape, ndim = "bool", (3, 3), 2


@pytest.mark.clause("SCORE-5")
@pytest.mark.parametrize(("n", "most", "first"), [(9, 128, 64), (32, 128, 16)])
def test_buckets_of_relative_distances_begin_where_the_logarithm_says(
    n: int, most: int, first: int, backend: Any
) -> None:
    """For 9 buckets a threshold is 64 itself, whatever a logarithm rounds to."""
    table = backend.asarray(np.arange(n, dtype=np.float32)[None, :])
    K = first + 1
    q, k = (backend.asarray(np.zeros((m, 1), np.float32)) for m in (K, K))
    bias = attnspec.relative_bias(table, max_distance=most, bidirectional=False)
    lse = [
        attnspec.attention_with_lse(q[K - 1 :, :], k[j : j + 1, :], k[j : j + 1, :], bias=bias,
                                    q_positions=range(K - 1, K), k_positions=range(j, j + 1))[1]
        for j in (0, 1)
    ]  # fmt: skip
    at, before = (float(numbers(backend, x)[0]) for x in lse)
    assert at == before + 1


@pytest.mark.clause("PATH-1")
@pytest.mark.needs("jit")
def test_arrays_of_a_closure_are_as_good_as_arguments(backend: Any) -> None:
    rows, seen = np.asarray([[[0.1], [0.7], [-0.3]]], np.float32), np.asarray([[True, False, True]] * 3)
    call, x = Call(rows, rows, rows), backend.asarray(rows)
    calls: list[tuple[Call, Any, Any]] = [
        (call.but(scale=0.5), np.asarray(0.5, np.float32), lambda s: attnspec.attention(x, x, x, scale=s)),
        (call.but(mask=masks.Dense(seen)), seen, lambda m: attnspec.attention(x, x, x, mask=m)),
    ]
    for asked, argument, function in calls:
        within(backend, asked, backend.jit(function)(backend.asarray(argument)))


@pytest.mark.clause("SCORE-2")
@pytest.mark.needs("float64")
def test_an_array_for_the_scale_counts_as_it_is_whatever_its_dtype(backend: Any) -> None:
    call, scale = problem(11, dtype="float64"), np.asarray(0.3, np.float32)
    made = (backend.asarray(x) for x in (call.q, call.k, call.v))
    within(backend, call.but(scale=float(scale)), attnspec.attention(*made, scale=backend.asarray(scale)))


@pytest.mark.clause("SCORE-4")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("scores", "values"), [
    ((0.0, -86.05), (0.0, 1.0)), ((-13.8, -86.4), (0.0, 1.0)), ((-13.8, -86.4), (1.0, 1e38)),
    ((-13.8, -100.0), (0.0, 1.0)), ((68.0, 0.0), (0.0, 1e38)), ((69.5, -17.0), (0.0, 1.0)),
    ((0.0, -90.0), (1.0, 1e38)), ((0.0, -700.0), (0.0, 1.0)),
])  # fmt: skip
def test_a_small_weight_counts_where_its_value_is_large_or_alone(
    backend: Any, dtype: str, scores: tuple[float, float], values: tuple[float, float]
) -> None:
    if dtype == "float64" and "float64" not in backend.capabilities:
        pytest.skip(f"{backend.name} does not declare float64")
    q, k, v = (np.asarray(x, dtype) for x in ([[1.0]], [[s] for s in scores], [[v] for v in values]))
    made = map(backend.asarray, (q, k, v))
    within(backend, Call(q, k, v, dtype=dtype, scale=1.0), attnspec.attention(*made, scale=1.0))


@pytest.mark.clause("PATH-1")
def test_asking_for_lse_changes_no_bit_of_a_small_call_in_any_layout(backend: Any) -> None:
    layouts: dict[str, Callable[[Any], Any]] = {
        "as made": lambda x: x,
        "every second column": lambda x: backend.xp.stack((x, x), axis=-1)[..., 0],
        "a transposed view": lambda x: backend.xp.matrix_transpose(backend.xp.matrix_transpose(x) + 0.0),
        "one row of many": lambda x: backend.xp.stack((x, x), axis=-2)[..., 0, :],
    }
    for lead in ((), (2,), (2, 3)):
        for Q, K, D in ((1, 9, 64), (2, 7, 8), (3, 7, 64), (16, 5, 64), (40, 33, 24)):
            made = [backend.asarray(normal(n, *lead, rows, D)) for n, rows in enumerate((Q, K, K))]
            for name, laid in layouts.items():
                arrays = [laid(x) for x in made]
                alone, (out, _) = attnspec.attention(*arrays), attnspec.attention_with_lse(*arrays)
                assert np.array_equal(backend.to_numpy(alone), backend.to_numpy(out)), (name, lead, Q, K, D)


@pytest.mark.clause("MASK-2")
def test_a_mask_may_be_broadcast_along_the_keys_alone(backend: Any) -> None:
    call = problem(5, lead=(2,), H=2, Q=66, K=65, mask=masks.Dense(np.array([True, False]).reshape(2, 1, 1, 1)))
    arrays = (backend.asarray(x) for x in (call.q, call.k, call.v))
    seen = backend.asarray(np.array([True, False]).reshape(2, 1, 1, 1))
    within(backend, call, attnspec.attention(*arrays, mask=seen))


@pytest.mark.clause("SOFTMAX-1")
@pytest.mark.parametrize("score", [128.0, 8192.0, 2.0**17])
@pytest.mark.parametrize(("Q", "K", "offset"), [(8, 48, 40), (400, 400, 0), (70, 170, 100)])
def test_weights_add_up_to_one_however_large_the_scores_are(
    backend: Any, Q: int, K: int, offset: int, score: float
) -> None:
    q, k = (constant(float(np.sqrt(score / 2)), 1, 2, n, 4) for n in (Q, K))
    made = map(backend.asarray, (q, k, np.ones((1, 2, K, 4), np.float32)))
    out = backend.to_numpy(attnspec.attention(*made, mask=attnspec.causal(offset)))
    np.testing.assert_allclose(out, 1.0, rtol=2e-6)
