"""Calls of attention for drawn numbers: every mask, option and dtype, and lengths around those of tiles and chunks.

Every axis has a size of its own. Arrays are the only thing that differs between two problems of a configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..masks import Array
from .problems import Configuration, Operand, Values

Build = Callable[[Any, Values], Any]
Visible = Callable[[Values, int, int], Array]  # boolean, broadcast to (..., H, Q, K)

# What each kind of mask takes from (lead, H, Q, K), how it is made, and what it means.
_MASKS: dict[str, tuple[Callable[..., dict[str, Operand]], Build, Visible]] = {
    "no": (lambda lead, H, Q, K: {}, lambda api, x: None, lambda x, Q, K: np.ones((Q, K), bool)),
    "causal": (lambda lead, H, Q, K: {}, lambda api, x: api.causal(), lambda x, Q, K: _places(Q, K) <= 0),
    "end": (lambda lead, H, Q, K: {}, lambda api, x: api.causal(align="end"), lambda x, Q, K: _places(Q, K) <= K - Q),
    "window": (
        lambda lead, H, Q, K: {},
        lambda api, x: api.window(3, 1),
        lambda x, Q, K: (_places(Q, K) >= -3) & (_places(Q, K) <= 1),
    ),
    "padding": (
        lambda lead, H, Q, K: {"lengths": Operand(lead, "lengths", most=K)},
        lambda api, x: api.padding(x["lengths"]),
        lambda x, Q, K: np.arange(K) < x["lengths"][..., None, None, None],
    ),
    "segments": (
        lambda lead, H, Q, K: {
            "q_ids": Operand((*lead, Q), "ids", most=2), "k_ids": Operand((*lead, K), "ids", most=2),
        },
        lambda api, x: api.segments(x["q_ids"], x["k_ids"]),
        lambda x, Q, K: (x["q_ids"][..., :, None] == x["k_ids"][..., None, :])[..., None, :, :],
    ),
    "array": (
        lambda lead, H, Q, K: {"seen": Operand((*lead, H, Q, K), "seen")},
        lambda api, x: api.as_mask(x["seen"]),
        lambda x, Q, K: x["seen"],
    ),
    "composed": (
        lambda lead, H, Q, K: {"lengths": Operand(lead, "lengths", most=K), "seen": Operand((Q, K), "seen")},
        lambda api, x: (api.causal(2) & api.padding(x["lengths"])) | ~api.as_mask(x["seen"]),
        lambda x, Q, K: (
            ((_places(Q, K) <= 2) & (np.arange(K) < x["lengths"][..., None, None, None])) | ~x["seen"]
        ),
    ),
}  # fmt: skip


def _places(Q: int, K: int) -> Array:
    """j - i."""
    return np.arange(K) - np.arange(Q)[:, None]


def attention(
    name: str,
    mask: str = "no",
    *,
    lead: tuple[int, ...] = (2,),
    H: int = 6,
    G: int = 3,
    Q: int = 5,
    K: int = 7,
    D: int = 4,
    E: int = 3,
    dtype: str = "float32",
    want: str = "attention_with_lse",
    gradient: bool = False,
    arrays: Mapping[str, Operand] | None = None,
    **options: Build,
) -> Configuration:
    """Attention of that mask; `options` are made of the arrays."""
    needs, build, visible = _MASKS[mask]
    operands = {
        "q": Operand((*lead, H, Q, D), "q", dtype), "k": Operand((*lead, G, K, D), "k", dtype),
        "v": Operand((*lead, G, K, E), "number", dtype), **needs(lead, H, Q, K), **(arrays or {}),
    }  # fmt: skip

    def compute(api: Any, x: Values) -> Any:
        def forward(q: Any, k: Any, v: Any) -> Any:
            rest = {option: made(api, x) for option, made in options.items()}
            given = (q, k) if want == "attention_weights" else (q, k, v)
            return getattr(api, want)(*given, mask=build(api, x), **rest)

        if not gradient:
            return forward(x["q"], x["k"], x["v"])
        out, pull = api.vjp(forward, x["q"], x["k"], x["v"])
        return out, pull(x["cotangent"])

    if gradient:
        operands["cotangent"] = Operand((*lead, H, Q, E), "number", dtype)

    def unknown(x: Values) -> Array:
        return _unknown(
            x, np.broadcast_to(visible(x, Q, K), (*lead, H, Q, K)), H // G, values=want != "attention_weights"
        )

    return Configuration(f"{name} {dtype}", operands, compute, None if gradient or "bias" in options else unknown)


def _unknown(x: Values, visible: Array, group: int, *, values: bool) -> Array:
    """Rows that see what is not finite, (..., H, Q, 1); a query that sees nothing is not seen either (MASK-5, 7)."""
    bad_q = ~np.isfinite(x["q"]).all(-1)
    bad_k = ~np.isfinite(x["k"]).all(-1)
    if values:
        bad_k = bad_k | ~np.isfinite(x["v"]).all(-1)
    sees_bad = (visible & np.repeat(bad_k, group, axis=-2)[..., None, :]).any(-1)
    return np.asarray(sees_bad | (bad_q & visible.any(-1)))[..., None]


def dropped(api: Any, x: Values) -> Any:
    return api.Dropout(0.25, api.random.wrap(x["words"]))


WORDS = {"words": Operand((2,), "words")}
_HALVES = ("float16", "bfloat16")


def attentions() -> tuple[Configuration, ...]:
    """All of them."""
    bias = {"bias": Operand((6, 5, 7), "number")}
    return (
        attention("attention"),
        *(attention(f"attention, {mask} mask", mask) for mask in _MASKS if mask != "no"),
        *(attention("attention, array mask", "array", dtype=dtype, G=2) for dtype in ("float64", *_HALVES)),
        *(attention("attention, causal", "causal", lead=(), K=40, E=8, dtype=d) for d in ("float64", *_HALVES)),
        attention("attention, H of its own", H=4, G=4, Q=9, K=11, D=8, E=5),
        attention("attention, one key head", "padding", H=3, G=1, K=19, D=16, E=16),
        attention("attention, K = 0", K=0),
        attention("attention, Q = 0", Q=0),
        attention("attention, D = 0", D=0, E=2),
        attention("attention, bias", "causal", arrays=bias, bias=lambda api, x: x["bias"]),
        attention("attention, ALiBi", "causal", bias=lambda api, x: api.alibi(6)),
        attention("attention, scale", scale=lambda api, x: -0.3),
        attention("attention, softcap", "causal", softcap=lambda api, x: 2.5),
        attention("attention, sink", "array", arrays={"sink": Operand((6,), "weight")}, sink=lambda api, x: x["sink"]),
        attention("attention, dropout", "causal", arrays=WORDS, dropout=dropped),
        attention("attention, all options", "composed", arrays=bias | WORDS, bias=lambda api, x: x["bias"],
                  softcap=lambda api, x: 3.0, sink=lambda api, x: 0.5, dropout=dropped),
        attention("attention, 300 keys", "array", lead=(), H=2, G=1, Q=3, K=300, D=8, E=5),
        attention("attention, 513 keys", "causal", lead=(), H=2, G=2, Q=7, K=513, D=16, E=8),
        attention("attention, 513 keys", "padding", lead=(1,), H=2, G=1, Q=7, K=513, D=16, E=8, dtype="bfloat16"),
        attention("attention, 300 queries", "end", lead=(), H=1, G=1, Q=300, K=290, D=8, E=4),
        attention("attention, 8200 keys", lead=(), H=1, G=1, Q=2, K=8200, D=4, E=3),
        attention("attention, 8200 keys", "padding", lead=(1,), H=1, G=1, Q=2, K=8200, D=4, E=3, dtype="float64"),
        attention("weights", "array", want="attention_weights"),
        attention("weights, 300 keys", "end", lead=(), H=2, G=1, Q=3, K=300, want="attention_weights"),
        attention("gradients of attention", "causal", want="attention", gradient=True),
        attention("gradients of attention, array mask", "array", want="attention", gradient=True, G=2),
        attention("gradients of attention", "padding", want="attention", gradient=True, dtype="bfloat16"),
        attention("gradients of attention, 300 keys", "end", lead=(), H=2, G=1, Q=4, K=300, want="attention",
                  gradient=True),
    )  # fmt: skip
