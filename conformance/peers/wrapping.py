"""What the wrappers of several libraries share: how a call is put where the library has no words for its very form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from attnspec_conformance import masks
from attnspec_conformance.adapted import Adapted
from attnspec_conformance.adapters import Adapter
from attnspec_conformance.trials import Call

from attnspec.host import host_of


def widened(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel, for values that are not as wide as keys: columns of zeros change no score and no other column.

    Where values are wider the scale is given, since the kernel would take it from the wrong width.
    """

    def asked(q: Any, k: Any, v: Any, **named: Any) -> Any:
        D, E = k.shape[-1], v.shape[-1]
        if E > D:
            q, k = _with_zeros(q, E - D), _with_zeros(k, E - D)
            named.setdefault("scale", D**-0.5)
        answer = kernel(q, k, _with_zeros(v, D - E), **named)
        if isinstance(answer, tuple):
            return answer[0][..., :E], *answer[1:]
        return answer[..., :E]

    return asked


def _with_zeros(x: Any, columns: int) -> Any:
    xp = array_namespace(x)
    return xp.concat([x, xp.zeros((*x.shape[:-1], columns), dtype=x.dtype)], axis=-1) if columns > 0 else x


def without_width(call: Call) -> str | None:
    """A limit of kernels that are `widened`: the zeros would be all that there is."""
    return "it has no keys of width 0 with values of another" if not call.q.shape[-1] and call.v.shape[-1] else None


def without_more_width(call: Call) -> str | None:
    """A limit of kernels that are `widened` and take no scale, which values wider than keys would need."""
    wider = call.v.shape[-1] > call.q.shape[-1]
    return "it refuses values of another width than keys, and takes no scale" if wider else without_width(call)


def of_widths_alone(call: Call) -> str | None:
    """A limit to values wider than keys and nothing else, where a documentation allows what is refused.

    The kernel is `widened` for all other calls, or this one fault would be all that can be said about it.
    """
    plain = Call(call.q, call.k, call.v)
    others = [name for name in vars(plain) if getattr(call, name) is not getattr(plain, name)]
    if others or call.v.shape[-1] <= call.q.shape[-1] or not all(map(min, (call.q.shape, call.k.shape, call.v.shape))):
        return "it is asked with values wider than keys, and for nothing else"
    return None


def of_one_head(call: Call) -> str | None:
    """A limit of layers, whose projections multiply every head by what stands in any of them."""
    for x in (call.q, call.k, call.v):
        wild = ~np.isfinite(x).all(axis=-1)
        if x.ndim > 2 and (wild.any(axis=-2) != wild.all(axis=-2)).any():
            return "its projections spread what is not finite in one head over all of them"
    return None


def of_one_argument(call: Call) -> str | None:
    """A limit of kernels with one argument for causality, masks and biases, whose arrays are copies of NumPy's."""
    if isinstance(call.mask, masks.Causal) and call.bias is not None:
        return "it is causal or takes an array, not both"
    return None if call.layout in ("plain", "readonly") else "its arrays are made from copies of NumPy's"


class Bridged(Adapted):
    """A kernel of another framework, asked with NumPy's arrays, with the gradients that the framework gives.

    forward(q, k, v, **arguments) -> out
        The adapter's kernel, which converts the arrays and the answer.
    backward(dout, q, k, v, **arguments) -> (dq, dk, dv)
        The framework's own reverse mode, in NumPy's arrays too.
    """

    def __init__(self, adapter: Adapter, backward: Callable[..., Any]) -> None:
        forward = adapter.kernel

        def kernel(*arrays: Any, **named: Any) -> Any:
            host = host_of(arrays[0])
            if host.with_vjp is None:
                return forward(*arrays, **named)
            (out,) = host.with_vjp(
                lambda *x: (forward(*x, **named),), lambda x, _, douts: backward(*douts, *x, **named)
            )(*arrays)
            return out

        super().__init__(replace(adapter, kernel=kernel))
        self.backend = _Recorded(self.backend)


class _Recorded:
    """The NumPy backend, whose functions are those of the arrays that they are given, so that vjp records them."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.xp = _Namespace()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


class _Namespace:
    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda x, *args, **options: getattr(x.__array_namespace__(), name)(x, *args, **options)
