"""The textbook's forty lines and the library are one definition: both are held to the oracle's bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attnspec
from attnspec import textbook

from . import bounds, masks, oracle, oracle_layers
from .judges import near
from .masks import Array
from .oracle_layers import Value
from .problems import exact_logits, normal, some_mask
from .trials import Call

U = bounds.UNIT["float32"]


def both(backend: Any, got: tuple[Any, Any], wanted: Value) -> None:
    """The textbook's answer, and the library's."""
    for name, x in zip(("textbook", "library"), got, strict=True):
        verdict = near(name, np.asarray(backend.to_numpy(x)).astype(np.float64), wanted.exact, wanted.error)
        assert verdict.ok, verdict.message


@pytest.mark.clause("SCORE-1", "MASK-5")
def test_the_textbooks_attention_is_the_librarys(backend: Any) -> None:
    seen = some_mask(3, 6, 5, 7).array
    seen[2, 1] = False
    batch, visible = exact_logits(), backend.asarray(seen)
    for size in (1, 8):
        call = Call(size * batch.q[0], batch.k[0], batch.v[0], mask=masks.Dense(seen))
        q, k, v = (backend.asarray(x) for x in (call.q, call.k, call.v))
        exact = oracle.attention(call)
        got = textbook.attention(q, k, v, visible), attnspec.attention(q, k, v, mask=visible)
        both(backend, got, Value(exact.out, bounds.out(exact, "float32")))


@pytest.mark.clause("MULTIHEAD-1")
def test_the_textbooks_heads_are_the_librarys(backend: Any) -> None:
    x = normal(1, 5, 10)
    seen: Array = np.tri(5, dtype=bool)
    shapes = {"wq": (10, 4, 3), "wk": (10, 4, 3), "wv": (10, 4, 6), "wo": (4, 6, 10)}
    arrays = {name: normal(n, *shape, size=0.3) for n, (name, shape) in enumerate(shapes.items())}
    biases: dict[str, Array | None] = {f"b{letter}": None for letter in "qkvo"}
    call = Call(*(np.zeros((1, 1)),) * 3, mask=masks.Dense(seen))
    wanted = oracle_layers.multi_head(arrays | biases, Value.given(x), Value.given(x), call, U)["y"]
    made, visible = backend.asarray(x), backend.asarray(seen)
    params = attnspec.MultiHeadParams(**{name: backend.asarray(a) for name, a in arrays.items()})
    wq, wk, wv = (backend.asarray(np.ascontiguousarray(np.moveaxis(arrays[n], 1, 0))) for n in ("wq", "wk", "wv"))
    got = textbook.multi_head_attention(made, wq, wk, wv, params.wo, visible)
    both(backend, (got, attnspec.multi_head_attention(params, made, mask=visible)), wanted)


@pytest.mark.clause("NORM-2")
def test_the_textbooks_add_and_norm_is_the_librarys(backend: Any) -> None:
    x, y = normal(1, 3, 8), normal(2, 3, 8)
    wanted = oracle_layers.layer_norm(oracle_layers.add(Value.given(x), Value.given(y), U), None, None, 1e-5, U)
    made = backend.asarray(x), backend.asarray(y)
    both(backend, (textbook.add_and_norm(*made), attnspec.add_and_norm(*made)), wanted)
