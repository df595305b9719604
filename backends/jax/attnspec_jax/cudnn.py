"""cuDNN's fused attention (`jax.nn.dot_product_attention`) as a kernel that keeps the clauses.

The fused operation multiplies a masked weight, 0, by whatever stands in the value, and takes an infinite key for a
number. So it is given 0 in the place of what is no number, and the rows that see such a thing, or for which it finds
no number, are walked (`attnspec.blocks`). Which rows those are depends on nothing that they do not see (MASK-6).
Gradients are those of the walk: its own would be made of weights and outputs in half precision.

The tests of this project have no GPU. They put XLA's form of the same function in the place of cuDNN's.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from attnspec._compat import cast, dtype_name
from attnspec.backward import attend_backward
from attnspec.blocks import attend
from attnspec.derivative import differentiable
from attnspec.fast import FAST, for_query_heads
from attnspec.host import Kernel
from attnspec.request import Request
from attnspec.rules import Window
from attnspec.shapes import is_number

from .placement import device_of_all

IMPLEMENTATION = "cudnn"
_CAPABILITY = 8  # of a device: the first generation whose attention cuDNN fuses
_WIDEST = 128

Saved = tuple[Request, tuple[Any, ...], tuple[Any, ...]]


def supports(request: Request) -> str | None:
    """None, or why cuDNN does not take such a call, or not by the clauses."""
    axes = request.axes
    if dtype_name(request.q) not in ("float16", "bfloat16"):
        return f"it is for half precision, not for {dtype_name(request.q)}"
    for name in ("bias", "softcap", "sink", "dropout", "q_positions", "k_positions"):
        if getattr(request, name) is not None:
            return f"{name} is given, which it does not know or not by the clauses"
    if not (request.mask is None or _is_causal(request)):
        return "it knows no mask but causal() that counts from the first key"
    if not is_number(request.scale):
        return "the scale is no number"
    if max(axes.D, axes.E) > _WIDEST or not all((*axes.scores, axes.E)):
        return f"D={axes.D} and E={axes.E} need to be {_WIDEST} at most, and the call not empty"
    device = device_of_all(request.q, request.k, request.v)
    if isinstance(device, str):
        return device
    capability = str(getattr(device, "compute_capability", "")).partition(".")[0]
    if device.platform != "gpu" or not capability.isdigit() or int(capability) < _CAPABILITY:
        return f"the device is a {device.device_kind}; NVIDIA's from compute capability {_CAPABILITY}.0 on are needed"
    return None


def _is_causal(request: Request) -> bool:
    mask, axes = request.mask, request.axes
    if not isinstance(mask, Window) or type(mask.offset) is not int or mask.left is not None or mask.right is None:
        return False
    return mask.offset + mask.right + (axes.K - axes.Q if mask.align == "end" else 0) == 0


def call(request: Request) -> tuple[Any, None]:
    """(out, no lse: what it gives is in half precision)."""
    return differentiable(lambda r: (r.host.run(attended, r),), _gradients, request, always=True)[0], None


def _gradients(request: Request, results: tuple[Any, ...], cotangents: tuple[Any, ...]) -> dict[str, Any]:
    return request.host.run(_pulled, (request, cotangents[0]))  # type: ignore[no-any-return]


def _pulled(operands: tuple[Request, Any]) -> dict[str, Any]:
    request, of_out = operands
    walked = attend(request, FAST)
    nothing = (jnp.zeros_like(x) for x in walked[1:])
    return attend_backward((request, walked, (cast(of_out, walked[0].dtype), *nothing)), FAST)


CUDNN = Kernel("cuDNN", supports, call, rounds_weights=True, from_scores=2**14)


@jax.custom_jvp  # type: ignore[untyped-decorator]
def attended(request: Request) -> Any:
    """Out, in the dtype of q."""
    finite = [jnp.isfinite(x) for x in (request.q, request.k, request.v)]
    given = (jnp.where(fine, x, 0) for fine, x in zip(finite, (request.q, request.k, request.v), strict=True))
    out = _fused(request, *given)
    bad_q, bad_k, bad_v = (~jnp.all(fine, axis=-1, keepdims=True) for fine in finite)
    doubtful = bad_q | _seen(request, bad_k | bad_v) | ~jnp.all(jnp.isfinite(out), axis=-1, keepdims=True)
    return jax.lax.cond(jnp.any(doubtful), lambda out: jnp.where(doubtful, _walked(request), out), lambda out: out, out)


@attended.defjvp  # type: ignore[untyped-decorator]
def _in_forward_mode(primals: tuple[Request], tangents: tuple[Any]) -> tuple[Any, Any]:
    return jax.jvp(_walked, primals, tangents)  # type: ignore[no-any-return]


def _walked(request: Request) -> Any:
    return cast(attend(request, FAST)[0], request.q.dtype)


def _fused(request: Request, *given: Any) -> Any:
    """Of q, k and v with (batch, rows, heads, width) in their place; zeros make one width of D and E."""
    axes = request.axes
    width = -(-max(axes.D, axes.E) // 8) * 8

    def laid(x: Any) -> Any:
        x = jnp.broadcast_to(x, (*axes.lead, *x.shape[-3:])).reshape(-1, *x.shape[-3:])
        return jnp.swapaxes(jnp.pad(x, [(0, 0)] * 3 + [(0, width - x.shape[-1])]), 1, 2)

    out = jax.nn.dot_product_attention(
        *map(laid, given), scale=request.scale, is_causal=request.mask is not None, implementation=IMPLEMENTATION
    )
    return jnp.swapaxes(out[..., : axes.E], 1, 2).reshape(*axes.lead, axes.H, axes.Q, axes.E)


def _seen(request: Request, bad: Any) -> Any:
    """Whether a row sees one of these keys: (..., G, K, 1) -> (..., H, Q or 1, 1)."""
    Q, K = request.axes.Q, request.axes.K
    bad = for_query_heads(jnp, bad, request.axes.H)
    if request.mask is None:
        return jnp.any(bad, axis=-2, keepdims=True)
    so_far = jax.lax.cummax(cast(bad, jnp.int32), axis=bad.ndim - 2) > 0
    return jnp.take(so_far, jnp.minimum(jnp.arange(Q), K - 1), axis=-2)
