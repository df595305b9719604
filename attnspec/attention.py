"""The contract of attention. The body is the walk in `blocks.py`."""

from __future__ import annotations

import math
from dataclasses import replace

from . import _compat, in_place, small
from ._compat import Array, cast, dtype_name
from .backward import attend_backward, weights_backward
from .blocks import attend, weights
from .derivative import differentiable
from .errors import KernelError, OptionError
from .fast import FAST
from .host import Host, host_of
from .masks import Mask
from .numerics import Numerics
from .request import Dropout, Request, make_request
from .terms import Bias


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Mask | Array | None = None,
    bias: Bias | Array | None = None,
    scale: float | Array | None = None,
    softcap: float | Array | None = None,
    sink: float | Array | None = None,
    dropout: Dropout | None = None,
    q_positions: Array | range | None = None,
    k_positions: Array | range | None = None,
    implementation: str = "auto",
) -> Array:
    """Scaled dot-product attention.

    out_i = sum_j p_ij v_j,   p_ij = exp(s_ij) / sum_j' exp(s_ij'),   over the keys j that query i may see

    s_ij = scale * (q_i . k_j) -> softcap * tanh(s / softcap) -> + bias_ij -> mask -> softmax (with the sink)
    -> dropout -> times v.

    Parameters
    ----------
    q : floating array (..., H, Q, D)
    k : floating array (..., G, K, D)
        H is a multiple of G; query head h uses key/value head h // (H // G).
    v : floating array (..., G, K, E)
        One dtype and device with q and k; leading axes broadcast. (Q, D), (K, D), (K, E) is one head without batch.
    mask : Mask or boolean array, broadcast from the right to (..., H, Q, K)
        True = may attend. Rules (`causal`, `window`, `padding`, `segments`) and arrays combine by &, |, ~.
    bias : Bias or floating array, broadcast from the right to (..., H, Q, K)
        Added to the scores. -inf masks its pair; every finite number is only a number.
    scale : float or 0-d array
        Default D**-0.5 (1 for D = 0). Any finite number, 0 and negative ones too.
    softcap : float or 0-d array > 0
    sink : float or floating array (..., H)
        An extra logit for each query head, in the denominator only.
    dropout : Dropout
        On the weights, after softmax.
    q_positions, k_positions : signed integer arrays (..., Q), (..., K), or ranges
        Where these rows stand in the whole sequence, for rules about positions; default 0, 1, 2, ...
    implementation : "auto", "portable" or "native"
        "portable" is plain Array API operations. "auto" may take a kernel of the framework that keeps every REQUIRED
        clause. "native" insists on one and raises `errors.KernelError`, which says why there is none.

    Returns
    -------
    array (..., H, Q, E)
        In the dtype of q. Half-precision inputs are computed in float32, float64 stays float64.

    Raises
    ------
    errors.ShapeError, errors.DTypeError, errors.MaskError, errors.DeviceError, errors.OptionError
        Before anything is computed, with the offending numbers.

    Notes
    -----
    Clauses SHAPE, SCORE, MASK, SOFTMAX, DROPOUT and PATH of the specification. Where others differ: a query that sees
    no key gives exactly 0 here (elsewhere NaN, or the mean of v); NaN or infinity in masked keys and values is never
    seen; a visible one makes the row NaN and never a number. Memory grows with Q + K.
    Source: Vaswani et al., "Attention is all you need", 2017; Milakov, Gimelshein, "Online normalizer calculation
    for softmax", 2018; Rabe, Staats, "Self-attention does not need O(n^2) memory", 2021.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> q = k = np.eye(2); v = np.asarray([[1.0, 2.0], [3.0, 4.0]])
    >>> attnspec.attention(q, k, v, mask=attnspec.causal()).round(3).tolist()
    [[1.0, 2.0], [2.34, 3.34]]
    """
    plain = bias is None and softcap is None and sink is None and dropout is None
    if plain and q_positions is None and k_positions is None and implementation == "auto":
        host = host_of(q)
        out = _at_once(host, q, k, v, mask, scale)
        out = small.attend(host, q, k, v, scale) if out is None and mask is None else out
        if out is not None:
            return out
    request = make_request(
        q, k, v, mask=mask, bias=bias, scale=scale, softcap=softcap, sink=sink, dropout=dropout,
        q_positions=q_positions, k_positions=k_positions,
    )  # fmt: skip
    return _attend(request, _numerics(request), implementation, want_lse=False)[0]


