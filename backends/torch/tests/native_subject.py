"""torch's fused attention as a subject of the suite: judged in its own right, wherever it takes a call."""

from __future__ import annotations

from typing import Any

import torch
from attnspec_conformance import placement
from attnspec_conformance.subjects import BackendSubject, UnsupportedError
from attnspec_conformance.trials import Call, Result


def by_autograd(f: Any, *arrays: torch.Tensor) -> Any:
    """What a backend's `vjp` gives, by `torch.autograd.grad` on leaves."""
    leaves = [x.clone().requires_grad_() for x in arrays]
    results = f(*leaves)

    def pull(cotangents: Any) -> tuple[torch.Tensor, ...]:
        given = cotangents if isinstance(cotangents, tuple) else (cotangents,)
        made = results if isinstance(results, tuple) else (results,)
        gradients: tuple[torch.Tensor, ...] = torch.autograd.grad(made, leaves, given, materialize_grads=True)
        return gradients

    return results, pull


class Autograd:
    """The backend, whose gradients are those of `loss.backward()`."""

    vjp = staticmethod(by_autograd)

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


class Native(BackendSubject):
    """`attnspec.attention(..., implementation="native")`; what the kernel does not take is unsupported."""

    portable = False

    def __init__(self, *, leaves: bool = False) -> None:
        backend = placement.load("torch")
        super().__init__(Autograd(backend) if leaves else backend)
        self.name = "native, by autograd" if leaves else "native"
        self.capabilities = self.capabilities - {"shards"}

    def forward(self, call: Call) -> Result:
        """A refusal of the kernel is not one of the call. Calls that name their implementation have it."""
        return self._taken(super().forward(_insisting(call)))

    def vjp(self, call: Call) -> Result:
        """The same."""
        return self._taken(super().vjp(_insisting(call)))

    def _taken(self, result: Result) -> Result:
        if result.error == "KernelError":
            raise UnsupportedError(result.message)
        return result


def _insisting(call: Call) -> Call:
    return call.but(implementation="native") if call.implementation == "auto" else call
