"""What users get wrong by a slip: each is refused with the way out, and none is taken for something else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attnspec
from attnspec.errors import AttnspecError, DTypeError, MaskError, OptionError, ShapeError

from . import bounds, oracle
from .judges import near
from .problems import constant
from .trials import Call


@pytest.fixture
def x(backend: Any) -> Any:
    return backend.asarray(np.ones((2, 3, 4, 8), np.float32))  # (B, H, Q, D)


@pytest.mark.clause("MASK-3")
def test_masks_and_biases_have_no_truth_value(backend: Any) -> None:
    """`causal() and padding(5)` would be `padding(5)` alone."""
    for option in (attnspec.causal(), attnspec.padding(5) | attnspec.causal(), ~attnspec.causal()):
        with pytest.raises(MaskError, match="&"):
            bool(option)
    with pytest.raises(DTypeError, match=r"\+"):
        bool(attnspec.alibi(2))


@pytest.mark.clause("MASK-1")
def test_a_bias_is_no_mask_and_a_mask_is_no_bias(x: Any) -> None:
    with pytest.raises(MaskError, match="bias="):
        attnspec.attention(x, x, x, mask=attnspec.alibi(3))
    with pytest.raises(MaskError, match="bias="):
        attnspec.causal() & attnspec.alibi(3)
    with pytest.raises(DTypeError, match="mask="):
        attnspec.attention(x, x, x, bias=attnspec.causal())
    with pytest.raises(DTypeError, match="mask="):
        attnspec.alibi(3) + attnspec.causal()


@pytest.mark.clause("MASK-1")
def test_a_foreign_rule_has_tiles_of_its_kind(backend: Any, x: Any) -> None:
    class Ones:
        def __init__(self, dtype: Any) -> None:
            self.dtype_ = dtype

        def tile(self, q: Any, k: Any, /, *, xp: Any, device: Any) -> Any:
            return xp.ones((1, 1), dtype=self.dtype_, device=device)

        def status(self, q: Any, k: Any, /) -> str:
            return "some"

    floats, bools = Ones(backend.xp.float32), Ones(backend.xp.bool)
    plain = np.asarray(backend.to_numpy(attnspec.attention(x, x, x)))
    assert np.array_equal(backend.to_numpy(attnspec.attention(x, x, x, mask=bools)), plain)
    ones = constant(1, 2, 3, 4, 8)
    exact = oracle.attention(Call(ones, ones, ones, bias=constant(1, 1, 1)))
    biased = np.asarray(backend.to_numpy(attnspec.attention(x, x, x, bias=floats)))
    verdict = near("out", biased, exact.out, bounds.out(exact, "float32"))
    assert verdict.ok, verdict.message
    with pytest.raises(MaskError, match="float32"):
        attnspec.attention(x, x, x, mask=floats)
    with pytest.raises(DTypeError, match="bool"):
        attnspec.attention(x, x, x, bias=bools)


@pytest.mark.clause("MASK-4")
def test_a_foreign_rule_is_told_which_rows_it_is_asked_about(backend: Any, x: Any) -> None:
    class Same:
        """A query sees the key at its own position."""

        def tile(self, q: Any, k: Any, /, *, xp: Any, device: Any) -> Any:
            return q.index[:, None] == k.index[None, :]

        def status(self, q: Any, k: Any, /) -> str:
            return "none" if q.bounds[0] >= k.bounds[1] or k.bounds[0] >= q.bounds[1] else "some"

    v, x = backend.asarray(np.arange(192, dtype=np.float32).reshape(2, 3, 4, 8)), backend.xp.zeros_like(x)
    got = backend.to_numpy(attnspec.attention(x, x, v, mask=Same(), q_positions=range(2, 6)))
    np.testing.assert_array_equal(got[..., :2, :], backend.to_numpy(v)[..., 2:, :])
    np.testing.assert_array_equal(got[..., 2:, :], 0)
    far = attnspec.attention(x, x, v, mask=Same(), q_positions=range(9, 13))
    np.testing.assert_array_equal(backend.to_numpy(far), 0)


@pytest.mark.clause("MASK-2")
def test_a_padding_mask_without_axes_for_heads_and_queries_gets_the_hint(backend: Any, x: Any) -> None:
    with pytest.raises(ShapeError, match=r"\(2, 1, 1, 4\).*padding"):
        attnspec.attention(x[:, :, :1, :], x, x, mask=backend.asarray(np.ones((2, 4), bool)))


@pytest.mark.clause("MASK-4")
def test_an_alignment_in_place_of_an_offset_gets_the_hint(backend: Any) -> None:
    with pytest.raises(DTypeError, match='align="end"'):
        attnspec.causal("end")


@pytest.mark.clause("ERROR-1")
def test_every_slip_in_the_layers_is_a_refusal_of_attnspec(backend: Any) -> None:
    like = backend.asarray(np.zeros(1, np.float32))
    rng = attnspec.random.key(0)
    stack = attnspec.StackParams.init(rng, depth=1, order="pre", model_width=8, heads=2, hidden_width=4, like=like)
    (layer,) = stack.layers
    heads = layer.attention
    x = backend.asarray(np.ones((3, 8), np.float32))
    cache = attnspec.Cache.of(heads, capacity=4)
    batched = backend.asarray(np.ones((2, 3, 8), np.float32))
    slips: list[Any] = [
        lambda: attnspec.transformer_stack(stack, x, residual_dropout=0.1),  # type: ignore[arg-type]
        lambda: attnspec.transformer_layer(layer, x, dropout=0.1),  # type: ignore[arg-type]
        lambda: attnspec.add_and_norm(x, x, dropout=0.1),  # type: ignore[arg-type]
        lambda: attnspec.transformer_stack(stack, x, masks=None),  # type: ignore[call-arg]
        lambda: attnspec.multi_head_attention(heads, x, masks=None),  # type: ignore[call-arg]
        lambda: attnspec.transformer_stack(stack.layers, x),  # type: ignore[arg-type]
        lambda: attnspec.transformer_layer(stack, x),  # type: ignore[arg-type]
        lambda: attnspec.multi_head_attention(layer, x),  # type: ignore[arg-type]
        lambda: attnspec.multi_head_attention(heads, x, rotary=True),  # type: ignore[arg-type]
        lambda: attnspec.transformer_stack_with_cache(stack, x, cache),  # type: ignore[arg-type]
        lambda: attnspec.multi_head_attention_with_cache(heads, x, (cache,)),  # type: ignore[arg-type]
        lambda: attnspec.multi_head_attention_with_cache(heads, batched, cache),
        lambda: attnspec.multi_head_attention_with_cache(heads, x, cache, masks=None),  # type: ignore[call-arg]
        lambda: attnspec.multi_head_attention_with_cache(heads, x[0, :], cache),
        lambda: attnspec.params.flatten({"a": x}),  # type: ignore[arg-type]
    ]
    for slip in slips:
        with pytest.raises(AttnspecError):
            slip()
    with pytest.raises(OptionError, match=r"masks.*mask, bias"):
        attnspec.multi_head_attention(heads, x, masks=None)  # type: ignore[call-arg]
    with pytest.raises(ShapeError, match="lead"):
        attnspec.multi_head_attention_with_cache(heads, batched, cache)
