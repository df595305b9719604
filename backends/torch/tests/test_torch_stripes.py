"""What is added to the scores in stripes: masks of pairs and biases by torch's fused operation, judged pair by pair."""

from __future__ import annotations

import math
from typing import Any

import pytest
import spoiling  # type: ignore[import-not-found]
import torch
from attnspec_torch import sdpa_stripes
from attnspec_torch.sdpa_calls import bias_of
from attnspec_torch.sdpa_stripes import Stripes, calls_of

import attnspec
from attnspec.request import make_request

# A framework's deprecations are its own affair.
pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")

B, H, G, Q, K, D = 2, 4, 2, 9, 11, 4
LARGEST = torch.finfo(torch.float32).max
NAN, INF = math.nan, math.inf
Tensors = tuple[torch.Tensor, ...]


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def seen(*shape: int) -> torch.Tensor:
    """Two of three pairs, and the fourth query sees nothing."""
    pairs = drawn(*shape, seed=len(shape)) < 0.4
    if len(shape) > 1 and shape[-2] > 1:
        pairs[..., 3, :] = False
    return pairs


def hiding(*shape: int) -> torch.Tensor:
    return drawn(*shape, seed=9).masked_fill(~seen(*shape), -INF)


MASKS: dict[str, Any] = {
    "pairs": seen(Q, K),
    "of heads": seen(H, Q, K),
    "of items": seen(B, 1, Q, K),
    "of items and heads": seen(B, H, Q, K),
    "queries": seen(Q, 1),
    "and causal": attnspec.causal(1) & seen(H, Q, K),
    "and padding": attnspec.padding([7, 11]) & seen(Q, K),
    "and a row": attnspec.as_mask(seen(B, 1, 1, K)) & seen(Q, K),
    "segments": attnspec.segments(torch.arange(Q) // 3, torch.arange(K) // 4),
    "causal by an array": attnspec.causal(torch.tensor([-1, 2])),
}
BIASES: dict[str, Any] = {
    "pairs": hiding(Q, K),
    "of heads": hiding(H, Q, K),
    "of items": hiding(B, 1, Q, K),
    "of items and heads": hiding(B, H, Q, K),
    "a row": hiding(K),
    "of each head": drawn(H, 1, 1),
    "one": torch.tensor(0.5),
    "steps along the keys": hiding(K, Q).mT,
    "wider": hiding(Q, K).double(),
    "by distance": attnspec.alibi(H),
    "two": attnspec.alibi(H) + hiding(Q, K),
}
CALLS = {
    **{f"mask, {name}": {"mask": mask} for name, mask in MASKS.items()},
    **{f"bias, {name}": {"bias": bias} for name, bias in BIASES.items()},
    "mask and bias": {"mask": MASKS["of heads"], "bias": BIASES["of items"]},
    "row and bias": {"mask": seen(B, 1, 1, K), "bias": drawn(Q, K)},
}
every_call = pytest.mark.parametrize("name", CALLS)


@pytest.fixture(params=[sdpa_stripes.ENTRIES, 40], ids=["whole", "in many"])
def _entries(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stripe of all pairs, and one of a few queries of few heads, from which blocks of keys are left out."""
    monkeypatch.setattr(sdpa_stripes, "ENTRIES", request.param)
    if request.param < K * Q:
        monkeypatch.setattr(sdpa_stripes, "_BLOCK", 2)


pieces = pytest.mark.usefixtures("_entries")


def inputs(dtype: torch.dtype = torch.float32) -> Tensors:
    shapes = (H, Q), (G, K), (G, K)
    return tuple(drawn(B, *shape, D, seed=n, dtype=dtype) for n, shape in enumerate(shapes))


def results_of(
    arrays: Tensors, options: Any, *, silent: torch.Tensor | None = None, implementation: str = "native"
) -> Tensors:
    """out, lse and the gradients of q, k and v; nothing is asked of silent rows (B, H, Q)."""
    leaves = [x.clone().requires_grad_() for x in arrays]
    out, lse = attnspec.attention_with_lse(*leaves, **options, implementation=implementation)
    g = drawn(*out.shape, seed=5, dtype=out.dtype)
    g = g if silent is None else g.masked_fill(silent[..., None], 0.0)
    return (out.detach(), lse.detach(), *torch.autograd.grad(out, leaves, g))


def visible(options: Any) -> torch.Tensor:
    """(B, H, Q, K), by the weights of the portable code."""
    zeros = torch.zeros(B, H, Q, D), torch.zeros(B, G, K, D)
    return attnspec.attention_weights(*zeros, **options) > 0


@pieces
@every_call
def test_results_and_gradients_are_those_of_plain_operations(name: str) -> None:
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 1e-5)):
        arrays = inputs(dtype)
        ways = [results_of(arrays, CALLS[name], implementation=way) for way in ("native", "portable")]
        for one, other in zip(*ways, strict=True):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pieces
@every_call
def test_rows_without_a_key_are_0_and_ask_for_nothing(name: str) -> None:
    empty = ~visible(CALLS[name]).any(-1)
    out, lse, of_q, *_ = results_of(inputs(), CALLS[name])
    assert torch.equal(lse == -INF, empty)
    assert not out[empty].any()
    assert not of_q[empty].any()


@pieces
@every_call
@pytest.mark.parametrize("letters", ["k", "v", "kv"])
@pytest.mark.parametrize("size", [1.0, 1e30])
def test_a_key_changes_no_bit_of_rows_that_do_not_see_it(size: float, letters: str, name: str) -> None:
    """However large some of these rows and the key are: no product of what is hidden decides who computes a row."""
    q, k, v = inputs()
    q[:, :, ::4] *= size
    at = 2
    rows = visible(CALLS[name])[..., at]
    spoiling.judge(lambda arrays: results_of(tuple(arrays), CALLS[name], silent=rows), (q, k, v), letters, at, rows)


@pieces
@every_call
@pytest.mark.parametrize("letter", "qkv")
def test_what_is_no_number_reaches_exactly_those_that_see_it(letter: str, name: str) -> None:
    pairs, clean = visible(CALLS[name]), results_of(inputs(), CALLS[name])
    for value in (NAN, INF, -INF):
        changed = inputs()
        changed["qkv".index(letter)][0, 1, 5, 2] = value
        rows = torch.zeros(B, H, Q, dtype=torch.bool)
        if letter == "q":
            rows[0, 1, 5] = pairs[0, 1, 5].any()
        else:
            rows[0, 2:] = pairs[0, 2:, :, 5]
        keys = (pairs & rows[..., None]).any(2).unflatten(1, (G, 2)).any(2)
        for n, (one, other) in enumerate(zip(results_of(changed, CALLS[name]), clean, strict=True)):
            where = rows if n < 3 else keys
            broken = torch.isnan(one) if n == 1 else torch.isnan(one).all(-1)
            assert torch.equal(broken, where & (n != 1 or letter != "v")), (n, value)
            assert torch.equal(one[~where], other[~where]), (n, value)


@pieces
@pytest.mark.parametrize("value", [NAN, INF])
def test_a_bias_that_is_no_number_breaks_the_rows_that_see_it_and_no_other(value: float) -> None:
    options = {"mask": seen(H, Q, K), "bias": drawn(Q, K, seed=9)}
    pairs, clean = visible(options), results_of(inputs(), options)
    options["bias"] = options["bias"].clone()
    options["bias"][5, 4] = value
    rows = torch.zeros(B, H, Q, dtype=torch.bool)
    rows[:, :, 5] = pairs[:, :, 5, 4]
    assert rows.any()
    assert not rows[:, :, 5].all()
    found = results_of(inputs(), options)
    for one, other in zip(found[:3], clean[:3], strict=True):
        assert torch.isnan(one[rows]).all()
        assert torch.equal(one[~rows], other[~rows])
    unseen = ~rows.unflatten(1, (G, 2)).any((2, 3))
    for one, other in zip(found[3:], clean[3:], strict=True):
        assert torch.equal(one[unseen], other[unseen])


@pieces
def test_what_is_added_to_hidden_pairs_changes_no_bit() -> None:
    pairs, bias = seen(H, Q, K), drawn(H, Q, K, seed=9)
    clean = results_of(inputs(), {"mask": pairs, "bias": bias})
    for value in (LARGEST, -LARGEST, NAN, INF, -INF):
        found = results_of(inputs(), {"mask": pairs, "bias": bias.masked_fill(~pairs, value)})
        assert all(map(torch.equal, found, clean))


@pieces
@pytest.mark.parametrize("value", [LARGEST, -LARGEST, -1e30])
def test_every_finite_number_is_only_a_number(value: float) -> None:
    """A row all of whose pairs have it weighs its keys alike; one pair that has the least of all weighs nothing."""
    bias = torch.zeros(Q, K)
    bias[2], bias[4, 1:] = value, value
    found, wanted = (results_of(inputs(), {"bias": bias}, implementation=way) for way in ("native", "portable"))
    assert torch.isfinite(found[1]).all()
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1), (5, 1), (1, 6), (5, 6)])
def test_stripes_are_bounded_and_hold_each_row_once(shape: tuple[int, int]) -> None:
    items, heads, queries, keys = 5, 6, 3000, 2500
    q, k = torch.zeros(1, 1, 1, 1).expand(items, heads, queries, 1), torch.zeros(1, 1, 1, 1).expand(items, 2, keys, 1)
    request = make_request(q, k, k, mask=torch.ones(1, 1, 1, 1, dtype=torch.bool).expand(*shape, queries, keys))
    calls, rows = calls_of(request), torch.zeros(items, heads, queries, dtype=torch.int8)
    assert isinstance(calls, Stripes)
    for piece in calls.pieces:
        rows[piece.rows] += 1
        assert piece.q.start or calls._stripe(piece).numel() <= sdpa_stripes.ENTRIES
    assert (rows == 1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_flags_become_nothing_and_less_than_all_numbers(dtype: torch.dtype) -> None:
    added = bias_of(torch.tensor([True, False]), dtype)
    assert added.dtype == dtype
    assert added.tolist() == [0.0, -INF]


def test_a_bias_that_learns_has_its_gradient() -> None:
    bias = drawn(Q, K).requires_grad_()
    assert torch.equal(
        attnspec.attention(*inputs(), bias=bias, implementation="native").detach(),
        attnspec.attention(*inputs(), bias=bias.detach(), implementation="native"),
    )
    found = [
        torch.autograd.grad(attnspec.attention(*inputs(), bias=bias, implementation=way).sin().sum(), bias)[0]
        for way in ("auto", "portable")
    ]
    torch.testing.assert_close(*found)
    pulled = torch.func.grad(lambda bias: attnspec.attention(*inputs(), bias=bias).sin().sum())(bias.detach())
    torch.testing.assert_close(pulled, found[0])


def test_a_mask_of_pairs_is_taken_in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdpa_stripes, "ENTRIES", 40)
    halves = [x.half() for x in inputs()]
    found, wanted = (attnspec.attention(*halves, mask=seen(Q, K), implementation=way) for way in ("native", "portable"))
    torch.testing.assert_close(found, wanted)


def test_large_queries_of_small_keys_are_computed_alike_whatever_is_hidden() -> None:
    q, k, v = inputs()
    q, k = q * 2.0**31, k * 2.0**-31
    options = {"mask": seen(Q, K)}
    rows = visible(options)[..., 2]
    clean = results_of((q, k, v), options)
    k[:, :, 2] = NAN
    for one, other in zip(results_of((q, k, v), options)[:3], clean[:3], strict=True):
        assert torch.equal(one[~rows], other[~rows])


def test_gradients_of_gradients_are_those_of_plain_operations() -> None:
    options = {"mask": seen(Q, K), "bias": drawn(H, Q, K, seed=9, dtype=torch.float64)}
    leaves = [x.requires_grad_() for x in inputs(torch.float64)]

    def attend(*arrays: torch.Tensor) -> Any:
        return attnspec.attention(*arrays, **options, implementation="native")

    assert torch.autograd.gradgradcheck(attend, leaves)
