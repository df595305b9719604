"""cuDNN's attention as a kernel: which calls it takes, and that its rows are cleaned and mended.

By XLA's form of the same function, in the place of cuDNN's.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attnspec_jax import cudnn

import attnspec
from attnspec import host
from attnspec.errors import KernelError

B, H, G, Q, K, D, E = 2, 6, 2, 5, 7, 4, 3
GPU = SimpleNamespace(platform="gpu", compute_capability="9.0", device_kind="NVIDIA H200")


def normal(*shape: int, dtype: Any = jnp.bfloat16) -> jax.Array:
    return jnp.asarray(np.random.default_rng(sum(shape)).standard_normal(shape), dtype)


@pytest.fixture
def inputs() -> tuple[jax.Array, ...]:
    return normal(1, B, H, Q, D), normal(3, 1, G, K, D), normal(3, B, G, K, E)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A device that looks like one, on which XLA's form is computed."""
    device = SimpleNamespace(**vars(GPU))
    monkeypatch.setattr(cudnn, "device_of_all", lambda *arrays: device)
    monkeypatch.setattr(cudnn, "IMPLEMENTATION", "xla")
    hosts = {root: replace(h, kernels=(cudnn.CUDNN,)) for root, h in host._hosts.items() if root.startswith("jax")}
    monkeypatch.setattr(host, "_hosts", host._hosts | hosts)
    return device


def attend(q: Any, k: Any, v: Any, *, implementation: str = "native", **options: Any) -> Any:
    return attnspec.attention(q, k, v, implementation=implementation, **options)


MASKS = {"none": None, "causal": attnspec.causal(), "from the end": attnspec.causal(Q - K, align="end")}


@pytest.mark.parametrize("name", MASKS)
def test_results_gradients_and_tangents_are_those_of_the_walk(name: str, inputs: tuple[jax.Array, ...]) -> None:
    def computed(implementation: str) -> Any:
        def function(*arrays: jax.Array) -> jax.Array:
            return attend(*arrays, implementation=implementation, mask=MASKS[name]).astype(jnp.float32)

        out, pull = jax.vjp(function, *inputs)
        return out, pull(jnp.ones_like(out)), jax.jvp(function, inputs, inputs)

    both = (jax.tree.leaves(computed(by)) for by in ("native", "portable"))
    for x, y in zip(*both, strict=True):
        np.testing.assert_allclose(np.float32(x), np.float32(y), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, 3e38])
def test_what_a_row_does_not_see_changes_no_bit_of_it(garbage: float, inputs: tuple[jax.Array, ...]) -> None:
    q, k, v = inputs
    spoilt = (x.at[..., 3:, :].set(garbage) for x in (k, v))
    mask = attnspec.causal()
    clean, other = attend(q, k, v, mask=mask), attend(q, *spoilt, mask=mask)
    np.testing.assert_array_equal(np.float32(clean[..., :3, :]), np.float32(other[..., :3, :]))


@pytest.mark.parametrize("mask", [None, attnspec.causal()])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_row_that_sees_what_is_no_number_is_that_of_the_walk(
    mask: Any, place: int, number: float, inputs: tuple[jax.Array, ...]
) -> None:
    arrays = list(inputs)
    arrays[place] = arrays[place].at[-1, -1, 1, 2, 1].set(number)
    out, wanted = (np.float32(attend(*arrays, implementation=by, mask=mask)) for by in ("native", "portable"))
    np.testing.assert_array_equal(np.isnan(out), np.isnan(wanted))
    assert np.isnan(out).any()
    assert not np.isnan(out).all()


def test_a_row_whose_scores_overflow_is_that_of_the_walk(inputs: tuple[jax.Array, ...]) -> None:
    q, k, v = inputs
    q, k = q.at[..., 1, 2, :].set(3e38), k.at[1, 0, 0].set(3e38)
    out, wanted = (np.float32(attend(q, k, v, implementation=by)) for by in ("native", "portable"))
    np.testing.assert_array_equal(np.isnan(out), np.isnan(wanted))


def test_asking_for_the_lse_changes_no_bit_of_the_output(inputs: tuple[jax.Array, ...]) -> None:
    out, lse = attnspec.attention_with_lse(*inputs, implementation="native")
    np.testing.assert_array_equal(np.float32(out), np.float32(attend(*inputs)))
    assert lse.dtype == jnp.float32


@pytest.mark.parametrize(
    ("why", "options"),
    [
        ("bias", {"bias": normal(Q, K)}), ("softcap", {"softcap": 2.0}), ("sink", {"sink": 1.0}),
        ("dropout", {"dropout": attnspec.Dropout(0.5, attnspec.random.key(0))}),
        ("positions", {"q_positions": jnp.arange(Q)}), ("scale", {"scale": jnp.float32(1.0)}),
        ("mask", {"mask": attnspec.causal(1)}), ("mask", {"mask": attnspec.padding(3)}),
        ("mask", {"mask": attnspec.window(2, 0)}), ("mask", {"mask": attnspec.causal(align="end")}),
    ],
)  # fmt: skip
def test_other_options_are_refused(why: str, options: dict[str, Any], inputs: tuple[jax.Array, ...]) -> None:
    with pytest.raises(KernelError, match=why):
        attend(*inputs, **options)


def test_other_shapes_and_dtypes_are_refused(inputs: tuple[jax.Array, ...]) -> None:
    q, k, v = inputs
    wide = jnp.zeros((*v.shape[:-1], 136), v.dtype)
    whole = (x.astype(jnp.float32) for x in (q, k, v))
    for arrays in (whole, (q, k, wide), (q, k, v[..., :0]), (q, k[..., :0, :], v[..., :0, :])):
        with pytest.raises(KernelError, match="cuDNN: "):
            attend(*arrays)


@pytest.mark.parametrize(
    "change", [{"platform": "cpu"}, {"compute_capability": "7.5"}, {"compute_capability": "gfx90a"}]
)
def test_other_devices_are_refused(change: dict[str, str], gpu: SimpleNamespace, inputs: tuple[jax.Array, ...]) -> None:
    vars(gpu).update(change)
    with pytest.raises(KernelError, match="the device is a NVIDIA H200"):
        attend(*inputs)
