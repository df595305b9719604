"""What may not be seen reaches no gradient, and a NaN that is seen reaches exactly those that saw it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from . import masks, oracle
from .attention_cases import RULES, case
from .differentiating import Case, Flat, by_tape, quick
from .masks import Array
from .problems import normal, problem

GARBAGE = (1e30, float(np.finfo(np.float32).max), np.nan, np.inf, -np.inf)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "a large scale": {"scale": 3.0},
    "every option": {"softcap": 2.0, "sink": normal(5, 6), "dropout": masks.Dropout(0.25, 9)},
}


NAMES = {"0": "q", "1": "k", "2": "v", "3.bias.array": "bias", "3.sink": "sink"}


def gradients_of(backend: Any, made: Case, silent: int | None = None) -> Callable[..., dict[str, Array]]:
    """A function that gives the gradients of q, k, v, bias and sink, at other values of some of them.

    One program answers for all of them. Of the row `silent` nothing is asked.
    """
    flat, how = Flat(backend, made), quick(backend, by_tape)
    if silent is not None:
        flat.cotangents[0][..., silent, :] = 0

    def gradients(**changed: Array) -> dict[str, Array]:
        _, got = flat.pulled(how, {n: changed[name] for n, name in NAMES.items() if name in changed})
        return {NAMES[n]: x for n, x in got.items()}

    return gradients


def same(one: dict[str, Array], other: dict[str, Array]) -> None:
    """To the bit."""
    assert one.keys() == other.keys()
    for name, x in one.items():
        np.testing.assert_array_equal(x, other[name], err_msg=name)


@pytest.mark.clause("MASK-6c")
@pytest.mark.parametrize("name", OPTIONS)
def test_garbage_at_masked_pairs_changes_no_bit_of_any_gradient(backend: Any, name: str) -> None:
    """In keys and values that nobody sees, in the query of an empty row, and in the bias of masked pairs."""
    seen: Array = np.ones((5, 7), bool)
    seen[:, [1, 4]] = seen[2] = False
    seen[0, 3] = False
    call, bias = problem(5, G=2, mask=masks.Dense(seen), **OPTIONS[name]), normal(7, 6, 5, 7)
    gradients = gradients_of(backend, case(call, {"array": bias}, lse=True))
    clean = gradients()
    for value in GARBAGE:
        q, k, v, spoilt = (x.copy() for x in (call.q, call.k, call.v, bias))
        k[..., [1, 4], :] = v[..., [1, 4], :] = q[..., 2, :] = value
        spoilt[:, ~seen] = value
        same(gradients(q=q, k=k, v=v, bias=spoilt), clean)
    for letter in "kv":
        np.testing.assert_array_equal(clean[letter][..., [1, 4], :], 0)
    np.testing.assert_array_equal(clean["q"][..., 2, :], 0)
    np.testing.assert_array_equal(clean["bias"][:, ~seen], 0)


@pytest.mark.clause("MASK-6c")
@pytest.mark.parametrize("name", OPTIONS)
def test_garbage_hidden_from_some_queries_reaches_no_gradient_but_by_those_that_see_it(backend: Any, name: str) -> None:
    """Only the last query sees the last key, and nothing is asked of that query."""
    call = problem(6, Q=7, G=3, mask=masks.Causal(), **OPTIONS[name])
    gradients = gradients_of(backend, case(call, {"array": normal(7, 7, 7)}), silent=6)
    clean = gradients()
    for value in (0.0, -3.0, 1e4, 1e30):
        k, v = call.k.copy(), call.v.copy()
        k[..., 6, :] = v[..., 6, :] = value
        same(gradients(k=k, v=v), clean)


@pytest.mark.clause("MASK-5", "MASK-6c")
@pytest.mark.parametrize("name", ["causal by batch", "padding", "dense", "segments"])
def test_rows_without_keys_and_keys_without_rows_get_exactly_nothing(backend: Any, name: str) -> None:
    call = problem(3, G=2, mask=RULES[name])
    visible = oracle.attention(call).visible
    got = gradients_of(backend, case(call, {"array": normal(7, 2, 6, 5, 7)}, lse=True))()
    assert not visible.all()
    np.testing.assert_array_equal(got["q"][~visible.any(-1)], 0)
    np.testing.assert_array_equal(got["bias"][~visible], 0)
    unseen = ~of_groups(visible.any(-2), 2)
    for letter in "kv":
        np.testing.assert_array_equal(got[letter][unseen], 0)


def of_groups(flags: Array, G: int) -> Array:
    """(..., H, K) -> (..., G, K): true for any head of the group."""
    *lead, H, K = flags.shape
    return flags.reshape(*lead, G, H // G, K).any(-2)


@pytest.mark.clause("GRADIENT-5", "MASK-7")
@pytest.mark.parametrize("rule", ["causal by batch", "composed", "dense"])
@pytest.mark.parametrize("name", OPTIONS)
def test_nan_reaches_exactly_those_that_saw_it(backend: Any, rule: str, name: str) -> None:
    """dq of the rows that see the bad number, dk and dv of the keys that those rows see, the bias of those pairs.

    Every other entry keeps its bits: what a row saw that is NaN now went to those keys alone.
    """
    call = problem(7, G=2, mask=RULES[rule], **OPTIONS[name])
    visible = oracle.attention(call).visible
    gradients = gradients_of(backend, case(call, {"array": normal(7, 2, 6, 5, 7)}, lse=True))
    clean = gradients()
    for letter, at in (("q", (1, 4, 3)), ("k", (0, 1, 2)), ("v", (0, 0, 4)), ("q", (0, 2, 0))):
        for value in (np.nan, np.inf):
            x = getattr(call, letter).copy()
            x[(*at, 1)] = value
            rows = np.zeros(visible.shape[:-1], bool)
            batch, head, place = at
            if letter == "q":
                rows[at] = visible[at].any()
            else:
                rows[batch, 3 * head : 3 * head + 3] = visible[batch, 3 * head : 3 * head + 3, :, place]
            pairs = visible & rows[..., None]
            hit = of_groups(pairs.any(-2), 2)
            got = gradients(**{letter: x})
            for part, where in (("q", rows), ("k", hit), ("v", hit), ("bias", pairs)):
                entries = where if part == "bias" else np.broadcast_to(where[..., None], got[part].shape)
                text = f"gradient of {part} for {value} in {letter}{list(at)}"
                np.testing.assert_array_equal(np.isnan(got[part]), entries, err_msg=text)
                np.testing.assert_array_equal(got[part][~entries], clean[part][~entries], err_msg=text)
