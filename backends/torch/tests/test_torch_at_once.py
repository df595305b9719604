"""Calls that are recognised at a glance give the bits of those that are checked and planned; all others are left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attnspec_torch.sdpa_at_once import at_once
from torch import Tensor

import attnspec

# A framework's deprecations are its own affair.
pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")

Tensors = tuple[Tensor, Tensor, Tensor]
SHAPES = {  # B, H, G, Q, K, D
    "heads alike": (2, 3, 3, 61, 67, 8),
    "grouped, more queries than keys": (3, 6, 2, 71, 37, 8),
    "grouped by three, as many items as heads": (6, 6, 2, 40, 53, 4),
    "few queries": (2, 6, 2, 2, 1031, 8),
    "few queries, no groups": (1, 4, 4, 5, 1500, 16),
    "a few of each": (2, 4, 2, 8, 8, 8),
    "one query": (2, 1, 1, 1, 5, 3),
    "in halves, if causal": (1, 2, 1, 401, 385, 8),
}


def arrays(name: str, dtype: torch.dtype = torch.float32) -> Tensors:
    B, H, G, Q, K, D = SHAPES[name]
    rng = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(B, *s, D, generator=rng, dtype=dtype) for s in ((H, Q), (G, K), (G, K)))
    return q, k, v


def masks(name: str) -> dict[str, Any]:
    B, H, _, Q, K, _ = SHAPES[name]
    pairs = torch.rand(B, H, Q, K, generator=torch.Generator().manual_seed(6)) < 0.7
    pairs[..., 0] = True
    row = torch.rand(K, generator=torch.Generator().manual_seed(4)) < 0.7
    rows = torch.rand(B, 1, 1, K, generator=torch.Generator().manual_seed(5)) < 0.7
    return {
        "none": None, "causal": attnspec.causal(), "padding": attnspec.padding(K - 3),
        "padding, each alike": attnspec.padding([K - 3] * B), "a row": row, "rows": rows, "pairs": pairs[0, 0],
        "pairs of heads": pairs[0], "pairs of items": pairs[:, :1], "pairs, turned": pairs.mT.contiguous().mT,
    }  # fmt: skip


CASES = [pytest.param(shape, mask, id=f"{shape}; {mask}") for shape in SHAPES for mask in masks(shape)]


def pulled(attend: Callable[..., Tensor], inputs: Tensors) -> tuple[Tensor, ...]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = attend(*leaves)
    g = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    return (out.detach(), *torch.autograd.grad(out, leaves, g))


def quick(mask: Any = None) -> Callable[..., Any]:
    return lambda q, k, v: at_once(q, k, v, mask, None)


def insisting(mask: Any, scale: Any = None) -> Callable[..., Tensor]:
    return lambda q, k, v: attnspec.attention_with_lse(q, k, v, mask=mask, scale=scale, implementation="native")[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("shape", "mask"), CASES)
def test_results_and_gradients_have_the_bits_of_the_longer_way(shape: str, mask: str, dtype: torch.dtype) -> None:
    inputs, rule = arrays(shape, dtype), masks(shape)[mask]
    if "padding, each" in mask and SHAPES[shape][0] > 1 and quick(rule)(*inputs) is None:
        pytest.skip("several calls of the operation")
    for scale in (None, 0.75):

        def quickly(q: Any, k: Any, v: Any, scale: Any = scale) -> Tensor:
            out = at_once(q, k, v, rule, scale)
            assert out is not None
            return out

        assert torch.equal(quickly(*inputs), insisting(rule, scale)(*inputs))
        for one, other in zip(pulled(quickly, inputs), pulled(insisting(rule, scale), inputs), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mask", [None, attnspec.causal()], ids=["all", "causal"])
def test_an_item_and_a_head_have_the_bits_that_they_have_among_others(mask: Any, shape: str) -> None:
    q, k, v = (x[:, :1] for x in arrays(shape))
    among = quick(mask)(q, k, v)
    for place in ((0,), (0, 0)):
        inputs = q[place], k[place], v[place]
        for one, other in zip(pulled(quick(mask), inputs), pulled(insisting(mask), inputs), strict=True):
            assert torch.equal(one, other)
        assert torch.equal(quick(mask)(*inputs), among[place])


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -torch.finfo(torch.float32).max, 1e30])
@pytest.mark.parametrize("letter", "kv")
@pytest.mark.parametrize("mask", ["padding", "a row", "rows"])
def test_hidden_garbage_changes_no_bit(mask: str, letter: str, garbage: float) -> None:
    """Seen at a glance or not: whoever then takes the call gives the same."""
    shape = "heads alike"
    rule, (q, k, v) = masks(shape)[mask], arrays(shape)
    B, *_, K, _ = SHAPES[shape]
    hidden = ~(torch.arange(K) < K - 3 if mask == "padding" else rule).expand(B, 1, 1, K)[:, 0, 0]
    spoilt = {"k": k, "v": v}
    spoilt[letter] = spoilt[letter].masked_fill(hidden[:, None, :, None], garbage)

    def either(q: Any, k: Any, v: Any) -> Tensor:
        out = at_once(q, k, v, rule, None)
        return insisting(rule)(q, k, v) if out is None else out

    for one, other in zip(pulled(either, (q, *spoilt.values())), pulled(either, (q, k, v)), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("letter", "qkv")
def test_what_is_no_number_is_left_to_others(letter: str, value: float, shape: str) -> None:
    inputs = dict(zip("qkv", arrays(shape), strict=True))
    inputs[letter][-1, -1, -1, -1] = value
    assert quick()(*inputs.values()) is None


def test_cotangents_that_are_no_numbers_reach_what_they_have_to() -> None:
    inputs = arrays("heads alike")
    found = []
    for attend in (quick(), insisting(None)):
        leaves = [x.clone().requires_grad_() for x in inputs]
        out = attend(*leaves)
        g = torch.ones_like(out)
        g[0, 1, 2, 3] = float("nan")
        found.append(torch.autograd.grad(out, leaves, g))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_gradients_of_gradients_are_those_of_plain_operations() -> None:
    inputs, found = arrays("grouped, more queries than keys", torch.float64), []
    for attend in (
        quick(attnspec.causal()),
        lambda q, k, v: attnspec.attention(q, k, v, mask=attnspec.causal(), implementation="portable"),
    ):
        leaves = [x.clone().requires_grad_() for x in inputs]
        first = torch.autograd.grad(torch.sin(attend(*leaves)).sum(), leaves, create_graph=True)  # type: ignore[no-untyped-call]
        found.append(torch.autograd.grad(sum(torch.cos(x).sum() for x in first), leaves))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("layout", ["steps of 0", "steps along the width"])
def test_a_cotangent_of_any_layout_is_taken(layout: str) -> None:
    inputs, rule = arrays("heads alike"), attnspec.causal()
    g = torch.randn(inputs[0].mT.shape, generator=torch.Generator().manual_seed(1)).mT
    g = torch.ones(()).expand(g.shape) if layout == "steps of 0" else g
    found = []
    for attend, given in (
        (quick(rule), g),
        (quick(rule), g.contiguous()),
        (insisting(rule), g),
    ):
        leaves = [x.clone().requires_grad_() for x in inputs]
        found.append(torch.autograd.grad(attend(*leaves), leaves, given))
    assert all(map(torch.equal, found[0], found[1]))
    assert all(map(torch.equal, found[0], found[2]))


def others() -> dict[str, tuple[Any, ...]]:
    """Calls that it must not take: each differs from a right one in one thing."""
    q, k, v = arrays("grouped by three, as many items as heads")
    K = k.shape[2]
    hiding = torch.ones(6, 1, 1, K, dtype=torch.bool)
    hiding[2] = False
    return {
        "no keys": (q, k[:, :, :0], v[:, :, :0], None, None),
        "no queries": (q[:, :, :0], k, v, None, None),
        "half precision": (q.half(), k.half(), v.half(), None, None),
        "two dtypes": (q, k.double(), v, None, None),
        "a parameter": (torch.nn.Parameter(q), k, v, None, None),
        "no tensor": (q.numpy(), k.numpy(), v.numpy(), None, None),
        "keys without items": (q, k[0], v[0], None, None),
        "queries without items": (q[0], k, v, None, None),
        "no axes": (q[0, 0, 0, 0], k, v, None, None),
        "one axis": (q[0, 0, 0], k[0, 0, 0], v[0, 0, 0], None, None),
        "an item and a row of each item": (q[0], k[0], v[0], torch.ones(1, 1, 1, K, dtype=torch.bool), None),
        "an item and a length of each item": (q[0], k[0], v[0], attnspec.padding([K]), None),
        "items that broadcast": (q, k[:1], v[:1], None, None),
        "values of another width": (q, k, v[..., :3], None, None),
        "fewer values": (q, k, v[:, :, 1:], None, None),
        "another width": (q[..., :3], k, v, None, None),
        "heads that do not divide": (q[:, :5], k, v, None, None),
        "steps along the width": (q.mT.contiguous().mT, k, v, None, None),
        "another device": (q.to("meta"), k.to("meta"), v.to("meta"), None, None),
        "a scale that is too large": (q, k, v, None, 2.0**11),
        "a negative scale": (q, k, v, attnspec.causal(), -0.5),
        "no scale": (q, k, v, attnspec.causal(), 0.0),
        "a scale that is none": (q, k, v, None, float("nan")),
        "a scale of a tensor": (q, k, v, None, torch.tensor(0.5)),
        "a window": (q, k, v, attnspec.window(3, 0), None),
        "another offset": (q, k, v, attnspec.causal(-1), None),
        "offsets": (q, k, v, attnspec.causal(torch.zeros(6, dtype=torch.int64)), None),
        "lengths of a tensor": (q, k, v, attnspec.padding(torch.full((6,), K)), None),
        "lengths that differ": (q, k, v, attnspec.padding([K - n for n in range(6)]), None),
        "two rules": (q, k, v, attnspec.causal() & attnspec.padding(K - 1), None),
        "an array of each head of others": (q, k, v, torch.ones(5, 1, K, dtype=torch.bool), None),
        "an array of too many axes": (q, k, v, torch.ones(1, 1, 1, 1, K, dtype=torch.bool), None),
        "a query that sees nothing": (q, k, v, torch.arange(q.shape[2])[:, None] > torch.zeros(K), None),
        "a row of numbers": (q, k, v, torch.ones(K), None),
        "a row that is too short": (q, k, v, torch.ones(1, dtype=torch.bool), None),
        "rows that hide all keys": (q, k, v, hiding, None),
    }  # fmt: skip


@pytest.mark.parametrize("name", others())
def test_other_calls_are_left(name: str) -> None:
    q, k, v, mask, scale = others()[name]
    assert at_once(q, k, v, mask, scale) is None


def test_transforms_and_lower_precision_are_left() -> None:
    q, k, v = arrays("heads alike")
    found: list[Any] = []

    def asked(q: Tensor) -> Tensor:
        found.append(at_once(q, k, v, None, None))
        return q.sum()

    torch.func.grad(asked)(q)
    torch.func.vmap(asked)(q[None])
    torch.func.jvp(asked, (q,), (q,))
    with torch.autocast("cpu"):
        asked(q)
    torch.jit.trace(asked, (q,), check_trace=False)
    assert found == [None] * 5
    assert at_once(q, k, v, None, None) is not None


@pytest.mark.parametrize("n", [8, 40])
def test_calls_at_once_have_second_derivatives(n: int) -> None:
    leaves = [torch.randn(1, 2, n, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradgradcheck(lambda *arrays: attnspec.attention(*arrays), tuple(leaves))


def test_a_parameter_is_computed_as_its_tensor_is() -> None:
    q, k, v = (torch.randn(1, 2, 64, 8) for _ in range(3))
    with torch.no_grad():
        out = attnspec.attention(torch.nn.Parameter(q), k, v)
    assert torch.equal(out, attnspec.attention(q, k, v))
    assert torch.equal(attnspec.attention(torch.nn.Parameter(q), k, v), out)


def test_who_writes_to_a_mask_before_the_way_back_is_told_so() -> None:
    for mask in (torch.eye(6, dtype=torch.bool), torch.arange(6) < 4):
        x = torch.randn(1, 1, 6, 4, requires_grad=True)
        out = attnspec.attention(x, x, x, mask=mask)
        mask[...] = True
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_results_lie_beside_their_arrays_whatever_the_default_device_is() -> None:
    q, bad = torch.randn(1, 2, 600, 8), torch.randn(1, 2, 600, 8)
    bad[..., 3, 0] = torch.nan
    pairs = torch.ones(600, 600, dtype=torch.bool).tril()
    rules = attnspec.causal(5), pairs, attnspec.padding(500)
    calls = [(k, mask, bias) for k in (q, bad) for mask in rules for bias in (None, attnspec.alibi(2))]
    for k, mask, bias in calls:
        with torch.device("meta"):
            found = attnspec.attention_with_lse(q, k, k, mask=mask, bias=bias)
        wanted = attnspec.attention_with_lse(q, k, k, mask=mask, bias=bias)
        assert all(torch.equal(x.nan_to_num(), y.nan_to_num()) for x, y in zip(found, wanted, strict=True))


@pytest.mark.parametrize("mask", [None, attnspec.causal()])
@pytest.mark.parametrize("size", [16.0, 32.0, 256.0])
def test_gradients_of_large_scores_are_made_of_their_sums(mask: Any, size: float) -> None:
    """And not of an lse that has lost what tells the weights apart."""
    x = torch.full((1, 1, 64, 64), size)
    v, g = torch.randn(1, 1, 64, 64), torch.randn(1, 1, 64, 64)
    found = []
    for dtype, implementation in ((torch.float32, "auto"), (torch.float64, "portable")):
        leaves = [a.clone().to(dtype).requires_grad_() for a in (x, x, v)]
        attnspec.attention(*leaves, mask=mask, implementation=implementation).backward(g.to(dtype))
        found.append([leaf.grad for leaf in leaves])
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=0, atol=2e-6 * size)


def test_entries_alone_in_their_rows_may_lie_anyhow() -> None:
    q, k, v = (torch.randn(2, n, 2, 1).transpose(1, 2) for n in (130, 300, 300))
    seen, spoilt = torch.arange(300) < 293, k.transpose(1, 2).clone().transpose(1, 2)
    spoilt[:, :, 293:] = 3e38
    assert torch.equal(attnspec.attention(q, k, v, mask=seen), attnspec.attention(q, spoilt, v, mask=seen))
