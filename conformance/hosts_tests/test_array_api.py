"""A function of somebody else's project, on the arrays of every library that is installed, each asked in its own kind.

CuPy needs a GPU and is asked where it is installed.
"""

from __future__ import annotations

import runpy
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from attnspec_conformance import bounds, judges, oracle
from attnspec_conformance.masks import Causal
from attnspec_conformance.trials import Call
from judging import draw, judged

import attnspec
from attnspec import registry
from attnspec.backend import choose

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "hosts" / "array_api_function.py"
B, H, G, Q, K, D, E = 3, 6, 2, 5, 7, 4, 8


class Dask:
    """Dask's arrays, with the host of attnspec-dask or without any."""

    def __init__(self):
        import dask.array

        self.xp = dask.array

    def asarray(self, x, dtype):
        return self.xp.from_array(np.asarray(x, dtype=dtype), chunks=3)

    def to_numpy(self, x):
        return x.compute()


class Cupy:
    """CuPy's arrays."""

    def __init__(self):
        import cupy

        self.xp = cupy

    def asarray(self, x, dtype):
        return self.xp.asarray(x, dtype=dtype)

    def to_numpy(self, x):
        return self.xp.asnumpy(x)


MAKERS = {"dask": Dask, "cupy": Cupy}
NAMES = sorted({"numpy", "torch", "jax", "strict", *MAKERS})


@pytest.fixture(params=NAMES)
def library(request):
    if request.param in MAKERS:
        if find_spec(request.param) is None:
            pytest.skip(f"{request.param} is not installed")
        return MAKERS[request.param]()
    if not hasattr(status := registry.status(request.param), "xp"):
        pytest.skip(str(status))
    return choose(request.param)


@pytest.fixture(scope="module")
def kernel_regression():
    return runpy.run_path(str(EXAMPLE))["kernel_regression"]


def direct(x, y, at, bandwidth):
    """Nadaraya and Watson's formula, in float64."""
    x, y, at = (a.astype("float64") for a in (x, y, at))
    weights = np.exp(-((at[:, None] - x[None]) ** 2).sum(-1) / (2 * bandwidth**2))
    return (weights * y).sum(-1) / weights.sum(-1)


def test_the_function_gives_the_formula_in_the_arrays_that_it_was_given(library, kernel_regression):
    x, y, at = draw(K, 2), draw(K), draw(Q, 2)
    given = [library.asarray(a, dtype="float32") for a in (x, y, at)]
    out = kernel_regression(*given, bandwidth=0.7)
    assert type(out) is type(given[0])
    bias = -(x * x).sum(-1, dtype="float32") / np.float32(2 * 0.7**2)
    call = Call(at, x, y[:, None], bias=bias, scale=0.7**-2)
    exact = oracle.attention(call)
    # |x|^2 / (2 h^2) is rounded three times and its sum of 2 squares once.
    bound = bounds.out(exact, "float32", slack=bounds.Slack(score=4 * bounds.UNIT["float32"] * np.abs(bias)))
    verdict = judges.near("values", library.to_numpy(out)[:, None], direct(x, y, at, 0.7)[:, None], 2 * bound)
    assert verdict.ok, verdict.message


def test_attention_is_within_the_bound_in_the_arrays_that_it_was_given(library):
    call = Call(draw(B, H, Q, D), draw(B, G, K, D), draw(B, G, K, E), mask=Causal(), bias=draw(H, 1, K))
    q, k, v, bias = (library.asarray(x, dtype="float32") for x in (call.q, call.k, call.v, call.bias))
    out = attnspec.attention(q, k, v, mask=attnspec.causal(), bias=bias)
    assert type(out) is type(q)
    verdict = judged(call, library.to_numpy(out))
    assert verdict.ok, verdict.message


def test_a_graph_of_dask_is_built_without_computing_it():
    dask = pytest.importorskip("dask")

    def refuse(graph, keys, **options):
        pytest.fail("computed while the graph was being built")

    library = Dask()
    q, k, v = (library.asarray(draw(B, h, n, D), dtype="float32") for h, n in ((H, Q), (G, K), (G, K)))
    with dask.config.set(scheduler=refuse):
        out = attnspec.attention(q, k, v, mask=attnspec.causal())
    assert out.shape == (B, H, Q, D)
