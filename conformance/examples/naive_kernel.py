"""A kernel of one's own, judged: attention as many write it first, and the adapter that says how it wants to be asked.

    cd conformance/examples
    attnspec conformance --subject naive_kernel:subject

It takes (B, S, H, D), a mask whose True hides, and a causal flag that aligns the last query with the last key. The
report says which clauses it fails: rows without keys, and what hidden numbers do to it.
"""

import numpy as np
from attnspec_conformance.adapters import Adapter, Flag, Pairs


def attend(q, k, v, hidden=None, causal=False, scale=None):
    """The softmax of q . k over the keys, times v."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) * np.float32(scale)
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], scores.shape[-1] - scores.shape[-2]), scores, np.float32(-1e30))
    if hidden is not None:
        scores = np.where(hidden, np.float32(-1e30), scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhqk,bkhe->bqhe", weights / weights.sum(-1, keepdims=True), v)


subject = Adapter(
    name="naive kernel",
    kernel=attend,
    layout="BSHD",
    mask=Pairs("hidden", means="hidden"),
    causal=Flag("causal", align="end"),
    arguments={"scale": "scale"},
    limits=lambda call: "it takes no empty axes" if 0 in (*call.q.shape, *call.k.shape, *call.v.shape) else None,
)
