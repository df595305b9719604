"""A sequence split over eight devices of one process has the answers, the gradients and the bits of one that is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attnspec_conformance.judges import gradients_within_bound, within_bound
from attnspec_conformance.operands import Operands
from attnspec_conformance.problems import problem, zigzag
from attnspec_conformance.shard_cases import CALLS, WORKERS, D, E, G, H, K, Q
from attnspec_conformance.trials import Call, Result
from attnspec_jax import backend, sharded
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import attnspec
from attnspec import reproducible
from attnspec.errors import DTypeError, OptionError, ShapeError
from attnspec.rows import Fast


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    assert len(jax.devices()) == 8, "JAX was at work before these tests: run this folder by itself"
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def over(n: int, how: str = "ring", **options: Any) -> Any:
    """attention and attention_with_lse over n devices."""
    mesh = jax.make_mesh((n,), ("sequence",), devices=jax.devices()[:n])
    given = {"mesh": mesh, "axis": "sequence", "how": how, **options}
    return SimpleNamespace(
        attention=partial(sharded.attention, **given), attention_with_lse=partial(sharded.attention_with_lse, **given)
    )


@pytest.mark.parametrize(
    ("how", "name"),
    [("ring", name) for name in list(CALLS)[:4]]
    + [(how, name) for how in sharded.WAYS[1:] for name in list(CALLS)[1:3]],
)
def test_answers_and_gradients_are_within_the_bounds_of_the_definition(how: str, name: str) -> None:
    call = CALLS[name]
    forward, back = answered(over(WORKERS, how), call)
    for asked, result, judge in ((call.but(want="lse"), forward, within_bound), (call, back, gradients_within_bound)):
        verdict = judge(asked)((result,))
        assert verdict.ok, verdict.message


def answered(functions: Any, call: Call) -> tuple[Result, Result]:
    """out and lse, and the gradients, by one compiled program."""
    operands = Operands(backend, call.but(want="lse"), {"lse": functions.attention_with_lse})

    @jax.jit  # type: ignore[untyped-decorator]
    def everything(arrays: Any, dout: Any, dlse: Any) -> Any:
        q, k, v, *options = arrays
        results, pull = jax.vjp(lambda q, k, v: operands.function(q, k, v, *options), q, k, v)
        return results, pull((dout, dlse))

    dtype = call.dtype
    cotangents = backend.asarray(call.dout, dtype=dtype), backend.asarray(call.dlse, dtype="float32")
    (out, lse), gradients = everything(operands.arrays, *cotangents)
    parts = dict(zip(("dq", "dk", "dv"), map(np.asarray, gradients), strict=True))
    return (
        Result(out=np.asarray(out), lse=np.asarray(lse), dtype=str(out.dtype), lse_dtype=str(lse.dtype)),
        Result(**parts, dtype=" and ".join({str(x.dtype) for x in gradients})),
    )


def loss(attend: Callable[..., Any], *arrays: Any) -> Any:
    """Of rows of scores, entries for keys, numbers for heads, single numbers."""
    q, k, v, pairs, of_keys, table, slopes, sink, scale, softcap = arrays
    bias = attnspec.as_bias(pairs) + of_keys + attnspec.relative_bias(table) + attnspec.alibi(slopes)
    out, lse = attend(q, k, v, mask=attnspec.causal(5), bias=bias, sink=sink, scale=scale, softcap=softcap)
    return jnp.sin(out).sum() + jnp.cos(lse).sum()


@pytest.mark.parametrize("how", ["ring", "split_keys", pytest.param("all_to_all", marks=pytest.mark.slow)])
def test_every_array_of_an_option_has_its_gradient(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside those of the undivided call, with several tiles on each device."""
    monkeypatch.setattr("attnspec.tiling._SIDE", 8)
    monkeypatch.setattr("attnspec.tiling._AREA", 0)
    rng = np.random.default_rng(1)
    shapes = ((H, Q, D), (G, K, D), (G, K, E), (Q, K), (K,), (H, 3), (H,), (H,), (), ())
    arrays = tuple(jnp.asarray(rng.uniform(0.5, 1.0, s) * rng.choice([-1, 1], s) ** (s != ())) for s in shapes)
    places = tuple(range(len(arrays)))
    found = jax.jit(jax.grad(partial(loss, over(2, how).attention_with_lse), places))(*arrays)
    wanted = jax.jit(jax.grad(partial(loss, attnspec.attention_with_lse), places))(*arrays)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)


