"""The loop over heads: when it serves, and that results and gradients are those of the walk that takes all heads."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attnspec_jax import heads

import attnspec
from attnspec.errors import KernelError
from attnspec.host import host_of
from attnspec.request import make_request
from attnspec.struct import arrays_in, with_arrays

B, H, G, Q, K, D, E = 2, 6, 2, 5, 7, 4, 3


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(sum(shape)).standard_normal(shape), jnp.float32)


SEEN = jnp.asarray(np.random.default_rng(1).random((B, 1, Q, K)) < 0.6)
OPTIONS: dict[str, dict[str, Any]] = {
    "an offset for each item": {"mask": attnspec.window(2, 1, offset=[3, -1]), "sink": normal(B, H)},
    "lengths and an array": {"mask": attnspec.padding([3, 0]) | SEEN},
    "slopes that are numbers": {"bias": attnspec.alibi(H, offset=[1, 2]) + normal(H, 1, K)},
    "a table for each head": {"bias": attnspec.relative_bias(normal(H, 5)), "softcap": jnp.float32(2.0)},
    "dropout of a part": {
        "dropout": attnspec.Dropout(0.3, attnspec.random.key(3), whole=(4, H, 9, 9), at=(1, 0, jnp.arange(5), 2))
    },
    "positions": {"mask": attnspec.causal(), "q_positions": jnp.asarray([[0, 2, 4, 5, 6], [1, 2, 3, 4, 5]])},
}


@pytest.fixture
def inputs() -> tuple[jax.Array, ...]:
    return normal(B, H, Q, D), normal(1, G, K, D), normal(B, G, K, E)


@pytest.fixture(autouse=True)
def any_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "roomy" not in request.fixturenames:
        monkeypatch.setattr(heads, "ROWS", 1)
        monkeypatch.setattr(heads, "SCORES", 1)


@pytest.fixture
def roomy() -> jax.Array:
    """Long enough for the loop as it is."""
    return normal(1, 8, 256, 4)


@pytest.mark.parametrize("name", OPTIONS)
def test_results_and_gradients_are_those_of_the_walk(name: str, inputs: tuple[jax.Array, ...]) -> None:
    arrays = arrays_in("", (inputs, OPTIONS[name]))
    floats = {n: x for n, x in arrays.items() if jnp.issubdtype(x.dtype, jnp.floating)}

    def computed(implementation: str) -> Any:
        def results(floats: dict[str, jax.Array]) -> tuple[jax.Array, ...]:
            given, options = with_arrays("", (inputs, OPTIONS[name]), arrays | floats)
            return attnspec.attention_with_lse(*given, **options, implementation=implementation)

        out, pull = jax.vjp(results, floats)
        return out, pull((out[0], jnp.ones_like(out[1])))

    both = (jax.tree.leaves(jax.jit(computed, static_argnums=0)(by)) for by in ("native", "portable"))
    for x, y in zip(*both, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


def test_it_keeps_maps_forward_mode_and_second_derivatives(inputs: tuple[jax.Array, ...]) -> None:
    q, k, v = inputs

    def computed(implementation: str) -> Any:
        def loss(q: jax.Array, k: jax.Array) -> jax.Array:
            out = attnspec.attention(q, k, v[0], mask=attnspec.causal(1), implementation=implementation)
            return jnp.sum(out * out)

        slope = jax.grad(loss, argnums=1)
        mapped = jax.vmap(slope, in_axes=(0, None))(q, k[0])
        moved = jax.jvp(loss, (q[0], k[0]), (q[1], k[0]))
        return mapped, moved, jax.grad(lambda k: jnp.sum(jnp.sin(slope(q[0], k))))(k[0])

    both = (jax.tree.leaves(jax.jit(computed, static_argnums=0)(by)) for by in ("native", "portable"))
    for x, y in zip(*both, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, 3e38])
def test_what_a_row_does_not_see_changes_no_bit_of_it_nor_of_a_gradient(
    garbage: float, inputs: tuple[jax.Array, ...]
) -> None:
    q, k, v = inputs

    @jax.jit  # type: ignore[untyped-decorator]
    def computed(k: jax.Array, v: jax.Array) -> Any:
        def attend(*arrays: jax.Array) -> jax.Array:
            return attnspec.attention(*arrays, mask=attnspec.causal(), implementation="native")

        out, pull = jax.vjp(attend, q, k, v)
        return out, pull(jnp.ones_like(out))

    def spoilt(first: int) -> Any:
        return computed(*(x.at[..., first:, :].set(garbage) for x in (k, v)))

    out, gradients = computed(k, v)
    np.testing.assert_array_equal(out[..., :3, :], spoilt(3)[0][..., :3, :])
    for x, y in zip((out, *gradients), jax.tree.leaves(spoilt(Q)), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_compiled_call_holds_no_scores_of_a_whole_head() -> None:
    q, side = jnp.zeros((2, 2048, 4)), 2048
    for mask in (None, attnspec.causal(), attnspec.padding(side - 1)):
        compiled = jax.jit(lambda q, mask=mask: attnspec.attention(q, q, q, mask=mask)).lower(q).compile()
        assert compiled.memory_analysis().temp_size_in_bytes < 4 * side**2 // 2


def test_the_tape_takes_the_loop(inputs: tuple[jax.Array, ...]) -> None:
    def function(*arrays: jax.Array) -> jax.Array:
        return attnspec.attention(*arrays, implementation="native")

    out, pull = attnspec.vjp(function, *inputs)
    wanted = jax.vjp(function, *inputs)[1](out)
    for x, y in zip(pull(out), wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


def test_a_call_with_room_is_looped_eager_and_compiled(roomy: jax.Array) -> None:
    attnspec.attention(roomy, roomy, roomy, implementation="native")
    jax.jit(lambda q: attnspec.attention(q, q, q, implementation="native"))(roomy)


def test_arrays_that_may_lie_on_many_devices_are_not_looped_over(
    roomy: jax.Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which devices a program will run on is not known while it is recorded; of arrays with values it is."""
    monkeypatch.setattr(jax, "devices", lambda: [*roomy.devices(), "another"])

    def native(q: jax.Array) -> jax.Array:
        return attnspec.attention(q, q, q, implementation="native")

    native(roomy)
    with pytest.raises(KernelError, match="may be split over 2 devices"):
        jax.jit(native)(roomy)


