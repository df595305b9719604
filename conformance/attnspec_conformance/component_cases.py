"""Every component but attention, to differentiate with respect to everything that it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np

import attnspec
from attnspec.struct import Struct

from . import masks, oracle_layer_pullbacks, oracle_model_pullbacks, oracle_pullbacks
from .differentiating import Case
from .masks import Array
from .oracle_layers import Value, add
from .problems import normal, problem, rounded, some_mask
from .trials import Call
from .values import Pull, times, to_shape, unit

Maker = Callable[[str], Case]
DROPOUT, DROP = masks.Dropout(0.25, 5), attnspec.Dropout(0.25, attnspec.random.key(5))


def _one(
    dtype: str, args: tuple[Any, ...], function: Callable[..., Any], made: tuple[Value, Pull], **names: str
) -> Case:
    """A case with one result; `names` are the paths of the gradients whose names are others."""
    result, pull = made

    def pulled(given: Mapping[str, Value]) -> dict[str, Value]:
        return {names.get(n, n): value for n, value in pull(given[""]).items()}

    return Case(dtype, args, function, {"": result}, pulled)


def _described(tree: Any) -> Any:
    """Parameters as dictionaries and tuples, for an oracle that knows no classes."""
    if isinstance(tree, tuple):
        return tuple(map(_described, tree))
    if not isinstance(tree, Struct):
        return tree
    return {f.name: _described(getattr(tree, f.name)) for f in fields(tree)}  # type: ignore[arg-type]


def _of_parameters(dtype: str, args: tuple[Any, ...], function: Callable[..., Any], made: tuple[Value, Pull]) -> Case:
    """A case of (params, x) or (params, x, context)."""
    result, pull = made
    places = {"x": "1", "context": "2"}

    def pulled(given: Mapping[str, Value]) -> dict[str, Value]:
        return {places.get(n, f"0.{n}"): value for n, value in pull(given[""]).items()}

    return Case(dtype, args, function, {"": result}, pulled)


def _rows(dtype: str) -> Array:
    """Ordinary rows, one with a large mean, and a constant one."""
    x = normal(1, 2, 3, 16, dtype="float32").astype(np.float64)
    x[0, 1] += 50
    x[1, 2] = 0.5
    return rounded(x, dtype)


def _norm(kind: str, x: Array, dtype: str, eps: float = 0.125) -> Case:
    affine = tuple(normal(n, x.shape[-1], dtype=dtype) for n in ((2, 3) if kind == "layer" else (2,)))

    def function(backend: Any, x: Any, eps: Any, *affine: Any) -> Any:
        return (attnspec.layer_norm if kind == "layer" else attnspec.rms_norm)(x, *affine, eps=eps)

    gamma, beta = (*affine, None)[:2]
    result = oracle_layer_pullbacks.norm(Value.given(x), gamma, beta, eps, unit(dtype), kind)
    args = (x, np.array(eps, x.dtype), *affine)
    return _one(dtype, args, function, result, x="0", eps="1", gamma="2", beta="3")


def _extreme(dtype: str) -> Array:
    """Rows whose squares overflow or vanish in float32, one with a mean of a thousand deviations, a constant one."""
    x = normal(1, 4, 16, dtype="float32").astype(np.float64)
    return rounded(x * np.array([1e30, 1e-30, 1.0, 0.0])[:, None] + np.array([0.0, 0.0, 1e3, -3.0])[:, None], dtype)


def _dropout(dtype: str) -> Case:
    x = normal(1, 3, 4, 5, dtype=dtype)

    def function(backend: Any, x: Any, rate: Any) -> Any:
        return attnspec.dropout(x, rate, DROP.rng)

    made = oracle_layer_pullbacks.drop(Value.given(x), DROPOUT, unit(dtype))
    case = _one(dtype, (x, np.array(0.25, x.dtype)), function, made, x="0", rate="1")
    return replace(case, fixed=("1",))


def _add_and_norm(dtype: str) -> Case:
    u, (x, y) = unit(dtype), (normal(n, 3, 8, dtype=dtype) for n in (1, 2))
    gamma, beta = (normal(n, 8, dtype=dtype) for n in (3, 4))
    kept, pull_kept = oracle_layer_pullbacks.drop(Value.given(y), DROPOUT, u)
    result, pull_norm = oracle_layer_pullbacks.norm(add(Value.given(x), kept, u), gamma, beta, 1e-5, u)

    def pull(g: Value) -> dict[str, Value]:
        found = pull_norm(g)
        return {"0": found["x"], "1": pull_kept(found["x"])["x"], "2": found["gamma"], "3": found["beta"]}

    return _one(dtype, (x, y, gamma, beta), lambda backend, *a: attnspec.add_and_norm(*a, dropout=DROP), (result, pull))


def _pre_norm(dtype: str) -> Case:
    """With a sublayer that has a weight of its own, y = h w."""
    u, x = unit(dtype), normal(1, 3, 8, dtype=dtype)
    gamma, beta, w = (normal(n, 8, dtype=dtype) for n in (3, 4, 5))
    inner, pull_norm = oracle_layer_pullbacks.norm(Value.given(x), gamma, beta, 1e-5, u)
    weight = Value.given(w)
    kept, pull_kept = oracle_layer_pullbacks.drop(times(inner, weight, u), DROPOUT, u)

    def pull(g: Value) -> dict[str, Value]:
        of_kept = pull_kept(g)["x"]
        found = pull_norm(times(of_kept, weight, u))
        of_weight = times(of_kept, inner, u)
        return {
            "0": add(g, found["x"], u), "1": found["gamma"], "2": found["beta"],
            "3": to_shape(of_weight, (8,), u),
        }  # fmt: skip

    def function(backend: Any, x: Any, gamma: Any, beta: Any, w: Any) -> Any:
        return attnspec.pre_norm(x, lambda h: h * w, gamma, beta, dropout=DROP)

    return _one(dtype, (x, gamma, beta, w), function, (add(Value.given(x), kept, u), pull))


def _rotary(dtype: str, interleaved: bool) -> Case:
    x, positions = normal(1, 2, 3, 5, 6, dtype=dtype), np.array([0, 1, 7, 40, -3])

    def function(backend: Any, x: Any) -> Any:
        return attnspec.rotary(x, backend.asarray(positions), interleaved=interleaved)

    made = oracle_layer_pullbacks.rotate(Value.given(x), positions, unit(dtype), interleaved)
    return _one(dtype, (x,), function, made, x="0")


def _multi_head_params(dtype: str, C: int = 5, biases: bool = True) -> attnspec.MultiHeadParams:
    """M = 5, H = 6, G = 2, D = 4, E = 3."""
    shapes: dict[str, tuple[int, ...]] = {"wq": (5, 6, 4), "wk": (C, 2, 4), "wv": (C, 2, 3), "wo": (6, 3, 5)}
    shapes |= {"bq": (6, 4), "bk": (2, 4), "bv": (2, 3), "bo": (5,)} if biases else {}
    made = {n: normal(20 + i, *s, dtype=dtype, size=0.4) for i, (n, s) in enumerate(shapes.items())}
    return attnspec.MultiHeadParams(**made)


CAUSAL = Call(np.zeros((1, 1)), np.zeros((1, 1)), np.zeros((1, 1)), mask=masks.Causal(1))


def _multi_head(dtype: str, part: str = "y", cross: bool = False, rotary: bool = False) -> Case:
    params, x = _multi_head_params(dtype, 8 if cross else 5, biases=not cross), normal(1, 2, 4, 5, dtype=dtype)
    args: tuple[Any, ...] = (params, x, *([normal(2, 2, 7, 8, dtype=dtype)] if cross else []))
    call = CAUSAL.but(dtype=dtype, dropout=None if part == "weights" else DROPOUT)
    options: dict[str, Any] = {"rotary": attnspec.Rotary() if rotary else None, "mask": attnspec.causal(1)}
    options |= {} if part == "weights" else {"dropout": DROP}
    functions = {
        "y": attnspec.multi_head_attention,
        "heads": attnspec.multi_head_outputs,
        "weights": attnspec.multi_head_weights,
    }  # fmt: skip
    context = Value.given(args[2]) if cross else None
    made = oracle_layer_pullbacks.multi_head(_described(params), Value.given(x), context, call, unit(dtype), rotary)[
        part
    ]
    return _of_parameters(dtype, args, lambda backend, *args: functions[part](*args, **options), made)


def _feed_params(dtype: str, name: Any, gated: bool) -> attnspec.FeedForwardParams:
    shapes: dict[str, tuple[int, ...] | None] = {
        "w_in": (5, 7),
        "w_out": (7, 5),
        "b_in": (7,),
        "b_out": (5,),
        "w_gate": (5, 7) if gated else None,
    }
    arrays = {
        n: None if s is None else normal(40 + i, *s, dtype=dtype, size=0.4) for i, (n, s) in enumerate(shapes.items())
    }
    return attnspec.FeedForwardParams(**arrays, activation=name)


def _feed_forward(dtype: str, name: str, gated: bool) -> Case:
    params, x = _feed_params(dtype, name, gated), normal(1, 3, 4, 5, dtype=dtype)
    made = oracle_layer_pullbacks.feed_forward(_described(params), Value.given(x), name, unit(dtype))
    return _of_parameters(dtype, (params, x), lambda backend, *args: attnspec.feed_forward(*args), made)


def _layer_params(dtype: str, order: Any, kind: Any, seed: int) -> attnspec.LayerParams:
    def norm(n: int) -> attnspec.NormParams:
        beta = normal(seed + n + 1, 5, dtype=dtype) if kind == "layer" else None
        return attnspec.NormParams(normal(seed + n, 5, dtype=dtype), beta, kind)

    feed = _feed_params(dtype, "gelu", gated=False)
    return attnspec.LayerParams(_multi_head_params(dtype), feed, norm(50), norm(52), order)


def _layer(dtype: str, order: str, kind: str) -> Case:
    params, x = _layer_params(dtype, order, kind, 0), normal(1, 2, 4, 5, dtype=dtype)

    def function(backend: Any, params: Any, x: Any) -> Any:
        options: Any = {"rotary": attnspec.Rotary(), "residual_dropout": DROP}
        return attnspec.transformer_layer(params, x, mask=attnspec.causal(1), **options)

    call = CAUSAL.but(dtype=dtype)
    made = oracle_model_pullbacks.layer(_described(params), Value.given(x), call, unit(dtype), DROPOUT, rotary=True)
    return _of_parameters(dtype, (params, x), function, made)


def _stack(dtype: str) -> Case:
    layers = tuple(_layer_params(dtype, "pre", "rms", 10 * n) for n in range(2))
    params = attnspec.StackParams(layers, attnspec.NormParams(normal(58, 5, dtype=dtype), normal(59, 5, dtype=dtype)))
    x = normal(1, 2, 4, 5, dtype=dtype)

    def function(backend: Any, params: Any, x: Any) -> Any:
        return attnspec.transformer_stack(params, x, mask=attnspec.causal(1), dropout=DROP)

    call = CAUSAL.but(dtype=dtype, dropout=DROPOUT)
    made = oracle_model_pullbacks.stack(_described(params), Value.given(x), call, unit(dtype))
    return _of_parameters(dtype, (params, x), function, made)


def _weights(dtype: str) -> Case:
    """attention_weights: softmax by itself, with everything that it takes."""
    bias, sink = normal(4, 6, 5, 7, dtype=dtype), normal(5, 6, dtype=dtype)
    call = problem(2, G=2, mask=some_mask(3, 2, 6, 5, 7), bias=bias, sink=sink, softcap=2.0, dtype=dtype)
    attended = oracle_pullbacks.of_arrays(call, np.abs(bias))

    def function(backend: Any, q: Any, k: Any, bias: Any, sink: Any) -> Any:
        seen = backend.asarray(call.mask.array)  # type: ignore[union-attr]
        return attnspec.attention_weights(q, k, mask=seen, bias=bias, sink=sink, softcap=2.0)

    def pull(g: Value) -> dict[str, Value]:
        found = attended.pull_weights(g)
        of_bias = to_shape(found["bias"], bias.shape, unit(dtype))
        return {"0": found["q"], "1": found["k"], "2": of_bias, "3": found["sink"]}

    return _one(dtype, (call.q, call.k, bias, sink), function, (attended.weights, pull))


def _embed(dtype: str) -> Case:
    """Tokens that come often, once and never."""
    table, ids = normal(1, 9, 4, dtype=dtype), np.array([[1, 2, 1, 1], [8, 0, 1, 2]])
    made = oracle_model_pullbacks.embed(table, ids, unit(dtype))
    return _one(dtype, (table,), lambda backend, table: attnspec.embed(table, backend.asarray(ids)), made, table="0")


def _mean_pool(dtype: str) -> Case:
    x, lengths = normal(1, 3, 5, 4, dtype=dtype), np.array([2, 0, 5], np.int32)
    made = oracle_model_pullbacks.mean_pool(Value.given(x), lengths, unit(dtype))
    return _one(dtype, (x,), lambda backend, x: attnspec.mean_pool(x, backend.asarray(lengths)), made, x="0")


def cross_entropy_case(dtype: str, size: float = 3.0) -> Case:
    """With a mask that hides rows whose logits are no numbers and whose labels are none."""
    logits, labels = normal(1, 3, 4, 5, dtype=dtype, size=size), np.array([[0, 1, 2, 4], [1, -7, 1, 1], [4, 3, 99, 1]])
    mask = (labels >= 0) & (labels < 5)
    logits[1, 1], logits[2, 2] = np.nan, np.inf
    wide = "float64" if dtype == "float64" else "float32"
    result, pull = oracle_model_pullbacks.cross_entropy(logits, labels, mask, wide)

    def function(backend: Any, logits: Any) -> Any:
        return attnspec.cross_entropy(logits, backend.asarray(labels), mask=backend.asarray(mask))

    return _one(dtype, (logits,), function, (result, pull), logits="0")


def _merge(dtype: str) -> Case:
    """Three parts, one of which saw no key in one row."""
    parts = [(normal(2 * n, 2, 3, 4, dtype=dtype), normal(2 * n + 1, 2, 3, dtype=dtype)) for n in range(3)]
    parts[1][0][0, 1], parts[1][1][0, 1] = 0, -np.inf
    out, lse, back = oracle_model_pullbacks.merge(parts, unit(dtype))

    def pull(given: Mapping[str, Value]) -> dict[str, Value]:
        outs, lses = back(given["0"], given["1"])
        return {f"0.{n}.{m}": Value(x.exact[n], x.error[n]) for m, x in enumerate((outs, lses)) for n in range(3)}

    return Case(dtype, (parts,), lambda backend, parts: attnspec.merge_attention(parts), {"0": out, "1": lse}, pull)


CASES: dict[str, Maker] = {
    "attention weights": _weights,
    "dropout": _dropout,
    "layer norm": lambda d: _norm("layer", _rows(d), d),
    "rms norm": lambda d: _norm("rms", _rows(d), d),
    "add and norm": _add_and_norm,
    "pre-norm": _pre_norm,
    "rotary of halves": lambda d: _rotary(d, interleaved=False),
    "rotary of neighbours": lambda d: _rotary(d, interleaved=True),
    "multi-head attention": lambda d: _multi_head(d, rotary=True),
    "cross-attention": lambda d: _multi_head(d, cross=True),
    "heads": lambda d: _multi_head(d, "heads"),
    "weights of heads": lambda d: _multi_head(d, "weights", rotary=True),
    **{
        f"feed forward: {name}{', gated' if gated else ''}": partial(_feed_forward, name=name, gated=gated)
        for name in ("relu", "gelu", "gelu_tanh", "silu")
        for gated in (False, True)
    },
    **{
        f"layer: {order}, {kind}": partial(_layer, order=order, kind=kind)
        for order in ("post", "pre")
        for kind in ("layer", "rms")
    },
    "stack": _stack,
    "embedding": _embed,
    "mean of rows": _mean_pool,
    "cross-entropy": cross_entropy_case,
    "merged attention": _merge,
}
EXTREMES: dict[str, Maker] = {
    "layer norm": lambda d: _norm("layer", _extreme(d), d, 1e-5),
    "rms norm": lambda d: _norm("rms", _extreme(d), d, 1e-5),
}
