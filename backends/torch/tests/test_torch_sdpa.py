"""torch's fused attention as a kernel: judged by the laws of the suite, and by what the suite cannot ask of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from attnspec_conformance.laws import LAWS
from attnspec_conformance.subjects import judge
from attnspec_conformance.trials import Verdict
from attnspec_torch import sdpa, sdpa_gradients
from native_subject import Native  # type: ignore[import-not-found]

import attnspec
from attnspec.errors import KernelError

# A framework's deprecations are its own affair.
pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")

H, G, Q, K, D = 6, 3, 5, 7, 4
LARGEST = torch.finfo(torch.float32).max
GARBAGE = (0.0, -3.0, 1e30, LARGEST, -LARGEST, float("nan"), float("inf"), float("-inf"))
ROW = torch.tensor([[True, False, True, True, False, True, True], [False] * 7])[:, None, None, :]
PAIRS = torch.rand(2, 1, Q, K, generator=torch.Generator().manual_seed(8)) < 0.6

# name -> (mask, the keys that nobody sees, for each item)
MASKS: dict[str, Any] = {
    "causal": attnspec.causal(),
    "causal, from a later row": attnspec.causal(2),
    "causal, from an earlier row": attnspec.causal(-2),
    "causal, aligned to the end": attnspec.causal(align="end"),
    "padding by an array": attnspec.padding(torch.tensor([4, 0])),
    "padding by a list, causal": attnspec.padding([6, 2]) & attnspec.causal(1),
    "a row of keys": ROW,
    "a row of keys, causal": attnspec.as_mask(ROW) & attnspec.causal(1),
    "pairs": PAIRS,
    "pairs, causal": attnspec.causal(1) & PAIRS,
    "segments, causal": attnspec.segments(torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0] * 3 + [1] * 4))
    & attnspec.causal(1),
}
Tensors = tuple[torch.Tensor, ...]


@pytest.fixture
def inputs() -> Tensors:
    rng = torch.Generator().manual_seed(0)
    return tuple(torch.randn(2, *s, D, generator=rng) for s in ((H, Q), (G, K), (G, K)))


def judged(law: Any, subject: Native) -> list[Verdict]:
    """Of the trials that the kernel takes."""
    if not law.needs <= subject.capabilities:
        return []
    return [verdict for _, verdict in judge(law, subject)[0]]


CASES = [
    pytest.param(law, leaves, id=f"{name}-{'autograd' if leaves else 'func'}")
    for name, law in LAWS.items()
    for leaves in ((False, True) if "vjp" in law.needs else (False,))
]


@pytest.mark.parametrize(("law", "leaves"), CASES)
def test_the_kernel_keeps_the_laws(law: Any, leaves: bool) -> None:
    verdicts = judged(law, Native(leaves=leaves))
    if not verdicts:
        pytest.skip("asks nothing that the kernel takes")
    assert not [verdict.message for verdict in verdicts if not verdict.ok]


@pytest.mark.parametrize(
    "family",
    [
        "SHAPE-1",
        "SHAPE-3",
        "SHAPE-4",
        "SCORE-1",
        "SCORE-3",
        "MASK-4",
        "MASK-5",
        "MASK-6a",
        "MASK-7",
        "SOFTMAX-1",
        "SOFTMAX-3",
        "PATH-1",
    ],
)
def test_the_kernel_is_asked_the_clauses_that_it_could_break(family: str) -> None:
    subject = Native()
    assert any(judged(law, subject) for law in LAWS.values() if family in law.clauses)


@pytest.fixture
def unwary(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrapper without its look at what was read."""
    for module in (sdpa, sdpa_gradients):
        monkeypatch.setattr(module, "are_tame", lambda *arrays: True)


@pytest.mark.usefixtures("unwary")
def test_a_wrapper_that_does_not_look_is_failed_by_the_clause_it_breaks() -> None:
    subject = Native()
    laws = [law for law in LAWS.values() if "MASK-7" in law.clauses]
    assert not all(verdict.ok for law in laws for verdict in judged(law, subject))


@pytest.mark.usefixtures("unwary")
def test_a_wrapper_that_does_not_look_lets_garbage_into_gradients(inputs: Tensors) -> None:
    with pytest.raises(AssertionError):
        test_garbage_hidden_from_some_queries_changes_no_bit_of_the_others("v", "causal", inputs)


