"""Gradients with respect to q, k and v: those of the formulas, and blind to what the output is blind to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .. import masks
from ..judges import both, gradients_within_bound, gradients_zero, same_bits
from ..masks import Array
from ..problems import constant, normal, problem, some_mask
from ..trials import Call, Trial, law

INT = np.int32


def _asked(call: Call, lse: bool = False) -> Call:
    """The call's gradients, for cotangents of the output and, if asked, of lse."""
    *lead, H, Q, _ = call.q.shape
    return call.but(
        want="gradients",
        dout=normal(6, *lead, H, Q, call.v.shape[-1], dtype=call.dtype),
        dlse=normal(7, *lead, H, Q) if lse else None,
    )


def _everything(dtype: str = "float32") -> Call:
    """Grouped heads, a mask, a bias, a sink and a scale."""
    bias, sink = normal(4, 6, 5, 7, dtype=dtype), normal(5, 6, dtype=dtype)
    return problem(2, G=2, mask=some_mask(3, 2, 6, 5, 7), bias=bias, sink=sink, scale=0.7, dtype=dtype)


@law("SCORE-1", needs=("vjp",))
def gradients_are_those_of_the_formulas() -> Iterator[Trial]:
    for call in (problem(1), problem(4, lead=(3, 2), H=2, Q=3, K=1, D=1, E=5)):
        asked = _asked(call)
        yield Trial((asked,), gradients_within_bound(asked))


@law("SCORE-3", "SCORE-4", needs=("vjp",))
def gradients_of_shared_heads_are_summed_over_those_that_share_them() -> Iterator[Trial]:
    for call in (problem(3, G=3), problem(3, G=2), problem(3, G=1), _everything()):
        asked = _asked(call)
        yield Trial((asked,), gradients_within_bound(asked))


@law("SCORE-4", "SHAPE-3", needs=("vjp", "float64"))
def gradients_of_float64_are_computed_in_float64() -> Iterator[Trial]:
    asked = _asked(_everything("float64"))
    yield Trial((asked,), gradients_within_bound(asked))


@law("SCORE-4", "SHAPE-3", needs=("vjp", "bfloat16"))
def gradients_of_bfloat16_are_computed_in_float32() -> Iterator[Trial]:
    asked = _asked(_everything("bfloat16"))
    yield Trial((asked,), gradients_within_bound(asked))


@law("SCORE-4", "SHAPE-3", needs=("vjp", "float16"))
def gradients_of_float16_are_computed_in_float32() -> Iterator[Trial]:
    asked = _asked(_everything("float16"))
    yield Trial((asked,), gradients_within_bound(asked))


@law("SCORE-4", needs=("vjp",))
def gradients_go_through_the_softcap() -> Iterator[Trial]:
    for cap in (0.5, 2.0, 30.0):
        asked = _asked(_everything().but(softcap=cap), lse=True)
        yield Trial((asked,), gradients_within_bound(asked))


@law("DROPOUT-2", needs=("vjp",))
def gradients_go_through_the_entries_that_dropout_keeps() -> Iterator[Trial]:
    for rate in (0.25, 0.75):
        asked = _asked(problem(4, dropout=masks.Dropout(rate, 9)))
        yield Trial((asked,), gradients_within_bound(asked))


@law("SOFTMAX-3", needs=("vjp",))
def lse_is_differentiable_beside_the_output() -> Iterator[Trial]:
    for call in (problem(1, mask=masks.Causal(1)), _everything()):
        asked = _asked(call, lse=True)
        yield Trial((asked,), gradients_within_bound(asked))


@law("MASK-5", needs=("vjp",))
def a_row_without_keys_contributes_nothing_to_gradients() -> Iterator[Trial]:
    """PyTorch's masked softmax once gave NaN here: pytorch/pytorch#41508."""
    hidden = constant(0, 5, 7)
    hidden[[1, 3]] = -np.inf
    for options, rows in (
        ({"mask": masks.Causal(-2)}, [0, 1]),
        ({"bias": hidden}, [1, 3]),
        ({"mask": masks.Both(masks.Causal(-1), masks.Dense(np.arange(5)[:, None] != 3))}, [0, 3]),
    ):
        asked = _asked(problem(3, **options))
        louder = np.array(asked.dout)
        louder[..., rows, :] = 1e3
        trial = asked, asked.but(dout=louder)
        yield Trial(trial, both(gradients_within_bound(*trial), same_bits(), gradients_zero("dq", rows)))


GARBAGE = (0.0, 1e30, float(np.finfo(np.float32).max), np.nan, np.inf, -np.inf)


@law("MASK-6c", needs=("vjp",))
def garbage_that_nobody_sees_changes_no_bit_of_any_gradient() -> Iterator[Trial]:
    """Keys that nobody sees, and the query of a row without keys."""
    seen: Array = np.ones((5, 7), bool)
    seen[:, [1, 4]] = False
    seen[2] = False
    asked = _asked(problem(5, mask=masks.Dense(seen)))
    for value in GARBAGE:
        q, k, v = (x.copy() for x in (asked.q, asked.k, asked.v))
        k[..., [1, 4], :] = v[..., [1, 4], :] = q[..., 2, :] = value
        trial = asked, asked.but(q=q, k=k, v=v)
        unseen = [gradients_zero("dq", [2]), *(gradients_zero(name, [1, 4]) for name in ("dk", "dv"))]
        yield Trial(trial, both(gradients_within_bound(asked, asked), same_bits(), *unseen))


@law("MASK-6c", needs=("vjp",))
def garbage_hidden_from_some_queries_does_not_reach_their_gradients() -> Iterator[Trial]:
    """Only later queries see the last key: the gradients of the earlier ones cannot tell what it holds."""
    asked = _asked(problem(6, Q=7, mask=masks.Causal()))
    quiet = np.array(asked.dout)
    quiet[..., 6, :] = 0
    asked = asked.but(dout=quiet)
    for value in (0.0, -3.0, 1e4):
        k, v = asked.k.copy(), asked.v.copy()
        k[..., 6, :] = v[..., 6, :] = value
        yield Trial((asked, asked.but(k=k, v=v)), same_bits("dq", rows=6))


@law("MASK-7", "MASK-6c", needs=("vjp",))
def nan_goes_to_the_gradients_of_the_rows_that_see_it_and_of_the_keys_they_see() -> Iterator[Trial]:
    """What MASK-7 says of gradients is extended, so the verdict is that of MASK-6c, which is: others cannot see it."""
    call = problem(7, mask=masks.Causal())
    for name, row in (("q", 3), ("k", 4), ("v", 2)):
        x = getattr(call, name).copy()
        x[1, 2, row, 0] = np.nan
        asked = _asked(call.but(**{name: x}))
        yield Trial((asked,), gradients_within_bound(asked), ("MASK-6c",))
