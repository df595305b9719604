"""What a backend declares, it does: compiling, mapping, differentiating, devices. One test or more a capability."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attnspec

from . import bounds, masks, oracle_layers
from .judges import near, within_bound
from .masks import Array
from .problems import constant, normal, problem
from .subjects import BackendSubject
from .trials import Call, Result

pytestmark = pytest.mark.clause("PATH-1")


def compare(backend: Any, call: Call, out: Any, lse: Any) -> None:
    """Against the oracle, within the bound."""
    plain = [np.asarray(backend.to_numpy(x)).astype(np.float64) for x in (out, lse)]
    verdict = within_bound(call.but(want="lse"))(
        (Result(out=plain[0], lse=plain[1], dtype="float32", lse_dtype="float32"),)
    )
    assert verdict.ok, verdict.message


@pytest.mark.needs("jit")
def test_every_array_option_may_be_traced(backend: Any) -> None:
    seen, bias, sink = np.random.default_rng(1).random((6, 5, 7)) < 0.7, normal(3, 5, 7), normal(4, 6)
    lengths, offset = np.array([6, 3], np.int32), np.array([1, 2], np.int32)
    q_ids, k_ids = np.array([[0] * 5] * 2, np.int32), np.array([[0, 0, 0, 0, 1, 0, 0]] * 2, np.int32)
    scale, softcap = (np.array(x, np.float32) for x in (0.5, 2.0))
    rules = masks.Both(masks.Causal(offset), masks.Both(masks.Padding(lengths), masks.Dense(seen)))
    call = problem(
        mask=masks.Both(rules, masks.Segments(q_ids, k_ids)),
        bias=bias,
        sink=sink,
        scale=0.5,
        softcap=2.0,
    )

    def function(q: Array, k: Array, v: Array, *options: Array) -> Any:
        seen, bias, sink, lengths, offset, q_ids, k_ids, scale, softcap = options
        mask = (
            attnspec.causal(offset)
            & attnspec.padding(lengths)
            & attnspec.as_mask(seen)
            & attnspec.segments(q_ids, k_ids)
        )
        return attnspec.attention_with_lse(q, k, v, mask=mask, bias=bias, sink=sink, scale=scale, softcap=softcap)

    inputs = (call.q, call.k, call.v, seen, bias, sink, lengths, offset, q_ids, k_ids, scale, softcap)
    compare(backend, call, *backend.jit(function)(*map(backend.asarray, inputs)))


@pytest.mark.needs("jit")
@pytest.mark.clause("DROPOUT-3")
def test_a_rate_and_a_key_may_be_traced(backend: Any) -> None:
    call = problem(dropout=masks.Dropout(0.25, 5))

    def function(q: Array, k: Array, v: Array, rate: Array, words: Array) -> Any:
        drop = attnspec.Dropout(rate, attnspec.random.wrap(words))
        return attnspec.attention_with_lse(q, k, v, dropout=drop)

    rate, words = np.array(0.25, np.float32), np.array([0, 5], np.int32)
    compare(backend, call, *backend.jit(function)(*map(backend.asarray, (call.q, call.k, call.v, rate, words))))


@pytest.mark.needs("vmap")
def test_mapping_over_the_batch_is_the_batch(backend: Any) -> None:
    lengths = np.array([6, 0], np.int32)
    call = problem(mask=masks.Both(masks.Causal(1), masks.Padding(lengths)))

    def one(q: Array, k: Array, v: Array, length: Array) -> Any:
        return attnspec.attention_with_lse(q, k, v, mask=attnspec.causal(1) & attnspec.padding(length))

    compare(backend, call, *backend.vmap(one)(*map(backend.asarray, (call.q, call.k, call.v, lengths))))


@pytest.mark.needs("vmap")
@pytest.mark.clause("DROPOUT-3")
def test_a_mapped_key_draws_what_each_key_draws(backend: Any) -> None:
    words = np.array([[0, 3], [7, -5]], np.int32)
    mapped = backend.vmap(lambda w: attnspec.random.bits(attnspec.random.wrap(w), (4,)))(backend.asarray(words))
    for n in range(2):
        key = attnspec.random.wrap([int(word) for word in words[n]])
        alone = attnspec.random.bits(key, (4,), like=backend.like)
        np.testing.assert_array_equal(backend.to_numpy(mapped)[n], backend.to_numpy(alone))


WIDTHS = {"q": (8, 2, 4), "k": (8, 2, 4), "v": (8, 2, 3), "o": (2, 3, 8)}


@pytest.mark.needs("pytree", "vmap")
def test_parameters_pass_through_vmap(backend: Any) -> None:
    each = [{f"w{n}": normal(10 * seed + i, *WIDTHS[n], size=0.4) for i, n in enumerate("qkvo")} for seed in (1, 2)]
    both = attnspec.MultiHeadParams(**{name: backend.asarray(np.stack([p[name] for p in each])) for name in each[0]})
    x = normal(1, 5, 8)
    made = backend.asarray(x)
    mapped = np.asarray(backend.to_numpy(backend.vmap(lambda p: attnspec.multi_head_attention(p, made))(both)))
    nothing = problem(lead=(), H=1)
    for n, arrays in enumerate(each):
        biases: dict[str, Array | None] = {f"b{letter}": None for letter in "qkvo"}
        given = oracle_layers.Value.given(x)
        wanted = oracle_layers.multi_head(arrays | biases, given, given, nothing, bounds.UNIT["float32"])["y"]
        verdict = near("y", mapped[n], wanted.exact, wanted.error)
        assert verdict.ok, verdict.message


@pytest.mark.needs("pytree", "vjp")
def test_gradients_come_in_the_class_of_the_parameters(backend: Any) -> None:
    params = attnspec.NormParams.init(width=4, like=backend.like)
    x = backend.asarray(normal(1, 3, 4))
    _, pull = backend.vjp(lambda p: attnspec.normalise(p, x), params)
    (gradient,) = pull(backend.asarray(constant(1, 3, 4)))
    assert type(gradient) is attnspec.NormParams
    np.testing.assert_array_equal(backend.to_numpy(gradient.beta), constant(3, 4))


@pytest.mark.needs("second_device")
@pytest.mark.clause("SHAPE-1")
def test_everything_stays_on_the_device_of_its_inputs(backend: Any) -> None:
    second = backend.devices()[-1]
    q, k, v = (backend.asarray(normal(n, 2, 6, 5, 4), device=second) for n in range(3))
    lengths = backend.asarray(np.array([3, 1], np.int32), device=second)
    out, lse = attnspec.attention_with_lse(
        q,
        k,
        v,
        mask=attnspec.causal([0, 1]) & (attnspec.padding(lengths) | ~attnspec.segments([0, 1, 0, 1, 0])),
        bias=attnspec.alibi(6),
        dropout=attnspec.Dropout(0.25, attnspec.random.key(1)),
    )
    params = attnspec.MultiHeadParams.init(attnspec.random.key(0), model_width=4, heads=2, like=q)
    y = attnspec.multi_head_attention(params, q)
    for x in (out, lse, params.wq, y, attnspec.layer_norm(q), attnspec.rotary(q, lengths[:1])):
        assert str(x.device) == str(q.device)
    assert tuple(out.shape) == (2, 6, 5, 4)


@pytest.mark.needs("in_place")
@pytest.mark.clause("SHAPE-4")
def test_results_are_arrays_of_their_own(backend: Any) -> None:
    x = backend.asarray(constant(1, 2, 3))
    x[0, 0] = 5.0
    out = attnspec.attention(x, x, x)
    out[...] = 7.0
    np.testing.assert_array_equal(backend.to_numpy(x), [[5, 1, 1], [1, 1, 1]])


@pytest.mark.needs("device_argument")
def test_arrays_are_made_on_a_named_device(backend: Any) -> None:
    for device in backend.devices():
        assert str(backend.xp.zeros(2, device=device).device) == str(device)


@pytest.mark.needs("known_shapes")
def test_every_axis_has_a_length(backend: Any) -> None:
    assert tuple(map(type, backend.asarray(constant(1, 2, 3)).shape)) == (int, int)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_a_dtype_is_there_if_and_only_if_it_is_declared(backend: Any, dtype: str) -> None:
    made = None
    try:
        made = backend.asarray([1.0], dtype=dtype)
    except (TypeError, AttributeError):
        assert dtype not in backend.capabilities
    if made is not None and dtype in backend.capabilities:
        assert str(made.dtype).rpartition(".")[2] == dtype


def test_optional_parts_are_there_if_declared(backend: Any) -> None:
    for capability in ("jit", "vjp", "vmap"):
        assert callable(getattr(backend, capability, None)) is (capability in backend.capabilities)


def test_the_subject_of_a_backend_sees_what_it_computes(backend: Any) -> None:
    call = problem(want="lse")
    result = BackendSubject(backend).forward(call)
    assert result.dtype == "float32"
    assert within_bound(call)((result,)).ok