def results_of(mask: Any, inputs: Tensors, silent: torch.Tensor | None = None) -> Tensors:
    """out, lse and the gradients of q, k and v; nothing is asked of silent rows."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    out, lse = attnspec.attention_with_lse(*leaves, mask=mask, implementation="native")
    g = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    if silent is not None:
        g = g.masked_fill(silent[:, None, :, None], 0.0)
    return (out.detach(), lse.detach(), *torch.autograd.grad(out, leaves, g))


def visible(mask: Any) -> torch.Tensor:
    """(2, Q, K), by the weights of the portable code."""
    zeros = torch.zeros(2, 1, Q, D), torch.zeros(2, 1, K, D)
    return attnspec.attention_weights(*zeros, mask=mask)[:, 0] > 0


@pytest.mark.parametrize("name", MASKS)
def test_what_nobody_sees_changes_no_bit(name: str, inputs: Tensors) -> None:
    q, k, v = inputs
    clean = results_of(MASKS[name], inputs)
    hidden = ~visible(MASKS[name]).any(1)
    if not hidden.any():
        pytest.skip("every key is seen")
    for value in GARBAGE:
        spoilt = (x.masked_fill(hidden[:, None, :, None], value) for x in (k, v))
        for one, other in zip(results_of(MASKS[name], (q, *spoilt)), clean, strict=True):
            assert torch.equal(one, other)
    for gradient in clean[3:]:
        assert not gradient[hidden[:, None].expand(2, G, K)].any()


@pytest.mark.parametrize("name", [name for name in MASKS if "causal" in name])
@pytest.mark.parametrize("letters", ["k", "v", "kv"])
def test_garbage_hidden_from_some_queries_changes_no_bit_of_the_others(
    letters: str, name: str, inputs: Tensors
) -> None:
    """Nothing is asked of the queries that see it: then no gradient has a bit of it either."""
    q, k, v = inputs
    seen = visible(MASKS[name])
    at = 3 if "later" in name or "end" in name else 2
    rows = seen[:, :, at]
    assert rows.any()
    assert not rows.all()
    clean = results_of(MASKS[name], inputs, rows)
    other_rows = ~rows[:, None].expand(2, H, Q)
    for value in (1e30, LARGEST, -LARGEST):
        spoilt = {"k": k.clone(), "v": v.clone()}
        for letter in letters:
            spoilt[letter][:, :, at] = value
        got = results_of(MASKS[name], (q, *spoilt.values()), rows)
        for one, other in zip(got[:2], clean[:2], strict=True):
            assert torch.equal(one[other_rows], other[other_rows])
        assert torch.equal(got[2][other_rows], clean[2][other_rows])


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("letter", "qkv")
def test_what_is_seen_and_is_no_number_reaches_exactly_those_that_saw_it(
    letter: str, name: str, inputs: Tensors
) -> None:
    seen = visible(MASKS[name])
    clean = results_of(MASKS[name], inputs)
    for value in GARBAGE[-3:]:
        changed = [x.clone() for x in inputs]
        at = (0, 1, 3)
        changed["qkv".index(letter)][(*at, 2)] = value
        rows = torch.zeros(2, H, Q, dtype=torch.bool)
        if letter == "q":
            rows[at] = seen[0, 3].any()
        else:
            rows[0, 2:4] = seen[0, :, 3]
        keys = (seen[:, None] & rows[..., None]).any(2).unflatten(1, (G, 2)).any(2)
        parts = zip(results_of(MASKS[name], tuple(changed)), clean, strict=True)
        for n, (one, other) in enumerate(parts):
            where = rows if n < 3 else keys
            bad = torch.isnan(one) if n == 1 else torch.isnan(one).all(-1)
            assert torch.equal(bad, where & (n != 1 or letter != "v")), f"result {n}, {value}"
            assert torch.equal(one[~where], other[~where]), f"result {n}, {value}"


def test_items_have_the_bits_that_they_have_alone(inputs: Tensors) -> None:
    mask = attnspec.padding([5, 3])
    together = attnspec.attention(*inputs, mask=mask, implementation="native")
    for n, length in enumerate((5, 3)):
        one = [x[n : n + 1] for x in inputs]
        assert torch.equal(
            attnspec.attention(*one, mask=attnspec.padding(length), implementation="native"), together[n : n + 1]
        )


def test_gradients_of_gradients_are_those_of_plain_operations(inputs: Tensors) -> None:
    wide = [x.double().requires_grad_() for x in inputs]

    def attend(*arrays: torch.Tensor) -> Any:
        return attnspec.attention_with_lse(*arrays, mask=attnspec.causal(1), implementation="native")

    assert torch.autograd.gradcheck(attend, wide)
    assert torch.autograd.gradgradcheck(attend, wide)


def test_a_hessian_is_that_of_plain_operations(inputs: Tensors) -> None:
    """Maps of gradients of gradients, in which the kernel does not serve; `auto` does not mind."""
    q, k, v = (x.double() for x in inputs)

    def loss(k: torch.Tensor, implementation: str) -> torch.Tensor:
        return torch.sin(attnspec.attention(q, k, v, mask=attnspec.causal(), implementation=implementation)).sum()

    one, other = (torch.func.hessian(lambda k, i=i: loss(k, i))(k) for i in ("auto", "portable"))
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_steps_that_are_not_1_along_the_width_are_read_right(inputs: Tensors) -> None:
    """The operation itself reads such arrays wrong."""
    wanted = attnspec.attention(*inputs, implementation="portable")
    turned = [x.mT.contiguous().mT for x in inputs]
    torch.testing.assert_close(attnspec.attention(*turned, implementation="native"), wanted)


def test_cotangents_of_any_layout_are_taken(inputs: Tensors) -> None:
    """That of a sum has steps of 0."""
    gradients = []
    for implementation in ("native", "portable"):
        leaves = [x.clone().requires_grad_() for x in inputs]
        attnspec.attention(*leaves, implementation=implementation).sum().backward()
        gradients.append([x.grad for x in leaves])
    torch.testing.assert_close(*gradients)


class Theirs:
    """Somebody else's bias."""

    def tile(self, q: Any, k: Any, /, *, xp: Any, device: Any) -> Any:
        return torch.zeros(q.size, k.size)

    def status(self, q: Any, k: Any, /) -> str:
        return "all"


