"""Any call at all: shapes, options and masks drawn from a seed, alone and together, the same on every machine.

The answer is the definition's within its bound, and what nobody sees changes no bit of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import masks, oracle
from .judges import same_bits, within_bound
from .masks import Array
from .problems import integers, normal, problem, some_mask
from .trials import Call, Law, Trial

CASES = 60

# Few shapes, many options; H and G differ, and some leading axes are as long as the heads are many.
_SHAPES: tuple[dict[str, Any], ...] = (
    {"H": 6, "G": 3},
    {"lead": (), "H": 6, "G": 2, "Q": 1},
    {"lead": (3, 2), "H": 2, "K": 3, "E": 1},
    {"lead": (3,), "H": 3, "Q": 4, "K": 9, "D": 8, "E": 5},
    {"lead": (1,), "H": 4, "G": 1, "Q": 7, "K": 4, "D": 3},
)


def drawn_laws(seed: int, cases: int) -> tuple[Law, ...]:
    """The two laws, over `cases` calls drawn from the seed."""
    return (
        Law("any_call_has_the_answer_of_the_definition", tuple(_CLAUSES), lambda: _definition(seed, cases)),
        Law("keys_that_nobody_sees_cannot_be_observed_in_any_call", ("MASK-6a",), lambda: _hidden(seed, cases)),
    )


# A drawn call judges a clause only where it has the option that the clause is about.
_CLAUSES: dict[str, Callable[[Call], bool]] = {
    "SCORE-1": lambda call: call.scale is not None,
    "SCORE-3": lambda call: call.q.shape[-3] != call.k.shape[-3],
    "SCORE-4": lambda call: call.softcap is not None,
    "SCORE-5": lambda call: call.bias is not None,
    "MASK-3": lambda call: isinstance(call.mask, masks.Both | masks.Either | masks.Inverse),
    "MASK-4": lambda call: isinstance(call.mask, masks.Causal | masks.Window),
    "MASK-5": lambda call: bool(np.any(~oracle.attention(call).visible.any(-1))),
    "SOFTMAX-2": lambda call: call.sink is not None,
    "SOFTMAX-3": lambda call: call.want == "lse",
    "SOFTMAX-4": lambda call: call.want == "weights",
    "DROPOUT-2": lambda call: call.dropout is not None,
}


def _definition(seed: int, cases: int) -> Iterator[Trial]:
    for call in drawn(seed, cases):
        about = tuple(clause for clause, applies in _CLAUSES.items() if applies(call))
        yield Trial((call,), within_bound(call), about)


def _hidden(seed: int, cases: int) -> Iterator[Trial]:
    for call in drawn(seed, cases):
        visible = oracle.attention(call).visible
        hidden = ~visible.any(axis=tuple(range(visible.ndim - 1)))
        if hidden.any():
            k, v = call.k.copy(), call.v.copy()
            k[..., hidden, :], v[..., hidden, :] = np.finfo(np.float32).max, -1e30
            yield Trial((call, call.but(k=k, v=v)), same_bits())


def drawn(seed: int, cases: int) -> Iterator[Call]:
    """Legal calls. The seed decides each of them, whatever their number."""
    for case in range(cases):
        yield _call(random.Random(f"{seed} {case}"))


def _call(draw: random.Random) -> Call:
    def number() -> int:
        return draw.randrange(2**20)

    call = problem(number(), **draw.choice(_SHAPES))
    H, Q, K = call.q.shape[-3], call.q.shape[-2], call.k.shape[-2]
    options: dict[str, Any] = {"want": draw.choice(("lse", "lse", "weights"))}
    if draw.random() < 0.7:
        options["mask"] = _mask(draw, call, 3)
    if draw.random() < 0.4:
        options["scale"] = draw.choice((0.0, -0.5, 0.25, 1.0))
    if draw.random() < 0.3:
        options["softcap"] = draw.choice((0.5, 3.0))
    if draw.random() < 0.4:
        bias = normal(number(), H, Q, K, size=2.0)
        hidden = some_mask(number(), H, Q, K, share=draw.choice((0.0, 0.5))).array
        options["bias"] = np.where(hidden, np.float32(-np.inf), bias)
    if draw.random() < 0.3:
        options["sink"] = normal(number(), H)
    if options["want"] == "lse" and draw.random() < 0.3:
        options["dropout"] = masks.Dropout(draw.choice((0.25, 0.5, 1.0)), draw.randrange(2**63))
    return call.but(**options)


def _mask(draw: random.Random, call: Call, depth: int) -> masks.Mask:
    """Any kind of mask, or a composition of some."""
    lead, (H, Q), K = call.q.shape[:-3], call.q.shape[-3:-1], call.k.shape[-2]

    def drawn_integers(shape: tuple[int, ...], low: int, high: int) -> Array:
        return integers(draw.randrange(2**20), *shape, low=low, high=high).astype(np.int32)

    kind = draw.randrange(10 if depth else 7)
    offset: int | Array = draw.randrange(-3, 5) if draw.random() < 0.5 else drawn_integers(lead, -3, 4)
    align: masks.Align = draw.choice(("start", "end"))
    if kind <= 1:
        return masks.Causal(offset, align)
    if kind == 2:
        left, right = (draw.choice((None, 0, 1, 2, 4)) for _ in range(2))
        return masks.Window(left, right, offset, align)
    if kind == 3:
        return masks.Padding(drawn_integers(lead, 0, K))
    if kind == 4:
        return masks.Segments(drawn_integers((*lead, Q), 0, 2), drawn_integers((*lead, K), 0, 2))
    if kind == 5:
        return some_mask(draw.randrange(2**20), *lead, H, Q, K)
    if kind == 6:
        return some_mask(draw.randrange(2**20), Q, K, share=0.3)
    if kind == 7:
        return masks.Inverse(_mask(draw, call, depth - 1))
    both = masks.Both if kind == 8 else masks.Either
    return both(_mask(draw, call, depth - 1), _mask(draw, call, depth - 1))