def test_what_no_query_can_see_is_not_computed_and_zigzag_gives_all_the_same_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computed: Counter[int] = Counter()
    of_keys = Fast.of_keys

    def counted(request: Any) -> Any:
        jax.debug.callback(lambda device: computed.update([int(device)]), jax.lax.axis_index("sequence"))
        return of_keys(request)

    monkeypatch.setattr(Fast, "of_keys", staticmethod(counted))
    q = jnp.ones((1, 16 * WORKERS, 2))
    for order, pairs in (
        (np.arange(16 * WORKERS, dtype=np.int32), [3, 7, 11, 15]),  # halves of shards: 1 + 2, 3 + 4, ...
        (zigzag(16 * WORKERS, WORKERS), [2 * WORKERS + 1] * WORKERS),
    ):
        computed.clear()
        out = over(WORKERS).attention(
            q, q, q, mask=attnspec.causal(), **dict.fromkeys(("q_positions", "k_positions"), jnp.asarray(order))
        )
        jax.block_until_ready(out)
        jax.effects_barrier()
        assert [computed[i] for i in range(WORKERS)] == pairs


LONG = 1536  # keys: 256 for each of six devices
MANY: dict[str, dict[str, Any]] = {
    "causal, biased": {"mask": attnspec.causal(align="end"), "bias": attnspec.alibi(6), "sink": 0.5},
    "lengths, dropout": {"mask": attnspec.padding([700]), "dropout": attnspec.Dropout(0.25, attnspec.random.key(5))},
}


def long(dtype: str) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(2)
    return tuple(rng.standard_normal(s).astype(dtype) for s in ((1, 6, 12, 8), (1, 2, LONG, 8), (1, 2, LONG, 5)))


QUICK = [("ring", 2), ("split_keys", 3)]
REST = [(how, n) for how in sharded.WAYS for n in (1, 2, 3, 6) if how != "all_to_all" or n <= 2]


@pytest.mark.parametrize(
    ("how", "n", "dtype", "name"),
    [(*case, "float32", "causal, biased") for case in QUICK]
    + [
        pytest.param(*case, dtype, name, marks=pytest.mark.slow)
        for case in REST for dtype in ("float32", "float64", "float16") for name in MANY
        if (*case, dtype, name) not in [(*case, "float32", "causal, biased") for case in QUICK]
    ],
)  # fmt: skip
def test_bits_of_reproducible_mode_do_not_depend_on_the_devices(how: str, n: int, dtype: str, name: str) -> None:
    arrays = long(dtype)
    wanted = reproducible.attention_with_lse(*arrays, **MANY[name])
    found = over(n, how, reproducible=True).attention_with_lse(*map(jnp.asarray, arrays), **MANY[name])
    for one, other in zip(found, wanted, strict=True):
        assert np.asarray(one).dtype == other.dtype
        assert np.asarray(one).tobytes() == other.tobytes()


