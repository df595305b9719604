"""A part of a shard where programs are recorded: its place may be an array."""

from __future__ import annotations

from typing import Any

import jax

from attnspec import shards
from attnspec.shards import Lies


class Tile(shards.Tile):
    """Some queries of a shard and some keys of a shard."""

    def of(self, x: Any, lies: Lies) -> Any:
        """See `attnspec.shards.Tile.of`."""
        sizes = self.sizes(x, lies)
        return x if sizes == list(x.shape) else jax.lax.dynamic_slice(x, self.starts(x, lies), sizes)

    def put(self, whole: Any, x: Any, lies: Lies) -> Any:
        """`whole` with x in that place."""
        return jax.lax.dynamic_update_slice(whole, x, self.starts(whole, lies))