def attention_with_lse(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Mask | Array | None = None,
    bias: Bias | Array | None = None,
    scale: float | Array | None = None,
    softcap: float | Array | None = None,
    sink: float | Array | None = None,
    dropout: Dropout | None = None,
    q_positions: Array | range | None = None,
    k_positions: Array | range | None = None,
    implementation: str = "auto",
) -> tuple[Array, Array]:
    """Attention, and the log of the sum of the exponentials of each row's scores.

    lse_i = log(sum_j exp(s_ij) [+ exp(sink)]),   over the keys j that query i may see

    Parameters
    ----------
    As `attention`.

    Returns
    -------
    out : array (..., H, Q, E)
        The very bits of `attention`.
    lse : array (..., H, Q)
        Natural logarithm, before dropout, in float32 or wider; -inf (or the sink) for a row that sees no key.

    Notes
    -----
    Clauses SOFTMAX-2, SOFTMAX-3, PATH-1. Results over disjoint sets of keys combine by `merge_attention`.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> out, lse = attnspec.attention_with_lse(np.zeros((1, 2)), np.zeros((4, 2)), np.ones((4, 1)))
    >>> float(lse[0].round(4))
    1.3863
    """
    request = make_request(
        q, k, v, mask=mask, bias=bias, scale=scale, softcap=softcap, sink=sink, dropout=dropout,
        q_positions=q_positions, k_positions=k_positions,
    )  # fmt: skip
    return _attend(request, _numerics(request), implementation, want_lse=True)


def attention_weights(
    q: Array,
    k: Array,
    *,
    mask: Mask | Array | None = None,
    bias: Bias | Array | None = None,
    scale: float | Array | None = None,
    softcap: float | Array | None = None,
    sink: float | Array | None = None,
    q_positions: Array | range | None = None,
    k_positions: Array | range | None = None,
) -> Array:
    """The weights p_ij of `attention`, for each query head, before dropout.

    Parameters
    ----------
    As `attention`, without v and dropout.

    Returns
    -------
    array (..., H, Q, K)
        In the dtype of q. Rows sum to 1, to 1 minus the sink's share, or to 0 where no key is visible.

    Notes
    -----
    Clause SOFTMAX-4. PyTorch's MultiheadAttention returns weights after dropout, averaged over heads.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> attnspec.attention_weights(np.zeros((2, 1)), np.zeros((2, 1)), mask=attnspec.causal()).tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    request = make_request(
        q, k, k[..., :0], mask=mask, bias=bias, scale=scale, softcap=softcap, sink=sink,
        q_positions=q_positions, k_positions=k_positions,
    )  # fmt: skip
    request = _watchable(request, "auto")
    numerics = _numerics(request).plain
    with request.host.scope():
        p, *_ = differentiable(
            lambda r: r.host.run(weights, r, numerics),
            lambda *saved: saved[0].host.run(weights_backward, saved, numerics),
            request,
            always=not request.portable,
        )
        p = cast(p, request.q.dtype)
        return p[0, ...] if request.headless else p


def _at_once(
    host: Host, q: Array, k: Array, v: Array, mask: Mask | Array | None, scale: float | Array | None
) -> Array | None:
    """By the first kernel that could take it, if that has a way for such calls."""
    for kernel in host.kernels:
        if kernel.at_once is not None:
            return kernel.at_once(q, k, v, mask, scale)
        if kernel.takes_concrete:
            return None
    return None


def _numerics(request: Request) -> Numerics:
    """Those of the arrays, or the default ones."""
    chosen = request.host.numerics
    return FAST if chosen is None else chosen(request)


def _watchable(request: Request, implementation: str) -> Request:
    """Marked as portable where frameworks differentiate its operations: somebody's own bias may hold anything."""
    own = request.bias is None or request.bias.differentiable
    portable = implementation == "portable" or not own
    return replace(request, portable=True) if portable else request


def _attend(request: Request, numerics: Numerics, implementation: str, *, want_lse: bool) -> tuple[Array, Array]:
    """(out in the dtype of q, lse if it is wanted), by a kernel if one may serve, else by the walk."""
    if implementation not in ("auto", "portable", "native"):
        msg = f'implementation={implementation!r}: "auto", "portable" or "native" is needed.'
        raise OptionError(msg)
    request = _watchable(request, implementation)
    with request.host.scope():
        out, lse = None, None
        if implementation != "portable":
            out, lse = _by_kernel(request, insist=implementation == "native")
        if out is None or (want_lse and lse is None):
            # A kernel without lse keeps its out: asking for lse never changes it (PATH-1).
            walked, lse, *_ = differentiable(
                lambda r: _walked(r, numerics),
                lambda *saved: saved[0].host.run(attend_backward, saved, numerics),
                request,
                always=not request.portable,
            )
            out = cast(walked, request.q.dtype) if out is None else out
        if request.headless:
            out, lse = out[0, ...], None if lse is None else lse[0, ...]
        return out, lse


def _walked(request: Request, numerics: Numerics) -> tuple[Array, ...]:
    if numerics is FAST and in_place.suits(request):
        return in_place.attend(request)
    return request.host.run(attend, request, numerics)  # type: ignore[no-any-return]


def _by_kernel(request: Request, *, insist: bool) -> tuple[Array | None, Array | None]:
    reasons, scores = [], math.prod(request.axes.scores)
    for kernel in request.host.kernels:
        if scores < kernel.from_scores and not insist:
            continue
        reason = kernel.supports(request)
        if reason is None:
            return kernel.call(request)
        reasons.append(f"{kernel.name}: {reason}")
    if insist:
        why = "; ".join(reasons) or f"{_compat.namespace(request.q).__name__} has none"
        asked = f"q {tuple(request.q.shape)} {dtype_name(request.q)}"
        msg = f'no native kernel takes {asked}: {why}. Use implementation="auto".'
        raise KernelError(msg)
    return None, None
