"""ALiBi by the fused operation through a view of distances, judged by portable code and by its own tiles."""

from __future__ import annotations

import math
from typing import Any

import pytest
import spoiling  # type: ignore[import-not-found]
import torch
from attnspec_torch import sdpa_distances
from attnspec_torch.sdpa_distances import Distances, band_of
from attnspec_torch.sdpa_stripes import Stripes, calls_of

import attnspec
from attnspec.request import Request, make_request

# A framework's deprecations are its own affair.
pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")

B, H, G, D, E = 2, 6, 3, 4, 3
SHAPES = [(9, 11), (11, 5), (1, 7)]
LARGEST = torch.finfo(torch.float32).max
NAN, INF = math.nan, math.inf
Tensors = tuple[torch.Tensor, ...]

CALLS: dict[str, Any] = {
    "no mask": {},
    "from a later row": {"bias": attnspec.alibi(H, offset=3)},
    "aligned to the end": {"bias": attnspec.alibi(H, offset=-1, align="end")},
    "causal": {"mask": attnspec.causal()},
    "causal, from a later row": {"mask": attnspec.causal(2), "bias": attnspec.alibi(H, offset=2)},
    "causal, from an earlier row": {"mask": attnspec.causal(-3)},
    "causal, aligned to the end": {"mask": attnspec.causal(align="end"), "bias": attnspec.alibi(H, align="end")},
    "a window": {"mask": attnspec.window(2, 1)},
    "a window ahead": {"mask": attnspec.window(1, 0, offset=4)},
    "a window past the end": {"mask": attnspec.window(0, 0, offset=40)},
    "a window before the start": {"mask": attnspec.window(3, 0, offset=-40)},
    "two windows": {"mask": attnspec.causal(1) & attnspec.window(3, None, align="end")},
    "two windows apart": {"mask": attnspec.causal(-4) & attnspec.window(2, None)},
    "padding": {"mask": attnspec.padding(4)},
    "padding of all, causal": {"mask": attnspec.padding([3, 3]) & attnspec.causal()},
    "nothing but padding": {"mask": attnspec.padding(0)},
    "positions": {"mask": attnspec.causal() & attnspec.padding(7)},
}
every_call = pytest.mark.parametrize("name", CALLS)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


@pytest.fixture(params=[sdpa_distances._ROWS, 2], ids=["whole", "in many"])
def _rows(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdpa_distances, "_ROWS", request.param)


pieces = pytest.mark.usefixtures("_rows")


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def inputs(shape: tuple[int, int], dtype: torch.dtype = torch.float32, *, width: int = E) -> Tensors:
    Q, K = shape
    shapes = (H, Q, D), (G, K, D), (G, K, width)
    return tuple(drawn(B, *of_one, seed=n, dtype=dtype) for n, of_one in enumerate(shapes))


def options_of(name: str, shape: tuple[int, int]) -> dict[str, Any]:
    Q, K = shape
    positions = {"q_positions": range(5, 5 + Q), "k_positions": range(2, 2 + K)} if name == "positions" else {}
    return {"bias": attnspec.alibi(H), **CALLS[name], **positions}


def request_of(name: str, shape: tuple[int, int], dtype: torch.dtype = torch.float32) -> Request:
    return make_request(*inputs(shape, dtype), **options_of(name, shape))


def results_of(
    arrays: Tensors, options: Any, *, silent: torch.Tensor | None = None, implementation: str = "native"
) -> Tensors:
    """out, lse and the gradients of q, k and v; nothing is asked of silent rows (B, H, Q)."""
    leaves = [x.clone().requires_grad_() for x in arrays]
    out, lse = attnspec.attention_with_lse(*leaves, **options, implementation=implementation)
    g = drawn(*out.shape, seed=5, dtype=torch.float64).to(out.dtype)
    g = g if silent is None else g.masked_fill(silent[..., None], 0.0)
    # Where nothing is visible plain operations make zeros of nothing.
    of_leaves = torch.autograd.grad(out, leaves, g) if out.requires_grad else [torch.zeros_like(x) for x in leaves]
    return (out.detach(), lse.detach(), *of_leaves)


def visible(request: Request) -> torch.Tensor:
    """(Q, K), by the tile of the rule."""
    Q, K = request.axes.Q, request.axes.K
    if request.mask is None:
        return torch.ones(Q, K, dtype=torch.bool)
    seen = request.mask.tile(request.q_span(0, Q), request.k_span(0, K), xp=request.xp, device=request.device)
    return seen[(-1,) * (seen.ndim - 2)].expand(Q, K)


