"""What only torch can get wrong: autocast, precision switches, a first call that is compiled, subclasses."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

import attnspec
from attnspec.host import host_of

Q, D = 7, 4


@pytest.fixture
def q() -> torch.Tensor:
    return torch.randn(2, Q, D, generator=torch.Generator().manual_seed(0))


def test_autocast_does_not_lower_the_inside_nor_change_the_dtype(q: torch.Tensor) -> None:
    expected = attnspec.attention(q, q, q)
    params = attnspec.MultiHeadParams.init(attnspec.random.key(0), model_width=D, heads=2, like=q)
    projected = attnspec.multi_head_attention(params, q)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(attnspec.attention(q, q, q), expected)
        assert torch.equal(attnspec.multi_head_attention(params, q), projected)
        assert (q @ q.mT).dtype == torch.bfloat16  # and it is on again outside


def test_autocast_does_not_lower_a_compiled_inside(q: torch.Tensor) -> None:
    """Around the compiled call, and inside of what is compiled."""

    def inside(q: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return attnspec.attention(q, q, q)

    compiled = torch.compile(lambda q: attnspec.attention(q, q, q), fullgraph=True, backend="eager")
    expected = compiled(q)
    with torch.autocast("cpu", torch.bfloat16):
        around = compiled(q)
    for out in (around, torch.compile(inside, fullgraph=True, backend="eager")(q)):
        assert out.dtype == torch.float32
        assert torch.equal(out, expected)


@pytest.mark.parametrize("precision", ["tf32", "ieee", "none"])
def test_precision_switches_are_left_as_they_were_found(q: torch.Tensor, precision: str) -> None:
    switches = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul, torch.backends)
    before = [s.fp32_precision for s in switches]
    seen: list[str] = []

    class Spy:
        def tile(self, q: Any, k: Any, /, *, xp: Any, device: Any) -> torch.Tensor:
            seen.extend(s.fp32_precision for s in switches[:2])
            return torch.ones(1, 1, dtype=torch.bool)

        def status(self, q: Any, k: Any, /) -> str:
            return "some"

    try:
        torch.backends.fp32_precision = precision
        found = [s.fp32_precision for s in switches]
        attnspec.attention(q, q, q, mask=Spy())
        assert [s.fp32_precision for s in switches] == found
        assert not {"tf32", "bf16"} & set(seen)
        torch.backends.fp32_precision = "ieee"
        assert switches[0].fp32_precision == "ieee"  # still inherited
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.fp32_precision = value


def test_the_legacy_switch_is_left_as_it_was_found(q: torch.Tensor) -> None:
    try:
        torch.set_float32_matmul_precision("medium")
        attnspec.attention(q, q, q)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_the_first_call_of_a_process_may_be_a_compiled_one() -> None:
    code = (
        "import attnspec, torch; q = torch.ones(1, 3, 2)\n"
        "f = lambda q: attnspec.attention(q, q, q, mask=attnspec.causal())\n"
        "print(torch.compile(f, fullgraph=True, backend='eager')(q).sum().item())"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "6.0", done.stderr[-2000:]


def test_a_subclass_of_tensor_has_the_host_of_tensor(q: torch.Tensor) -> None:
    class Named(torch.Tensor):  # type: ignore[misc]
        pass

    assert host_of(q.as_subclass(Named)) is host_of(q)


def test_keep_masks_are_the_same_compiled(q: torch.Tensor) -> None:
    def dropped(q: torch.Tensor) -> torch.Tensor:
        return attnspec.dropout(q, 0.25, attnspec.random.key(3))

    assert torch.equal(torch.compile(dropped, fullgraph=True, backend="aot_eager")(q), dropped(q))


def test_the_threefry_operation_maps_over_keys() -> None:
    """`torch.func.vmap` of a compiled draw: each item its own key."""
    keys = attnspec.random.split(attnspec.random.key(0), 3)
    high, low = (torch.tensor([getattr(key, word) for key in keys], dtype=torch.int32) for word in ("high", "low"))
    like = torch.zeros(1)

    def draw(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
        return attnspec.random.bits(attnspec.random.Key(high, low), (4, 5), like=like)

    drawn = torch.compile(lambda h, l: torch.func.vmap(draw)(h, l), fullgraph=True, backend="eager")(high, low)
    assert torch.equal(drawn, torch.stack([attnspec.random.bits(key, (4, 5), like=like) for key in keys]))
