"""Attentions to differentiate with respect to everything that they are given."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any

import numpy as np

import attnspec

from . import masks, oracle_pullbacks
from .differentiating import Case
from .masks import Array
from .operands import Operands
from .oracle_layers import Value
from .problems import normal, problem, rounded, some_mask
from .trials import Call
from .values import moved, scaled, to_shape, unit

Terms = Mapping[str, Array]


def case(call: Call, bias: Terms | None = None, arrays: tuple[str, ...] = (), lse: bool = False) -> Case:
    """Attention of a call whose bias is a sum of terms, by kind: "array", "relative" (a table), "alibi" (slopes).

    `arrays` names those of scale, softcap and rate that are arrays, and so have gradients.
    """
    H, Q, K = call.q.shape[-3] if call.q.ndim > 2 else 1, call.q.shape[-2], call.k.shape[-2]
    numbers = {"scale": call.scale, "softcap": call.softcap, "rate": call.dropout and call.dropout.rate}
    options: dict[str, Any] = {n: np.array(x, call.q.dtype) for n, x in numbers.items() if n in arrays}
    plain = {n: numbers[n] for n in ("scale", "softcap") if numbers[n] is not None and n not in arrays}
    if call.sink is not None:
        options["sink"] = call.sink
    if bias:
        options["bias"] = dict(bias)

    def function(backend: Any, q: Any, k: Any, v: Any, given: Any) -> Any:
        made = plain | {n: x for n, x in given.items() if n in ("scale", "softcap", "sink")}
        if call.dropout is not None:
            rate = given.get("rate", call.dropout.rate)
            made["dropout"] = attnspec.Dropout(rate, attnspec.random.key(call.dropout.seed))
        if bias:
            made["bias"] = _term(given["bias"])
        attend = attnspec.attention_with_lse if lse else attnspec.attention
        rules = Call(call.q, call.k, call.v, mask=call.mask, dtype=call.dtype)
        operands = Operands(backend, rules, {"out": lambda q, k, v, **rules: attend(q, k, v, **made, **rules)})
        return operands.function(q, k, v, *operands.arrays[3:])

    added = {kind: _dense(kind, x, Q, K) for kind, x in (bias or {}).items()}
    total = sum(added.values()) if added else None
    attended = oracle_pullbacks.of_arrays(call.but(bias=total), sum(map(np.abs, added.values()), np.zeros(())))
    single, u = call.q.ndim == 2, unit(call.dtype)
    out, of_sums = (moved(x, lambda a: a[0] if single else a) for x in (attended.out, attended.lse))

    def pull(given: Mapping[str, Value]) -> dict[str, Value]:
        whole = {n: moved(g, lambda a: a[None] if single else a) for n, g in given.items()}
        found = attended.pull(whole["0" if lse else ""], whole.get("1"))
        gradients = {str(n): to_shape(found[x], getattr(call, x).shape, u) for n, x in enumerate("qkv")}
        gradients |= {f"3.{n}": found[n] for n in options if n != "bias"}
        return gradients | {
            f"3.bias.{kind}": _pulled(kind, x, found["bias"], (H, Q, K), u) for kind, x in (bias or {}).items()
        }

    results = {"0": out, "1": of_sums} if lse else {"": out}
    return Case(call.dtype, (call.q, call.k, call.v, options), function, results, pull, fixed=("3.rate",))


def _term(terms: Mapping[str, Any]) -> Any:
    made: dict[str, Callable[..., Any]] = {
        "array": attnspec.as_bias,
        "relative": attnspec.relative_bias,
        "alibi": attnspec.alibi,
    }
    return reduce(operator.add, (made[kind](x) for kind, x in terms.items()))


def _ahead(Q: int, K: int) -> Array:
    return np.arange(K) - np.arange(Q)[:, None]


def _bucket(table: Array, Q: int, K: int) -> Array:
    reach = table.shape[-1] // 2
    return np.clip(_ahead(Q, K), -reach, reach) + reach


def _dense(kind: str, x: Array, Q: int, K: int) -> Array:
    """A term as an array that broadcasts to (..., H, Q, K)."""
    x = np.asarray(x, np.float64)
    if kind == "array":
        return x
    return x[..., _bucket(x, Q, K)] if kind == "relative" else -x[:, None, None] * np.abs(_ahead(Q, K))


def _pulled(kind: str, x: Array, g: Value, axes: tuple[int, int, int], u: float) -> Value:
    """From the gradient of the scores to that of a term."""
    H, Q, K = axes
    if kind == "array":
        return to_shape(g, x.shape, u)
    if kind == "alibi":
        by_head = to_shape(scaled(g, -np.abs(_ahead(Q, K)), u), (H, 1, 1), u)
        return moved(by_head, lambda a: a[:, 0, 0])
    bucket, shape = _bucket(x, Q, K), (*x.shape[:-1], 1, 1)
    chosen = [np.where(bucket == n, 1.0, 0.0) for n in range(x.shape[-1])]
    entries = [to_shape(Value(only * g.exact, only * g.error), shape, u) for only in chosen]
    exact, error = (np.concatenate([getattr(e, name) for e in entries], axis=-1) for name in ("exact", "error"))
    return Value(exact[..., 0, :], error[..., 0, :])


def _hidden(dtype: str) -> Array:
    """A bias (Q, K) that hides every key from two queries."""
    bias = normal(8, 5, 7, dtype=dtype)
    bias[[1, 3]] = -np.inf
    return bias


def _saturated(dtype: str) -> Call:
    """Scores of 10 to 50 times the cap and of both signs, beside ordinary ones."""
    call = problem(11, G=3, dtype=dtype, softcap=0.5, scale=1.0)
    factor = np.array([1.0, 3.0, 8.0, 12.0, 0.1])[:, None]
    return call.but(q=rounded(call.q * factor, dtype))


RULES: dict[str, masks.Mask] = {
    "causal": masks.Causal(1),
    "causal at the end": masks.Causal(align="end"),
    "causal by batch": masks.Causal(np.array([2, -2], np.int32)),
    "window": masks.Window(1, 2),
    "padding": masks.Padding(np.array([6, 0], np.int32)),
    "segments": masks.Segments(
        np.array([[0, 0, 1, 1, 2]] * 2, np.int32), np.array([[0, 1, 1, 1, 0, 2, 3]] * 2, np.int32)
    ),
    "dense": some_mask(3, 2, 6, 5, 7),
    "composed": masks.Both(masks.Inverse(masks.Window(0, 1)), masks.Either(masks.Causal(4), some_mask(4, 6, 5, 7))),
}
SHAPES: dict[str, tuple[int, ...]] = {
    "a number": (), "for each key": (7,), "for each query": (5, 1), "for each head": (6, 1, 1),
    "for each batch and key": (2, 1, 1, 7), "for each pair": (2, 6, 5, 7),
}  # fmt: skip

Maker = Callable[[str], Case]


def everything(dtype: str) -> Case:
    """Grouped heads, a mask with empty rows, a bias, a sink; array scale, softcap and rate; and lse."""
    call = problem(
        2, G=2, mask=masks.Both(masks.Causal(-1), some_mask(3, 2, 6, 5, 7)), sink=normal(5, 6, dtype=dtype),
        scale=0.75, softcap=2.0, dropout=masks.Dropout(0.25, 9), dtype=dtype,
    )  # fmt: skip
    return case(call, {"array": normal(4, 6, 5, 7, dtype=dtype)}, ("scale", "softcap", "rate"), lse=True)


def _masked(mask: masks.Mask, dtype: str) -> Case:
    return case(problem(5, G=2, mask=mask, dtype=dtype), lse=True)


def _biased(shape: tuple[int, ...], dtype: str) -> Case:
    return case(problem(6, G=3, dtype=dtype), {"array": normal(7, *shape, dtype=dtype)})


def _rank_2(dtype: str) -> Case:
    q, k, v = normal(1, 5, 4, dtype=dtype), normal(2, 7, 4, dtype=dtype), normal(3, 7, 3, dtype=dtype)
    return case(Call(q, k, v, dtype=dtype), {"array": normal(7, 5, 7, dtype=dtype)})


def _shared(dtype: str) -> Case:
    """Keys of one batch, and values without one, for queries of two."""
    k, v = normal(2, 1, 2, 7, 4, dtype=dtype), normal(3, 2, 7, 3, dtype=dtype)
    return case(problem(1, G=2, dtype=dtype).but(k=k, v=v))


CASES: dict[str, Maker] = {
    "plain": lambda d: case(problem(1, dtype=d)),
    "everything": everything,
    "two heads to a key head": lambda d: case(problem(3, G=3, dtype=d), lse=True),
    "three heads to a key head": lambda d: case(problem(3, G=2, scale=-0.7, dtype=d)),
    "as many heads as batches": lambda d: case(
        problem(4, lead=(3,), H=3, mask=masks.Padding(np.array([7, 2, 4], np.int32)), dtype=d),
        {"array": normal(5, 3, 1, 1, 7, dtype=d)},
    ),
    **{f"mask: {name}": partial(_masked, mask) for name, mask in RULES.items()},
    **{f"bias {name}": partial(_biased, shape) for name, shape in SHAPES.items()},
    "rows hidden by a bias": lambda d: case(problem(6, dtype=d), {"array": _hidden(d)}),
    "relative table": lambda d: case(problem(7, G=2, dtype=d), {"relative": normal(8, 6, 5, dtype=d)}),
    "relative table by batch": lambda d: case(problem(7, dtype=d), {"relative": normal(8, 2, 1, 3, dtype=d)}),
    "slopes": lambda d: case(problem(7, G=2, dtype=d), {"alibi": normal(9, 6, dtype=d)}),
    "three terms": lambda d: case(
        problem(8, G=2, mask=masks.Causal(2), dtype=d),
        {"array": normal(7, 5, 7, dtype=d), "relative": normal(8, 6, 5, dtype=d), "alibi": normal(9, 6, dtype=d)},
    ),
    "a sink in rows without keys": lambda d: case(
        problem(9, G=2, mask=masks.Causal(-2), sink=normal(5, 6, dtype=d), dtype=d), lse=True
    ),
    "a sink by batch": lambda d: case(problem(9, sink=normal(5, 2, 1, dtype=d), dtype=d), lse=True),
    "near saturation": lambda d: case(_saturated(d), arrays=("softcap", "scale"), lse=True),
    "dropout": lambda d: case(problem(4, G=3, dropout=masks.Dropout(0.25, 9), dtype=d), arrays=("rate",)),
    "dropout of most": lambda d: case(problem(4, dropout=masks.Dropout(0.875, 3), mask=masks.Causal(), dtype=d)),
    "no queries": lambda d: case(problem(1, Q=0, G=2, dtype=d), {"array": normal(7, 7, dtype=d)}, lse=True),
    "no keys": lambda d: case(problem(1, K=0, G=2, sink=normal(5, 6, dtype=d), dtype=d), lse=True),
    "rank 2": _rank_2,
    "keys shared by the batch": _shared,
}