@pytest.mark.parametrize(
    "options",
    [
        {"mask": attnspec.window(1, 1)},
        {"mask": attnspec.window(1, 1) & torch.ones(Q, K, dtype=torch.bool)},
        {"mask": ~attnspec.padding(3)},
        {"bias": Theirs()},
        {"sink": 0.0},
        {"softcap": 1.0},
        {"scale": 1e30},
        {"dropout": attnspec.Dropout(0.5, attnspec.random.key(0))},
    ],
    ids=lambda options: "-".join(options),
)
def test_native_says_what_it_does_not_take(options: dict[str, Any], inputs: Tensors) -> None:
    with pytest.raises(KernelError, match="scaled_dot_product_attention: "):
        attnspec.attention(*inputs, implementation="native", **options)


def test_programs_and_maps_are_of_plain_operations(inputs: Tensors) -> None:
    """Recorded, mapped and pushed forward, `auto` gives what the portable code gives, and `native` refuses."""

    def native(*arrays: torch.Tensor) -> Any:
        return attnspec.attention(*arrays, implementation="native")

    with pytest.raises(KernelError, match="vmap"):
        torch.func.vmap(native)(*inputs)
    with pytest.raises(KernelError, match="forward mode"):
        torch.func.jvp(native, inputs, inputs)
    mapped = torch.func.vmap(attnspec.attention)(*inputs)
    torch.testing.assert_close(mapped, attnspec.attention(*inputs, implementation="portable"))


@pytest.mark.parametrize("Q", [3, 40])  # read with their opposites, and alone
def test_a_row_whose_keys_are_all_hidden_has_no_sum(Q: int) -> None:
    torch.manual_seed(5)
    q, k = torch.randn(2, 6, Q, 8), torch.randn(2, 2, 7, 8)
    seen = torch.tensor([[False, True, True, False, True, True, True], [False] * 7])[:, None, None, :]
    for mask, empty in (
        (attnspec.as_mask(seen), torch.zeros(Q) > 0),
        (attnspec.as_mask(seen) & attnspec.causal(), torch.arange(Q) < 1),
        (attnspec.padding([7, 0]) & attnspec.causal(-2), torch.arange(Q) < 2),
    ):
        out, lse = attnspec.attention_with_lse(q, k, k, mask=mask, implementation="native")
        rows = torch.stack((empty, torch.ones(Q) > 0))[:, None, :].expand(2, 6, Q)
        assert torch.equal(lse == -math.inf, rows)
        assert torch.equal(out[rows], torch.zeros_like(out[rows]))


@pytest.mark.parametrize(("Q", "K"), [(384, 384), (512, 400)])
@pytest.mark.parametrize("hidden", [0, 300])
def test_halves_are_the_whole(hidden: int, Q: int, K: int) -> None:
    rng = torch.Generator().manual_seed(6)
    inputs = [torch.randn(2, *s, 8, generator=rng, dtype=torch.float64) for s in ((4, Q), (2, K), (2, K))]
    mask = attnspec.causal() & attnspec.as_mask(torch.arange(K) >= hidden) if hidden else attnspec.causal()
    found = []
    for implementation in ("native", "portable"):
        leaves = [x.clone().requires_grad_() for x in inputs]
        results = attnspec.attention_with_lse(*leaves, mask=mask, implementation=implementation)
        found.append((*results, *torch.autograd.grad(torch.sin(results[0]).sum(), leaves)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("half", [slice(0, 200), slice(200, 400)])
def test_a_half_that_weighs_nothing_adds_nothing(half: slice) -> None:
    """Its scores are beyond all numbers, which the operation takes for a row of no keys: exp(0) in all."""
    rng = torch.Generator().manual_seed(7)
    q, k, v = (torch.randn(1, 1, 400, 8, generator=rng) for _ in range(3))
    q[..., 0] = k[..., 0] = 0.0
    k[:, :, half, 0] = -(2.0**28)
    q[:, :, 300, 0] = 2.0**120
    one, other = (
        attnspec.attention_with_lse(q, k, v, mask=attnspec.causal(), implementation=way)
        for way in ("native", "portable")
    )
    torch.testing.assert_close(one, other)
