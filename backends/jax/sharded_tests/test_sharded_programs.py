"""What compiled programs say: which devices talk, how many bytes they send, how much memory they take."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import traffic  # type: ignore[import-not-found]
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import attnspec

B, H, G, Q, M = 4, 8, 4, 96, 16
PARAMS = ("wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo")
CAUSAL = attnspec.causal()


def attended(q: Any, k: Any, v: Any) -> Any:
    """attention and its gradients."""
    out, pull = jax.vjp(lambda q, k, v: attnspec.attention(q, k, v, mask=CAUSAL), q, k, v)
    return out, *pull(out)


def layer(params: Any, x: Any) -> Any:
    return attnspec.multi_head_attention(params, x, mask=CAUSAL)


def heads(G: int) -> tuple[Any, ...]:
    return tuple(jnp.ones((B, n, Q, 4), jnp.float32) for n in (H, G, G))


def projected(of_params: Callable[[str], P], of_x: P) -> tuple[Any, Any]:
    params = attnspec.MultiHeadParams.init(attnspec.random.key(0), model_width=M, heads=H, kv_heads=G, like=jnp)
    specs = attnspec.MultiHeadParams(**{name: of_params(name) for name in PARAMS})
    return (params, jnp.ones((B, Q, M), jnp.float32)), (specs, of_x)


def by_heads(name: str) -> P:
    """Every weight split over its heads, the bias of the sum over heads whole."""
    return {"wo": P("x"), "bo": P()}.get(name, P(None, "x") if name.startswith("w") else P("x"))


BATCH, HEADS = (P("x"),) * 3, (P(None, "x"),) * 3
CASES: dict[str, tuple[AxisType, Callable[..., Any], Any, Any, list[str]]] = {
    **{
        f"{name}, {split}, {kind.name}": (kind, attended, heads(n), specs, [])
        for name, n in (("attention", H), ("grouped heads", G))
        for split, specs in (("batch", BATCH), ("heads", HEADS))
        for kind in AxisType
        if kind != AxisType.Manual
    },
    "a layer, batch, Auto": (AxisType.Auto, layer, *projected(lambda name: P(), P("x")), []),
    # The heads' outputs are added up over the devices: nothing else is sent.
    "a layer, heads, Auto": (AxisType.Auto, layer, *projected(by_heads, P()), ["all-reduce"]),
}


@pytest.mark.parametrize("name", CASES)
def test_split_over_batch_or_heads_nothing_is_gathered(name: str) -> None:
    kind, function, arrays, specs, wanted = CASES[name]
    mesh = jax.make_mesh((4,), ("x",), axis_types=(kind,), devices=jax.devices()[:4])
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda x: isinstance(x, P))
    placed = jax.tree.map(jax.device_put, arrays, shardings)
    with jax.set_mesh(mesh):
        program = jax.jit(function).lower(*placed).compile()
    assert [kind for kind, _ in traffic.collectives(program)] == wanted
    for result in jax.tree.leaves(program(*placed)):
        assert result.sharding.is_fully_replicated == bool(wanted)


SENDS = {
    ("ring", "forward"): {"collective-permute"},
    ("ring", "gradient"): {"collective-permute"},
    ("ring", "reproducible"): {"all-reduce"},
    ("all_to_all", "forward"): {"all-to-all"},
    ("all_to_all", "gradient"): {"all-to-all"},
    ("split_keys", "forward"): {"all-reduce"},
    ("split_keys", "gradient"): {"all-reduce"},
    ("split_keys", "reproducible"): {"all-reduce", "collective-permute"},
}
SLOW = [("ring", "reproducible"), ("split_keys", "reproducible"), ("all_to_all", "gradient")]
LONG = 2**14
compiled = cache(traffic.program)


@pytest.mark.parametrize(("how", "kind"), [pytest.param(*x, marks=pytest.mark.slow) if x in SLOW else x for x in SENDS])
def test_a_device_sends_the_bytes_of_the_formula_and_nothing_whole(how: str, kind: str) -> None:
    n = 4
    sizes = traffic.Sizes(n, Q=3 if how == "split_keys" else LONG, K=LONG, H=12, G=4, D=8, E=16)
    program = compiled(how, kind, sizes)
    assert {kind for kind, _ in traffic.collectives(program)} == SENDS[how, kind]
    assert traffic.counted(program, n) == pytest.approx(traffic.sent(how, kind, sizes), rel=1e-3)


SQUARES = [
    ("ring", "gradient"),
    *(pytest.param(how, "forward", marks=pytest.mark.slow) for how in ("ring", "all_to_all")),
]


@pytest.mark.parametrize(("how", "kind"), SQUARES)
def test_memory_of_a_device_grows_with_the_sequence_and_not_with_its_square(how: str, kind: str) -> None:
    """Beyond the lengths at which a tile has its full size."""
    taken = []
    for length in (LONG, 2 * LONG):
        sizes = traffic.Sizes(4, Q=length, K=length, H=12, G=4, D=8, E=16)
        taken.append(compiled(how, kind, sizes).memory_analysis().temp_size_in_bytes)
        assert taken[-1] <= traffic.held(how, kind, sizes)
    assert taken[1] < 2 * taken[0]
