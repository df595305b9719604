"""What torch adds to the standard: autocast and TF32 to keep out, pytrees, custom derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import array_api_compat.torch as xp
import torch
from torch.utils import _pytree

from attnspec._compat import remember
from attnspec.host import Host
from attnspec.prng import rounds
from attnspec.struct import flatten, unflatten

from .dtensors import SHARDS
from .in_place import IN_PLACE
from .sdpa import SDPA

_PRODUCTS = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)


def scope() -> AbstractContextManager[Any]:
    """Autocast off on every kind of device, and float32 products in float32; nothing, where that is so already.

    The precision switches belong to the process and to run time: a program that `torch.compile` records reads them
    when it runs, so they are left alone while it is recorded, and have to be at "highest" when it runs.
    """
    if torch.compiler.is_compiling():
        return _without_autocast()
    lowered = any(m.fp32_precision not in _FULL for m in _PRODUCTS)
    return _in_full() if lowered or torch._C._is_any_autocast_enabled() else _NOTHING


_FULL = ("ieee", "none")
_NOTHING = nullcontext()


@contextmanager
def _without_autocast() -> Iterator[None]:
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield


@contextmanager
def _in_full() -> Iterator[None]:
    lowered = [(m, m.fp32_precision) for m in _PRODUCTS if m.fp32_precision not in _FULL]
    with _without_autocast():
        try:
            for m, _ in lowered:
                m.fp32_precision = "ieee"
            yield
        finally:
            for m, precision in lowered:
                # What was inherited from the general switch is inherited again.
                m.fp32_precision = "none" if precision == torch.backends.fp32_precision else precision


def concrete(*arrays: Any) -> bool:
    """Plain tensors with numbers behind them, none of which a gradient or a transform is watching.

    In forward mode any of them may have a tangent, which nothing but their operations sees.
    """
    recorded = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return not (recorded or torch.autograd.forward_ad._current_level >= 0) and all(
        type(a) in _PLAIN
        and a.device.type != "meta"
        and not (a.requires_grad and torch.is_grad_enabled())
        and not torch._C._functorch.is_functorch_wrapped_tensor(a)
        and not torch._C._functorch.is_legacy_batchedtensor(a)
        for a in arrays
    )


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def traced(*arrays: Any) -> bool:
    """Whether `torch.compile` is recording."""
    return bool(torch.compiler.is_compiling())


class _WithVjp(torch.autograd.Function):  # type: ignore[misc]
    """One module-level Function for every (forward, backward): a class made inside a call does not compile."""

    generate_vmap_rule = True

    @staticmethod
    def forward(forward: Callable[..., Any], backward: Callable[..., Any], *arrays: Any) -> Any:
        return forward(*arrays)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.rule, *arrays = inputs
        ctx.count = len(arrays)
        ctx.save_for_backward(*arrays, *output)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        saved = ctx.saved_tensors
        return (None, None, *ctx.rule(saved[: ctx.count], saved[ctx.count :], cotangents))


class _InForwardMode(_WithVjp):
    """The same with a derivative for forward mode, a method that `torch.compile` refuses to see."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _WithVjp.setup_context(ctx, inputs, output)
        ctx.function, _, *arrays = inputs
        ctx.save_for_forward(*arrays)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """The plain operations of `forward`; J t is the transpose of g -> J^T g, since forward modes do not nest."""
        arrays, moved = ctx.saved_tensors, tangents[2:]
        places = [n for n, t in enumerate(moved) if t is not None]

        def of_moved(*values: Any) -> Any:
            given = dict(zip(places, values, strict=True))
            return ctx.function(*(given.get(n, x) for n, x in enumerate(arrays)))

        results, pull = torch.func.vjp(of_moved, *(arrays[n] for n in places))
        _, push = torch.func.vjp(pull, tuple(torch.zeros_like(x) for x in results))
        return push(tuple(moved[n] for n in places))[0]


def with_vjp(
    forward: Callable[..., Any], backward: Callable[..., Any], *, reverse_only: bool = False
) -> Callable[..., Any]:
    """`forward`, differentiated by autograd and `torch.func` through `backward`."""

    def function(*arrays: Any) -> Any:
        if not torch.compiler.is_compiling():
            if torch.autograd.forward_ad._current_level >= 0 and not reverse_only:
                return _InForwardMode.apply(forward, backward, *arrays)
            if torch.autograd.forward_ad._current_level >= 0 or any(
                torch._C._functorch.is_functorch_wrapped_tensor(a) for a in arrays
            ):
                return _WithVjp.apply(forward, backward, *arrays)
        # Where nobody differentiates, a Function would only cost time.
        watched = torch.is_grad_enabled() and any(a.requires_grad for a in arrays)
        return _WithVjp.apply(forward, backward, *arrays) if watched else forward(*arrays)

    return function


@torch.library.custom_op("attnspec::threefry2x32", mutates_args=())  # type: ignore[untyped-decorator]
def _threefry_op(
    k0: torch.Tensor, k1: torch.Tensor, c0: torch.Tensor, c1: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return rounds((k0, k1), (c0, c1))


@_threefry_op.register_fake  # type: ignore[untyped-decorator]
def _(k0: torch.Tensor, k1: torch.Tensor, c0: torch.Tensor, c1: torch.Tensor) -> Any:
    word = torch.empty_like(k0 + k1 + c0 + c1)
    return word, torch.empty_like(word)


@_threefry_op.register_vmap  # type: ignore[untyped-decorator]
def _(info: Any, in_dims: Any, *words: torch.Tensor) -> Any:
    rank = max(w.ndim - (d is not None) for w, d in zip(words, in_dims, strict=True))
    fronted = [
        w if d is None else w.movedim(d, 0)[(slice(None), *(None,) * (rank - w.ndim + 1))]
        for w, d in zip(words, in_dims, strict=True)
    ]
    return _threefry_op(*fronted), (0, 0)


def threefry(rng: tuple[Any, Any], counter: tuple[Any, Any]) -> Any:
    """One operation while `torch.compile` records, whose fusion of the rounds takes time exponential in them."""
    if not torch.compiler.is_compiling():
        return rounds(rng, counter)
    device = next(w.device for w in (*counter, *rng) if isinstance(w, torch.Tensor))
    words = (torch.as_tensor(w, dtype=torch.int32, device=device) for w in (*rng, *counter))
    return _threefry_op(*words)


def register(cls: type) -> None:
    """Make a Struct a pytree of `torch.func` and `torch.compile`."""
    _pytree.register_pytree_node(
        cls,
        lambda struct: (list(flatten(struct)[0]), flatten(struct)[1]),
        lambda children, aux: unflatten(cls, aux, children),
    )


# `torch.compile` warns where it has to trace through array-api-compat's caches.
for kind in (torch.Tensor, torch.nn.Parameter):
    remember(kind, xp)

HOST = Host(
    scope=scope,
    concrete=concrete,
    traced=traced,
    with_vjp=with_vjp,
    apart=torch.no_grad,
    threefry=threefry,
    register=register,
    device_of=lambda x: x.device,
    in_place=IN_PLACE,
    kernels=(SHARDS, SDPA),
    erfc=torch.special.erfc,
)
