"""The default numerics of a recorded walk on a processor, with the products as XLA is quickest at them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from attnspec._compat import turned
from attnspec.fast import FAST, Fast, stacked, unstacked
from attnspec.request import Request

from .placement import platform


class Compiled(Fast):
    """`Fast`, which for few queries reads the keys in their order and a tile of them at a time."""

    def tile(self, rows: int, columns: int) -> tuple[int, int]:
        return rows, max(1, rows * columns // max(rows, _ROWS))

    def matmul_of_rows(self, a: Any, b: Any) -> Any:
        H, q, G = a.shape[-3], a.shape[-2], b.shape[-3]
        if H // max(1, G) * q > _THIN:
            return super().matmul_of_rows(a, b)
        return unstacked(jnp, turned(jnp.matmul(b, turned(stacked(jnp, a, G)))), H)

    def matmul_of_keys(self, a: Any, b: Any, G: int) -> Any:
        # The larger of the two as it lies: turned, it would take twice as long.
        return turned(jnp.matmul(turned(stacked(jnp, b, G)), stacked(jnp, a, G)))


# A tile of fewer rows has more numbers in its keys and values than in its scores: it is as wide as one of so many rows.
_ROWS = 128
_THIN = 32  # rows that share their keys
COMPILED = Compiled()


def numerics(request: Request) -> Fast:
    """See `Host.numerics`."""
    return COMPILED if platform() == "cpu" else FAST
