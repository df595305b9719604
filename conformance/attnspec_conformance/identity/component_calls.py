"""Calls of everything but attention, and of attention in several steps: norms, networks, layers, decoding, draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import attnspec

from .attention_calls import WORDS, Build, dropped
from .problems import Configuration, Operand, Values

M, HIDDEN = 8, 12
X = (3, 5, M)


def components() -> tuple[Configuration, ...]:
    """All of them."""
    labels = {"ids": Operand((3, 5), "ids", most=M - 1)}
    rows = {"ids": Operand((3, 5), "ids", most=8), "lengths": Operand((3,), "lengths", most=5)}
    positions = {"positions": Operand((2, 5), "positions", most=4000)}
    return (
        *(norm for dtype in ("float32", "bfloat16") for norm in _norms(dtype)),
        _norms("float64")[0],
        _of_x("layer norm of 300", lambda api, x: api.layer_norm(x["x"]), shape=(4, 300)),
        *(
            _of_x(f"{name} network", partial(_activating, name), _NETWORK)
            for name in ("gelu", "gelu_tanh", "relu", "silu")
        ),
        _of_x("multi-head", lambda api, x: api.multi_head_attention(_heads(x), x["x"]), _HEADS),
        _of_x("multi-head, rotary", _turning, _HEADS),
        _of_x("multi-head weights", lambda api, x: api.multi_head_weights(_heads(x), x["x"]), _HEADS),
        _of_x("layer, post", lambda api, x: api.transformer_layer(_layer(x), x["x"]), _LAYER),
        _of_x("layer, pre, dropout", _dropping, _LAYER | WORDS),
        _of_x("stack", lambda api, x: api.transformer_stack(_stack(x), x["x"]), _LAYER),
        Configuration("decoding", {"x": Operand((3, 8, M), "number"), **_HEADS}, _decoded, rounded=True),
        _of_x("dropout", lambda api, x: api.dropout(x["x"], 0.3, api.random.wrap(x["words"])), WORDS),
        *(
            _of_x(f"rotary, interleaved {turned}", partial(_turned, turned), positions, shape=(2, 3, 5, M))
            for turned in (False, True)
        ),
        Configuration("normal numbers", {"like": Operand((), "weight"), **WORDS}, _drawn),
        _of_x(
            "embed and pool", lambda api, x: api.mean_pool(api.embed(x["x"], x["ids"]), x["lengths"]), rows,
            shape=(9, M),
        ),
        _of_x("cross entropy", lambda api, x: api.cross_entropy(x["x"], x["ids"]), labels),
        Configuration("merged parts", _QKV, _merged),
        _gradients("layer norm", lambda api, x: api.layer_norm(x["x"], x["gamma1"], x["beta1"]), _NORMS),
        _gradients("a layer", lambda api, x: api.transformer_layer(_layer(x), x["x"]), _LAYER),
        _gradients("a network", lambda api, x: api.feed_forward(_network(x, "silu"), x["x"]), _NETWORK),
    )  # fmt: skip


def _of_x(
    name: str, compute: Build, more: Mapping[str, Operand] | None = None, *, dtype: str = "float32",
    shape: tuple[int, ...] = X,
) -> Configuration:  # fmt: skip
    return Configuration(f"{name} {dtype}", {"x": Operand(shape, "number", dtype), **(more or {})}, compute)


def _norms(dtype: str) -> tuple[Configuration, ...]:
    affine = {"gamma": Operand((M,), "gain", dtype), "beta": Operand((M,), "weight", dtype)}
    two = affine | {"y": Operand(X, "number", dtype)}
    return (
        _of_x("layer norm", lambda api, x: api.layer_norm(x["x"], x["gamma"], x["beta"]), affine, dtype=dtype),
        _of_x("rms norm", lambda api, x: api.rms_norm(x["x"], x["gamma"], eps=1e-6), affine, dtype=dtype),
        _of_x("add and norm", lambda api, x: api.add_and_norm(x["x"], x["y"], x["gamma"], x["beta"]), two, dtype=dtype),
    )


def _weights(**shapes: tuple[int, ...]) -> dict[str, Operand]:
    return {name: Operand(shape, "weight") for name, shape in shapes.items()}


_HEADS = _weights(
    wq=(M, 4, 6), wk=(M, 2, 6), wv=(M, 2, 5), wo=(4, 5, M), bq=(4, 6), bk=(2, 6), bv=(2, 5), bo=(M,)
)  # fmt: skip
_NETWORK = _weights(w_in=(M, HIDDEN), w_out=(HIDDEN, M), b_in=(HIDDEN,), b_out=(M,))
_NORMS = {
    name: Operand((M,), "gain" if "gamma" in name else "weight") for name in ("gamma1", "beta1", "gamma2", "beta2")
}
_LAYER = _HEADS | _NETWORK | _NORMS
_QKV = {"q": Operand((2, 6, 5, 4), "q"), "k": Operand((2, 3, 7, 4), "k"), "v": Operand((2, 3, 7, 3), "number")}


def _heads(x: Values) -> Any:
    return attnspec.MultiHeadParams(**{name: x[name] for name in _HEADS})


def _network(x: Values, activation: Any = "gelu") -> Any:
    return attnspec.FeedForwardParams(**{name: x[name] for name in _NETWORK}, activation=activation)


def _layer(x: Values, order: Any = "post") -> Any:
    first, second = (attnspec.NormParams(x[f"gamma{n}"], x[f"beta{n}"]) for n in (1, 2))
    return attnspec.LayerParams(_heads(x), _network(x), first, second, order)


def _stack(x: Values) -> Any:
    return attnspec.StackParams((_layer(x, "pre"), _layer(x, "post")), attnspec.NormParams(x["gamma1"]))


def _activating(activation: str, api: Any, x: Values) -> Any:
    return api.feed_forward(_network(x, activation), x["x"])


def _turned(interleaved: bool, api: Any, x: Values) -> Any:
    return api.rotary(x["x"], x["positions"], interleaved=interleaved)


def _turning(api: Any, x: Values) -> Any:
    return api.multi_head_attention(_heads(x), x["x"], rotary=api.Rotary(), mask=api.causal())


def _dropping(api: Any, x: Values) -> Any:
    return api.transformer_layer(_layer(x, "pre"), x["x"], mask=api.causal(), residual_dropout=dropped(api, x))


def _decoded(api: Any, x: Values) -> Any:
    """A prefill of 4 rows, and three steps of 1, 2 and 1."""
    params = _heads(x)
    cache = api.Cache.of(params, capacity=11, lead=(3,))
    rows = []
    for start, stop in ((0, 4), (4, 5), (5, 7), (7, 8)):
        y, cache = api.multi_head_attention_with_cache(params, x["x"][:, start:stop, :], cache)
        rows.append(y)
    return rows, cache.k, cache.v


def _drawn(api: Any, x: Values) -> Any:
    return api.random.normal(api.random.wrap(x["words"]), (257,), like=x["like"])


def _merged(api: Any, x: Values) -> Any:
    cuts = ((0, 3), (3, 7))
    return api.merge_attention(
        [api.attention_with_lse(x["q"], x["k"][..., a:b, :], x["v"][..., a:b, :]) for a, b in cuts]
    )


def _gradients(name: str, function: Callable[[Any, Any], Any], more: Mapping[str, Operand]) -> Configuration:
    """The result of function(api, arrays), and the gradients of all its arrays."""

    def compute(api: Any, x: Values) -> Any:
        arrays = {name: value for name, value in x.items() if name != "cotangent"}
        y, pull = api.vjp(lambda arrays: function(api, arrays), arrays)
        return y, pull(x["cotangent"])

    return _of_x(f"gradients of {name}", compute, {**more, "cotangent": Operand(X, "number")})
