"""Attention as a textbook writes it: dense, short, and held equal to the library by a test.

q (H, Q, D), k (H, K, D), v (H, K, E); `visible` is boolean, True = may attend. Read this first, then `attention.py`.
"""

from __future__ import annotations

import math

from ._compat import Array, namespace


def attention(q: Array, k: Array, v: Array, visible: Array) -> Array:
    """softmax(q k^T / sqrt(D)) v over the visible keys; 0 for a query that sees none."""
    xp = namespace(q)
    scores = xp.matmul(q, xp.matrix_transpose(k)) / math.sqrt(q.shape[-1])  # (H, Q, K)
    scores = xp.where(visible, scores, -math.inf)
    return xp.matmul(softmax(scores), v)  # (H, Q, E)


def softmax(scores: Array) -> Array:
    """exp(s) / sum exp(s) over the last axis, shifted so that nothing overflows; 0 where every score is -inf."""
    xp = namespace(scores)
    top = xp.max(scores, axis=-1, keepdims=True)
    p = xp.exp(scores - xp.where(top == -math.inf, 0.0, top))
    total = xp.sum(p, axis=-1, keepdims=True)
    return p / xp.where(total == 0, 1.0, total)


def multi_head_attention(x: Array, wq: Array, wk: Array, wv: Array, wo: Array, visible: Array) -> Array:
    """x (Q, M); wq, wk (H, M, D); wv (H, M, E); wo (H, E, M)."""
    xp = namespace(x)
    heads = attention(xp.matmul(x, wq), xp.matmul(x, wk), xp.matmul(x, wv), visible)  # (H, Q, E)
    return xp.sum(xp.matmul(heads, wo), axis=0)  # concat(heads) W_O is the sum over heads of head W_O_h


def add_and_norm(x: Array, y: Array, eps: float = 1e-5) -> Array:
    """(s - mean) / sqrt(var + eps) of s = x + y, over the last axis."""
    xp = namespace(x)
    d = x + y - xp.mean(x + y, axis=-1, keepdims=True)
    return d / xp.sqrt(xp.mean(d * d, axis=-1, keepdims=True) + eps)