def tile_of(request: Request) -> torch.Tensor:
    """The bias, (H, Q, K)."""
    assert request.bias is not None
    spans = request.q_span(0, request.axes.Q), request.k_span(0, request.axes.K)
    tile: torch.Tensor = request.bias.tile(*spans, xp=request.xp, device=request.device)
    return tile


@pieces
@every_call
@every_shape
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_view_has_the_bits_of_the_tiles(name: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    """In pieces that hold each row that sees a key once, and every key that it sees."""
    request = request_of(name, shape, dtype)
    (Q, K), calls = shape, calls_of(request)
    assert isinstance(calls, Distances)
    wanted = torch.where(visible(request), tile_of(request), -INF)
    found = torch.full((H, Q, K), -INF, dtype=dtype)
    taken = torch.zeros(Q, dtype=torch.int8)
    for piece in calls.pieces:
        added = calls._added(piece)
        assert added.untyped_storage().nbytes() == H * (Q + K - 1) * added.element_size()
        found[:, piece.q, piece.k] = added[0].flip(-2)
        taken[piece.q] += 1
    assert torch.equal(found, wanted)
    assert torch.equal(taken == 1, visible(request).any(-1))
    assert taken.max() <= 1


@pytest.mark.parametrize("offset", [2**23 + 1, -(2**25) - 3, 2**40])
def test_distances_are_rounded_as_in_tiles(offset: int) -> None:
    request = make_request(*inputs((9, 11)), bias=attnspec.alibi(H, offset=offset))
    calls = calls_of(request)
    assert isinstance(calls, Distances)
    assert torch.equal(calls._added(calls.pieces[0])[0].flip(-2), tile_of(request))


@pieces
@every_call
@every_shape
def test_results_and_gradients_are_those_of_plain_operations(name: str, shape: tuple[int, int]) -> None:
    options = options_of(name, shape)
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 1e-5)):
        wanted = results_of(inputs(shape, torch.float64), options, implementation="portable")
        arrays = [x.to(dtype) for x in inputs(shape, torch.float64)]
        for one, other in zip(results_of(tuple(arrays), options), wanted, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance)


@pieces
@every_call
@every_shape
def test_rows_without_a_key_are_0_and_ask_for_nothing(name: str, shape: tuple[int, int]) -> None:
    empty = ~visible(request_of(name, shape)).any(-1)
    out, lse, of_q, *_ = results_of(inputs(shape), options_of(name, shape))
    assert torch.equal(lse == -INF, empty.expand(lse.shape))
    assert not out[:, :, empty].any()
    assert not of_q[:, :, empty].any()


@pieces
@every_call
@pytest.mark.parametrize("letters", ["k", "v", "kv"])
@pytest.mark.parametrize("at", [0, 3, 10])
def test_a_key_changes_no_bit_of_rows_that_do_not_see_it(at: int, letters: str, name: str) -> None:
    shape = Q, _ = 9, 11
    options, (q, k, v) = options_of(name, shape), inputs(shape)
    q[:, :, ::4] *= 1e30
    rows = visible(request_of(name, shape))[:, at].expand(B, H, Q)
    spoiling.judge(lambda arrays: results_of(tuple(arrays), options, silent=rows), (q, k, v), letters, at, rows)


@pieces
@every_call
@pytest.mark.parametrize("letter", "qkv")
def test_what_is_no_number_reaches_exactly_those_that_see_it(letter: str, name: str) -> None:
    shape = Q, _ = 9, 11
    options, pairs = options_of(name, shape), visible(request_of(name, shape))
    clean = results_of(inputs(shape), options)
    for value in (NAN, INF, -INF):
        changed = inputs(shape)
        changed["qkv".index(letter)][0, 1, 3, 2] = value
        rows = torch.zeros(B, H, Q, dtype=torch.bool)
        if letter == "q":
            rows[0, 1, 3] = pairs[3].any()
        else:
            rows[0, 2:4] = pairs[:, 3]
        out, lse, of_q, *_ = results_of(changed, options)
        for one, other in zip((out, lse, of_q), clean, strict=False):
            assert torch.equal(one[~rows], other[~rows]), value
        assert torch.isnan(out[rows]).any(-1).all(), value
        assert torch.equal(torch.isnan(lse), rows & (letter != "v")), value