@pytest.mark.slow
def test_bits_of_gradients_neither_where_heads_are_exchanged() -> None:
    q, k, v = long("float32")

    def gradients(attend: Callable[..., Any], *arrays: Any) -> Any:
        return jax.grad(lambda *arrays: (attend(*arrays, mask=attnspec.causal(9)) ** 2).sum(), (0, 1, 2))(*arrays)

    arrays = tuple(map(jnp.asarray, (q, k[..., :300, :], v[..., :300, :])))
    found = jax.jit(partial(gradients, over(2, "all_to_all", reproducible=True).attention))(*arrays)
    for one, other in zip(found, gradients(reproducible.attention, *arrays), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


@pytest.mark.parametrize("how", ["ring", "split_keys"])
def test_merged_parts_of_reproducible_mode_have_no_gradient(how: str) -> None:
    q, k, v = map(jnp.asarray, long("float32"))
    attend = over(2, how, reproducible=True).attention
    with pytest.raises(OptionError, match='how="all_to_all" has one'):
        jax.eval_shape(jax.grad(lambda q: attend(q, k, v).sum()), q)


def test_half_precision_and_one_head_without_batch() -> None:
    call = problem(5, lead=(), H=1, Q=Q, K=K, D=D, E=E, dtype="bfloat16", want="lse")
    single = call.but(q=call.q[0], k=call.k[0], v=call.v[0])
    operands = Operands(backend, single, {"lse": over(2).attention_with_lse})
    out, lse = operands.function(*operands.arrays)
    result = Result(out=np.asarray(out, np.float64), lse=np.asarray(lse), dtype=str(out.dtype), lse_dtype="float32")
    verdict = within_bound(single)((result,))
    assert verdict.ok, verdict.message


def test_other_axes_of_the_mesh_split_batch_and_heads() -> None:
    """The result lies as the queries do, and gradients as their arrays."""
    kinds = AxisType.Auto, AxisType.Auto, AxisType.Explicit
    mesh = jax.make_mesh((2, 2, 2), ("batch", "heads", "sequence"), axis_types=kinds)
    rng = np.random.default_rng(3)
    spec = P("batch", "heads", "sequence")
    arrays = [rng.standard_normal(s) for s in ((2, H, Q, D), (2, G, K, D), (2, G, K, E))]
    placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x in arrays]
    mask = attnspec.causal(jnp.asarray([4, -3]))

    def everything(attend: Callable[..., Any], *arrays: Any) -> Any:
        out, pull = jax.vjp(partial(attend, mask=mask), *arrays)
        return out, *pull(out)

    found = jax.jit(partial(everything, partial(sharded.attention, mesh=mesh, axis="sequence")))(*placed)
    wanted = jax.jit(partial(everything, attnspec.attention))(*map(jnp.asarray, arrays))
    for one, other in zip(found, wanted, strict=True):
        assert tuple(one.sharding.spec)[:3] == tuple(spec)
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_what_is_split_elsewhere_over_an_explicit_axis_is_not_moved() -> None:
    mesh = jax.make_mesh((2,), ("sequence",), devices=jax.devices()[:2])
    by_heads = jax.device_put(ONES, NamedSharding(mesh, P(None, "sequence")))
    with pytest.raises(ValueError, match="reshard"):
        sharded.attention(by_heads, ONES, ONES, mesh=mesh, axis="sequence")


ONES = jnp.ones((2, 6, 8, 4), jnp.float32)


class Own:
    """A mask of somebody's own."""

    def tile(self, q: Any, k: Any, /, *, xp: Any, device: Any) -> Any:
        return xp.ones((1, 1), dtype=bool)

    def status(self, q: Any, k: Any, /) -> str:
        return "some"


@pytest.mark.parametrize(
    ("error", "says", "n", "options"),
    [
        (OptionError, "one of 'ring', 'all_to_all', 'split_keys'", 2, {"how": "star"}),
        (OptionError, "the mesh has the axes 'sequence'", 2, {"axis": "batch"}),
        (ShapeError, r"Q=8 does not divide into 3 shards.*padding\(\)", 3, {}),
        (ShapeError, "K=8 does not divide into 3 shards", 3, {"how": "split_keys"}),
        (ShapeError, "H=6 does not divide into 4 shards.*takes any number", 4, {"how": "all_to_all"}),
        (ShapeError, "8 devices is 1 keys.*Pad K to a multiple of 2048", 8, {"reproducible": True}),
        (OptionError, "mask holds a Foreign", 2, {"mask": Own()}),
    ],
)
def test_what_cannot_be_split_is_refused_with_the_numbers(
    error: type[Exception], says: str, n: int, options: dict[str, Any]
) -> None:
    with pytest.raises(error, match=says):
        over(n).attention(ONES, ONES, ONES, **options)


@pytest.mark.parametrize("how", ["ring", "split_keys"])
@pytest.mark.parametrize(("queries", "keys"), [(0, 8), (8, 0)])
def test_without_a_query_or_a_key_there_is_nothing_or_zero(how: str, queries: int, keys: int) -> None:
    q, k = ONES[..., :queries, :], ONES[..., :keys, :]
    out, lse = over(2, how).attention_with_lse(q, k, k, mask=attnspec.causal())
    assert out.shape == (2, 6, queries, 4)
    assert not out.any()
    assert bool((lse == -jnp.inf).all())


def test_arrays_of_another_framework_are_refused() -> None:
    x = np.ones((2, 8, 4))
    with pytest.raises(DTypeError, match=r"q is a ndarray.*jax.numpy.asarray"):
        over(2).attention(x, x, x)


def test_many_queries_of_reproducible_mode_go_round_the_ring() -> None:
    q, cache = jnp.ones((1, 257, 2)), jnp.ones((1, 512, 2))
    with pytest.raises(ShapeError, match=r'Q=257\. Use how="ring"'):
        over(2, "split_keys", reproducible=True).attention(q, cache, cache)