def test_an_array_of_a_mesh_is_not_looped_over(roomy: jax.Array) -> None:
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        placed = jax.device_put(roomy, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "x")))
        assert heads.supports(make_request(placed, placed, placed)) == "an array belongs to a mesh"


def test_a_call_without_heads_is_not_looped_over(inputs: tuple[jax.Array, ...]) -> None:
    with pytest.raises(KernelError, match="too few for a loop"):
        attnspec.attention(*(x[:0] for x in inputs), implementation="native")


def test_somebody_elses_mask_is_not_cut(inputs: tuple[jax.Array, ...]) -> None:
    class Own:
        def tile(self, q: Any, k: Any, /, *, xp: Any, device: Any) -> Any:
            return xp.ones((q.size, k.size), dtype=xp.bool)

        def status(self, q: Any, k: Any, /) -> str:
            return "some"

    with pytest.raises(KernelError, match="the mask is somebody's own"):
        attnspec.attention(*inputs, mask=Own(), implementation="native")


def test_published_slopes_of_one_head_are_still_known_to_be_finite() -> None:
    q = normal(B, H, Q, D)
    request = make_request(q, q, q, bias=attnspec.alibi(H))
    part = heads._Heads(request).part((jnp.int32(1), jnp.int32(4)))
    spans = request.q_span(0, Q), request.k_span(0, Q)
    assert request.bias is not None
    assert part.bias is not None
    assert part.bias.status(*spans) == "all"
    whole, own = (bias.tile(*spans, xp=jnp, device=None) for bias in (request.bias, part.bias))
    np.testing.assert_array_equal(whole[4], own[0])


def test_the_host_has_the_loop(roomy: jax.Array) -> None:
    assert heads.HEADS in host_of(roomy).kernels
