"""Small calls without options: the bits of the walk over tiles, to which is left what asks for more."""

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from attnspec import in_place, small
from attnspec.host import Kernel, host_of
from attnspec.request import make_request

SHAPES = [  # (..., H), Q, K, D, E
    ((), 1, 1, 1, 1), ((), 512, 512, 16, 8), ((1, 1), 8, 8, 8, 8), ((2, 8), 64, 64, 64, 64), ((3, 2), 1, 700, 24, 5),
    ((2, 3), 33, 65, 7, 3), ((40,), 2, 3, 5, 4), ((2, 5), 32, 512, 64, 16), ((1, 2), 3, 2048, 64, 8),
    ((512,), 16, 32, 4, 2),
]  # fmt: skip
ONE = ((1, 4), (2, 4), (2, 1))  # of one query and two keys


@pytest.fixture(params=["numpy", "torch", "strict"])
def backend(request):
    pytest.importorskip({"strict": "array_api_strict"}.get(request.param, request.param))
    return import_module(f"attnspec_{request.param}.backend")


@pytest.fixture
def attend(backend):
    """`small_call` of what is made into arrays of the backend."""
    return lambda *arrays, scale=None: small_call(*made(backend, *arrays), scale=scale)


def small_call(q, k, v, *, scale=None, kernels=()):
    """`small.attend`, without the kernels of the host."""
    return small.attend(replace(host_of(q), kernels=kernels), q, k, v, scale)


def made(backend, *arrays, dtype="float32"):
    return [backend.asarray(np.asarray(x), dtype=dtype) for x in arrays]


def drawn(lead, Q, K, D, E):
    rng = np.random.default_rng(Q * K + D)
    return [rng.standard_normal((*lead, *shape)) for shape in ((Q, D), (K, D), (K, E))]


@pytest.mark.parametrize("size", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_small_call_has_the_bits_of_the_walk(backend, shape, size):
    for dtype in ("float32", "float64"):
        arrays = made(backend, *(size * x for x in drawn(*shape)), dtype=dtype)
        for scale in (None, -0.3):
            out = small_call(*arrays, scale=scale)
            with host_of(arrays[0]).scope():
                walked = in_place.attend(make_request(*arrays, scale=scale))[0]
            assert size > 1 or shape[3] == 1 or out is not None
            assert out is None or np.array_equal(backend.to_numpy(out), backend.to_numpy(walked).reshape(out.shape))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", range(3))
def test_what_is_not_finite_is_left_to_the_walk(attend, place, value):
    arrays = [np.ones(shape) for shape in ONE]
    assert attend(*arrays) is not None
    arrays[place][..., -1] = value
    assert attend(*arrays) is None


@pytest.mark.parametrize("backend", ["numpy", "torch"], indirect=True)  # the other never knows that nothing is lost
@pytest.mark.parametrize(
    ("scores", "taken"),
    [
        ((0.0, -13.9), True), ((-13.0, -13.5), True), ((-14.5, -15.0), False), ((0.0, -100.0), False),
        ((68.0, 60.0), True), ((69.0, 69.0), False), ((1e4, 0.0), False), ((88.0, -80.0), False),
    ],
)  # fmt: skip
def test_sums_that_are_too_small_or_too_large_are_left_to_the_walk(attend, scores, taken):
    k = [[2 * score, 0.0] for score in scores]
    assert (attend([[1.0, 0.0]], k, [[1.0], [2.0]], scale=0.5) is not None) == taken


def test_a_result_that_overflows_is_left_to_the_walk(attend):
    assert attend(*(np.zeros(shape) for shape in ONE[:2]), [[3e38], [3e38]]) is None


@pytest.mark.parametrize(
    "shapes",
    [
        ((1, 513, 4), (1, 3, 4), (1, 3, 2)), ((5, 512, 4), (5, 103, 4), (5, 103, 1)),  # more than a tile
        ((2, 3, 4), (1, 5, 4), (1, 5, 2)), ((2, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 2)),  # heads or batches are shared
        ((3, 4), (0, 4), (0, 2)), ((0, 4), (3, 4), (3, 2)), ((3, 0), (3, 0), (3, 2)), ((3, 4), (3, 4), (3, 0)),
        ((3, 4), (3, 5), (3, 2)), ((3, 4), (3, 4), (4, 2)), ((4,), (4,), (4,)), ((), (), ()),  # refused by others
    ],
)  # fmt: skip
def test_other_shapes_are_left_to_the_walk(attend, shapes):
    assert attend(*(np.ones(shape) for shape in shapes)) is None


@pytest.mark.parametrize("scale", [0.0, 1.5, np.float64(1e-30), "half", [0.5]])
def test_other_scales_are_left_to_the_walk(attend, scale):
    assert attend(*(np.ones(shape) for shape in ONE), scale=scale) is None


def test_dtypes_and_kinds_that_differ_are_left_to_the_walk(backend):
    q, k, v = made(backend, *(np.ones(shape) for shape in ONE))
    (wide,) = made(backend, np.ones(ONE[1]), dtype="float64")
    assert small_call(q, wide, v) is None
    assert small_call(q, [[1.0] * 4], v) is None
    assert small_call([[1.0] * 4], k, v) is None


def test_what_shapes_say_is_kept_of_a_few_of_them(attend):
    for K in range(1, 2 * small._KEPT):
        assert attend(*(np.ones((K, 4)) for _ in range(3))) is not None
        assert 0 < len(small._known) <= small._KEPT


def test_a_kernel_from_so_many_scores_is_not_forestalled(backend):
    arrays = made(backend, *(np.ones(shape) for shape in ONE))
    for scores, near, taken in ((2, True, False), (3, True, True), (2, False, True)):
        kernel = Kernel(
            "k", lambda request: None, lambda request: None, from_scores=scores, is_near=lambda x, near=near: near
        )
        assert (small_call(*arrays, kernels=(kernel,)) is not None) == taken


def test_extremes_are_the_least_and_the_largest_in_any_layout(backend):
    (x,) = made(backend, np.random.default_rng(0).standard_normal((3, 5, 40)))
    extremes = host_of(x).in_place.extremes
    for view in (x, x[1:, :, :7], x[:1, :1, :1], backend.xp.permute_dims(x, (2, 0, 1))):
        plain = backend.to_numpy(view)
        assert extremes(view) == (plain.min(), plain.max())
    (x,) = made(backend, [1.0, np.nan, np.inf])
    assert all(map(np.isnan, extremes(x)))