@pieces
@every_call
def test_a_recorded_call_has_the_bits_of_one_that_is_not(name: str) -> None:
    arrays, options = inputs((9, 11)), options_of(name, (9, 11))
    recorded = results_of(arrays, options)
    plain = attnspec.attention_with_lse(*arrays, **options, implementation="native")
    assert all(map(torch.equal, recorded, plain))


@every_call
def test_rows_far_from_all_their_keys_are_computed(name: str) -> None:
    """Their lse is so low that it says nothing of their weights."""
    options = {**options_of(name, (9, 11)), "bias": attnspec.alibi(H, offset=-(2**18))}
    wanted = results_of(inputs((9, 11), torch.float64), options, implementation="portable")
    for one, other in zip(results_of(inputs((9, 11), torch.float64), options), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pieces
@every_call
def test_gradients_of_rows_far_from_all_their_keys_are_of_weights_that_sum_to_1(name: str) -> None:
    """Where the lse has too few digits left to make weights of it."""
    options = {**options_of(name, (9, 11)), "bias": attnspec.alibi(H, offset=-(2**18))}
    q, k, v = inputs((9, 11))
    out = attnspec.attention(q, k, v.requires_grad_(), **options, implementation="native")
    (of_v,) = torch.autograd.grad(out.sum(), v)
    rows = visible(request_of(name, (9, 11))).any(-1).sum() * (H // G)
    torch.testing.assert_close(of_v.sum(-2), rows.float().expand(B, G, E), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("step", [256, 2000])
@pytest.mark.parametrize("mask", [None, attnspec.causal(), attnspec.window(300, 5)], ids=["none", "causal", "window"])
def test_long_calls(mask: Any, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operation's own blocks of keys may be hidden from all of its queries."""
    monkeypatch.setattr(sdpa_distances, "_ROWS", step)
    arrays = tuple(x[:1] for x in inputs((1300, 1500)))
    options: dict[str, Any] = {"mask": mask, "bias": attnspec.alibi(H)}
    wanted = results_of(tuple(x.double() for x in arrays), options, implementation="portable")
    for one, other in zip(results_of(arrays, options), wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@pieces
def test_more_than_one_leading_axis_and_none() -> None:
    q, k, v = inputs((9, 11))
    options: dict[str, Any] = {"mask": attnspec.causal(1), "bias": attnspec.alibi(H), "implementation": "native"}
    out = attnspec.attention(q, k, v, **options)
    assert torch.equal(attnspec.attention(q[None], k[None], v[None], **options), out[None])
    assert torch.equal(attnspec.attention(q[0], k[0], v[0], **options), out[0])


@pieces
def test_half_precision_is_computed_in_float32() -> None:
    halves = [x.half() for x in inputs((9, 11))]
    options: dict[str, Any] = {"mask": attnspec.causal(1), "bias": attnspec.alibi(H), "implementation": "native"}
    found, wanted = attnspec.attention(*halves, **options), attnspec.attention(*[x.float() for x in halves], **options)
    assert torch.equal(found, wanted.half())


def test_gradients_of_gradients_are_those_of_plain_operations() -> None:
    leaves = [x.requires_grad_() for x in inputs((4, 5), torch.float64)]
    options: dict[str, Any] = {"mask": attnspec.causal(1), "bias": attnspec.alibi(H), "implementation": "native"}
    assert torch.autograd.gradgradcheck(lambda *arrays: attnspec.attention(*arrays, **options), leaves)


OTHERS: dict[str, Any] = {
    "slopes that are an array": {"bias": attnspec.alibi(torch.ones(H))},
    "offsets that differ": {"bias": attnspec.alibi(H, offset=torch.tensor([0, 1]))},
    "a sum": {"bias": attnspec.alibi(H) + torch.zeros(9, 11)},
    "pairs": {"mask": torch.ones(9, 11, dtype=torch.bool)},
    "lengths that differ": {"mask": attnspec.padding([5, 4])},
    "causal from rows that differ": {"mask": attnspec.causal(torch.tensor([0, 1]))},
    "segments": {"mask": attnspec.segments([0] * 9, [0] * 11) & attnspec.causal()},
    "all but a band": {"mask": ~attnspec.causal()},
}


@pytest.mark.parametrize("name", OTHERS)
def test_of_other_calls_there_is_no_band(name: str) -> None:
    request = make_request(*inputs((9, 11)), **{"bias": attnspec.alibi(H), **OTHERS[name]})
    assert band_of(request) is None
    assert isinstance(calls_of(request), Stripes)
