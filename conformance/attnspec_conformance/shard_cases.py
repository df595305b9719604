"""Calls for whoever divides them among workers, with cotangents: every axis has another length, most can be divided."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import masks
from .problems import integers, normal, problem, some_mask, zigzag
from .trials import Call

B, H, G, Q, K, D, E = 3, 8, 4, 24, 40, 5, 6
WORKERS = 4


def asked(seed: int, **options: Any) -> Call:
    """A call with normal arrays."""
    call = problem(seed, lead=(B,), H=H, G=G, Q=Q, K=K, D=D, E=E, **options)
    return call.but(dout=normal(6, B, H, Q, E, dtype=call.dtype), dlse=normal(7, B, H, Q))


SHUFFLED = np.random.default_rng(0).permutation(K).astype(np.int32)
CALLS = {
    "causal from the end": asked(1, mask=masks.Causal(align="end")),
    "lengths, a window for each item, a sink": asked(
        2, mask=masks.Both(masks.Padding(np.array([0, 17, K], np.int32)), masks.Window(9, 20, np.array([3, -4, 12]))),
        sink=normal(3, H), softcap=2.0, scale=0.7, dropout=masks.Dropout(0.25, 4),
    ),
    "a mask and a bias for each pair": asked(4, mask=some_mask(5, B, 1, Q, K), bias=normal(6, H, Q, K)),
    "segments, keys in no order, zigzag": asked(
        7, mask=masks.Both(masks.Segments(integers(8, B, Q, low=0, high=1), integers(9, B, K, low=0, high=1)),
                           masks.Causal(8)),
        q_positions=zigzag(Q, WORKERS), k_positions=SHUFFLED, dropout=masks.Dropout(0.25, 11),
    ),
    "a mask for each key, of each item": asked(5, mask=some_mask(6, B, 1, 1, K)),
    "positions of each item": asked(
        8, mask=masks.Causal(), q_positions=integers(9, B, Q, low=0, high=K),
        k_positions=integers(10, B, K, low=0, high=K),
    ),
    "dropout": asked(11, mask=masks.Causal(9), dropout=masks.Dropout(0.4, 12)),
    "half precision": asked(13, mask=masks.Causal(align="end"), dtype="bfloat16"),
}  # fmt: skip
