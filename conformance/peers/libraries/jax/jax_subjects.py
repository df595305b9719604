"""JAX's own attention."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import partial

import jax.numpy as jnp
import numpy as np
from attnspec_conformance import masks
from attnspec_conformance.adapted import Adapted
from attnspec_conformance.adapters import Adapter, Flag, Pairs, Sides
from attnspec_conformance.operands import Operands, asked_of
from attnspec_conformance.subjects import HALF
from attnspec_conformance.trials import Call
from jax.nn import dot_product_attention
from wrapping import widened, without_width


class DotProductAttention(Adapted):
    """Padding is asked for by key_value_seq_lengths, and the residual only where lse is."""

    def _operands(self, call: Call) -> Operands:
        options, mask = {}, call.mask
        if call.k_positions is None:
            lengths, mask = _padding(mask)
            if lengths is not None:
                every = np.broadcast_to(lengths, call.q.shape[:-3]).reshape(-1)
                options["key_value_seq_lengths"] = jnp.asarray(every, "int32")
        if asked_of(call) == "lse":
            options["return_residual"] = True
        asked = copy(self)
        asked.adapter = replace(self.adapter, kernel=partial(self.adapter.kernel, **options))
        return Adapted._operands(asked, call.but(mask=mask))


def _padding(mask: masks.Mask | None) -> tuple[masks.Array | None, masks.Mask | None]:
    """The lengths that a mask says, and what else it says."""
    match mask:
        case masks.Padding(lengths):
            return lengths, None
        case masks.Both(masks.Padding(lengths), other) | masks.Both(other, masks.Padding(lengths)):
            return lengths, other
    return None, mask


def _limits(call: Call) -> str | None:
    if asked_of(call) == "lse" and call.dtype in HALF:
        return "its residual has the dtype of the inputs"
    return without_width(call)


attention = DotProductAttention(
    Adapter(
        name="jax.nn",
        kernel=widened(dot_product_attention),
        backend="jax",
        capabilities=("float64", "float16", "bfloat16", "vjp"),
        layout="BSHD",
        grouped=True,
        mask=Pairs("mask"),
        causal=Flag("is_causal"),
        window=Sides("local_window_size", align="start", unbounded=2**30),
        arguments={"scale": "scale", "bias": "bias"},
        lse="e",
        lse_heads_first=False,
        rounds_weights=True,
        limits=_limits,
        refusals=(ValueError, TypeError, AssertionError),
    )
)
