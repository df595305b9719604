"""A key/value cache that keeps what attention makes of each row, so that a decoding step makes it for new rows only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from .. import cache
from .._compat import Array, dtype_name
from ..errors import OptionError
from ..host import host_of
from .arrays import Held, Identical, Numbers
from .chunked import k_slices, v_slices


@dataclass(frozen=True)
class Cache(cache.Cache):
    """As `attnspec.Cache`, with the slices of its rows beside them; the same bits as without them, sooner.

    `reproducible.attention(q, *cache.rows(), mask=cache.mask())` reads it. Slices take five times the memory of float32
    rows. float64 has none.

    Examples
    --------
    >>> import numpy as np
    >>> from attnspec import reproducible
    >>> cache = reproducible.Cache.empty(kv_heads=2, capacity=8, key_width=4, like=np)
    >>> cache = cache.append(np.ones((2, 3, 4), np.float32), np.ones((2, 3, 4), np.float32))
    >>> reproducible.attention(np.ones((2, 1, 4), np.float32), *cache.rows(), mask=cache.mask())[..., 0].tolist()
    [[1.0], [1.0]]
    """

    of_k: tuple[Array, ...] = ()
    of_v: tuple[Array, ...] = ()

    @classmethod
    def empty(cls, **options: Any) -> Self:
        """See `attnspec.Cache.empty`."""
        blank = cache.Cache.empty(**options)
        return cls(blank.k, blank.v, blank.length, **_sliced(blank.k, blank.v))

    def rows(self) -> tuple[Any, Any]:
        """k and v for the functions of reproducible mode."""
        if not self.of_k:
            return self.k, self.v
        return Held(self.k, self.of_k, "k"), Held(self.v, self.of_v, "v")

    def rows_for(self, q: Array) -> tuple[Any, Any]:
        """k and v for q: the default mode knows no slices."""
        return self.rows() if isinstance(q, Numbers) else (self.k, self.v)

    def _written(self, k: Array, v: Array, write: Callable[[Array, Array], Array], longer: int | Array) -> Self:
        if host_of(k).taped:
            raise OptionError(NO_GRADIENT)
        k, v = (x.rounded() if isinstance(x, Numbers) else x for x in (k, v))
        of_rows = {
            name: tuple(write(old, new) for old, new in zip(getattr(self, name), new, strict=True))
            for name, new in _sliced(k, v).items()
        }
        return replace(self, k=write(self.k, k), v=write(self.v, v), length=longer, **of_rows)


NO_GRADIENT = "reproducible.Cache keeps slices, which have no gradient. Differentiate with an attnspec.Cache."


def _sliced(k: Array, v: Array) -> dict[str, tuple[Array, ...]]:
    """The slices of these rows, none for float64."""
    if dtype_name(k) == "float64":
        return {"of_k": (), "of_v": ()}
    host = host_of(k)
    with host.scope(), host.apart():
        return {"of_k": k_slices(Identical.of(k)), "of_v": v_slices(Identical.of(v))}
