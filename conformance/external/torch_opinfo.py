"""PyTorch's OpInfo samples: the arguments that PyTorch's developers try their own operators with.

Wanted is what PyTorch gives in float64, by its composite kernels. In float64 attnspec is held to the tolerance of
`torch.testing`. In a narrower dtype its greatest error on a sample may be twice the greatest that PyTorch's own kernel
makes in that dtype on the samples of the operator, or one unit in the last place of the greatest entry. (On one sample
alone that is luck, of a few dozen rows: every seventh time PyTorch's composite kernel is beyond twice the error of its
fused one.) Samples with dropout are asked without: its random stream is PyTorch's alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from case import Case
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import layer_norm, multi_head_attention_forward, rms_norm, scaled_dot_product_attention

from attnspec.integrations import torch as adapter

ATTENTION = "nn.functional.scaled_dot_product_attention"
MULTI_HEAD = "nn.functional.multi_head_attention_forward"
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    ATTENTION: (adapter.scaled_dot_product_attention, scaled_dot_product_attention),
    MULTI_HEAD: (adapter.multi_head_attention_forward, multi_head_attention_forward),
    "nn.functional.layer_norm": (adapter.layer_norm, layer_norm),
    "nn.functional.rms_norm": (adapter.rms_norm, rms_norm),
    "softmax": (adapter.softmax, torch.softmax),
    "torch.ops.aten._safe_softmax.default": (adapter.softmax, torch.ops.aten._safe_softmax),
}
WITHOUT_DROPOUT = {ATTENTION: {"dropout_p": 0.0}, MULTI_HEAD: {"training": False}}


def cases(dtype: str = "float64") -> list[Case]:
    """The samples of every operator in that dtype."""
    from torch.testing._internal.common_methods_invocations import op_db

    found = []
    for info in op_db:
        if info.name in FUNCTIONS and not info.variant_test_name:
            torch.manual_seed(0)
            drawn = info.sample_inputs("cpu", getattr(torch, dtype))
            without = WITHOUT_DROPOUT.get(info.name, {})
            samples = Samples(info.name, [((sample.input, *sample.args), sample.kwargs | without) for sample in drawn])
            found += [Case(f"{info.name}-{n}-{dtype}", samples.checking(n)) for n in range(len(samples.calls))]
    return found


@dataclass
class Samples:
    """The calls of one operator in one dtype."""

    operator: str
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]]

    def checking(self, n: int) -> Callable[[], None]:
        """What checks the n-th."""

        def check() -> None:
            (ours, theirs), (args, kwargs) = FUNCTIONS[self.operator], self.calls[n]
            answers = (_results(function, args, kwargs) for function in (ours, theirs))
            for got, own, right, error in zip(*answers, self.wanted(n), self.errors, strict=True):
                assert (got.shape, got.dtype) == (own.shape, own.dtype)
                if got.dtype == torch.float64:
                    torch.testing.assert_close(got, right)
                else:
                    allowed = max(2 * error, torch.finfo(got.dtype).eps * _greatest(right))
                    found = _greatest(got.double() - right)
                    assert found <= allowed, f"error {found:.3g}, allowed {allowed:.3g}"

        return check

    def wanted(self, n: int) -> tuple[Any, ...]:
        """The right results of the n-th, in float64."""
        args, kwargs = self.calls[n]
        with sdpa_kernel(SDPBackend.MATH):
            wide = {name: _widened(x) for name, x in kwargs.items()}
            return _results(FUNCTIONS[self.operator][1], [_widened(x) for x in args], wide)

    @cached_property
    def errors(self) -> list[float]:
        """The greatest error of PyTorch's own kernel over all samples, for each of its results."""
        theirs = FUNCTIONS[self.operator][1]
        errors = []
        for n, call in enumerate(self.calls):
            results = zip(_results(theirs, *call), self.wanted(n), strict=True)
            errors.append([_greatest(own.double() - right) for own, right in results])
        return [max(of_one) for of_one in zip(*errors, strict=True)]


def _results(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    answer = function(*args, **kwargs)
    return answer if isinstance(answer, tuple) else (answer,)


def _widened(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def _greatest(x: Any) -> float:
    return x.abs().max().item() if x.numel() else 0.0
