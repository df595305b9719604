"""ONNX's operators by attnspec: Attention of opsets 23 to 25, FlexAttention, the norms, RotaryEmbedding.

The functions take the operators' inputs in their order, as arrays of any framework, and the attributes by their names.
`reference_ops` gives them to `onnx.reference.ReferenceEvaluator`, so that a model is run with attention by attnspec:

    ReferenceEvaluator(model, new_ops=reference_ops()).run(None, feeds)
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import reduce
from importlib import import_module
from operator import and_
from typing import Any, NamedTuple

from .._compat import Array, cast, namespace
from ..attention import attention, attention_weights, attention_with_lse
from ..errors import MissingFrameworkError, OptionError, ShapeError
from ..masks import as_mask, causal, padding, window
from ..shapes import of_one_dtype
from .onnx_inputs import bound, cached, each_floating, flag, least_dtype, mask_or_bias, merged, split
from .onnx_layers import (
    LayerNormalizationOutputs,
    layer_normalization_op,
    rms_normalization_op,
    rotary_embedding_op,
)

__all__ = [
    "AttentionOutputs", "LayerNormalizationOutputs", "attention_op", "flex_attention_op", "layer_normalization_op",
    "reference_ops", "rms_normalization_op", "rotary_embedding_op",
]  # fmt: skip


class AttentionOutputs(NamedTuple):
    """The outputs of ONNX's Attention; the last is None unless its mode was given."""

    Y: Array
    present_key: Array
    present_value: Array
    qk_matmul_output: Array | None


def attention_op(
    Q: Array,
    K: Array,
    V: Array,
    attn_mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    nonpad_kv_seqlen: Array | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int | None = None,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> AttentionOutputs:
    """ONNX's Attention, opsets 23, 24 and 25.

    Parameters
    ----------
    Q, K, V : floating arrays (B, H, Q, D), (B, G, K, D), (B, G, K, E)
        Or (B, Q, H * D), (B, K, G * D), (B, K, G * E) with `q_num_heads` and `kv_num_heads`. V may have a dtype of its
        own.
    attn_mask : boolean or floating array, broadcast from the right to (B, H, Q, K)
        True = may attend; floats are added to the scores. One with fewer keys, even one, leaves the others
        unseen: opsets 24 and 25 say so, and for 23, whose text is silent on it, it is done too.
    past_key, past_value : arrays (B, G, P, D), (B, G, P, E)
        Come before K and V; query i then stands at P + i.
    nonpad_kv_seqlen : signed integers (B,), from 0 to K
        Only so many keys are real, and the last query stands at the last of them.
    is_causal, left_window_size, right_window_size
        By where a query stands; a window of -1 is unbounded.
    qk_matmul_output_mode : 0, 1, 2 or 3
        What the fourth output is: the scores, those after softcap, those after mask and bias too, the weights. The
        first three need the room of D such outputs. None: it is not asked for.
    scale, softcap
        Default D**-0.5, and 0, which is none.
    softmax_precision : 1, 10, 11 or 16
        DOUBLE (11) computes in float64. attnspec never computes in less than float32, whatever is asked.

    Returns
    -------
    AttentionOutputs
        Y is of the rank and dtype of Q; the keys and values attended to are of rank 4; the fourth output is
        (B, H, Q, K) in the dtype of Q.

    Raises
    ------
    errors.ShapeError, errors.DTypeError, errors.MaskError, errors.OptionError

    Notes
    -----
    ONNX's reference implementation multiplies hidden values by 0, so that NaN in padding comes through, and takes the
    root of `scale`, so that a negative one gives NaN. Neither happens here.
    Source: https://onnx.ai/onnx/operators/onnx__Attention.html

    Examples
    --------
    >>> import numpy as np
    >>> from attnspec.integrations.onnx import attention_op
    >>> x = np.asarray([[[0.0, 1.0], [2.0, 3.0], [np.nan, np.nan]]])
    >>> out = attention_op(x[:, :2], x, x, nonpad_kv_seqlen=np.asarray([2]), is_causal=1, q_num_heads=2, kv_num_heads=2)
    >>> out.Y.round(2).tolist()
    [[[0.0, 1.0], [1.96, 3.0]]]
    """
    each_floating(Q=Q, K=K, V=V)
    if not Q.ndim == K.ndim == V.ndim:
        shapes = f"Q {tuple(Q.shape)}, K {tuple(K.shape)}, V {tuple(V.shape)}"
        msg = f"{shapes}: all of rank 3, or all of rank 4, are needed."
        raise ShapeError(msg)
    if qk_matmul_output_mode not in (None, 0, 1, 2, 3):
        msg = f"qk_matmul_output_mode={qk_matmul_output_mode!r}: 0, 1, 2 or 3 is needed, or None for no such output."
        raise OptionError(msg)
    q = split("Q", Q, "q_num_heads", q_num_heads)
    k = split("K", K, "kv_num_heads", kv_num_heads)
    v = split("V", V, "kv_num_heads", kv_num_heads)
    k, v, offset = cached(q, k, v, past_key, past_value, nonpad_kv_seqlen)
    mask, bias = (None, None) if attn_mask is None else mask_or_bias(attn_mask, k.shape[2])
    rules = [] if mask is None else [as_mask(mask)]
    if flag("is_causal", is_causal):
        rules.append(causal(offset))
    left, right = bound("left_window_size", left_window_size), bound("right_window_size", right_window_size)
    if left is not None or right is not None:
        rules.append(window(left, right, offset=offset))
    if nonpad_kv_seqlen is not None:
        rules.append(padding(nonpad_kv_seqlen))
    seen = reduce(and_, rules) if rules else None
    scale, capped = None if scale is None else float(scale), float(softcap) or None
    wide_q, wide_k, wide_v = of_one_dtype(q, k, v, least=least_dtype(softmax_precision))
    y = attention(wide_q, wide_k, wide_v, mask=seen, bias=bias, scale=scale, softcap=capped)
    y = cast(y if Q.ndim == 4 else merged(y), Q.dtype)
    match qk_matmul_output_mode:
        case None:
            return AttentionOutputs(y, k, v, None)
        case 0:
            inside = _scores(wide_q, wide_k, scale=scale)
        case 1:
            inside = _scores(wide_q, wide_k, scale=scale, softcap=capped)
        case 2:
            inside = _scores(wide_q, wide_k, bias, scale=scale, softcap=capped)
            if seen is not None:
                # Without a width to compare by, all visible keys weigh the same.
                visible = attention_weights(wide_q[..., :0], wide_k[..., :0], mask=seen) > 0
                inside = namespace(q).where(visible, inside, -math.inf)
        case _:
            inside = attention_weights(wide_q, wide_k, mask=seen, bias=bias, scale=scale, softcap=capped)
    return AttentionOutputs(y, k, v, cast(inside, Q.dtype))


def _scores(q: Array, k: Array, bias: Array | None = None, **options: Any) -> Array:
    """The scores (B, H, Q, K), in float32 or wider: the log of the sum of exponentials over one key is its score."""
    xp = namespace(q)
    alone = xp.permute_dims(k, (0, 2, 1, 3))[..., None, :]  # (B, K, G, 1, D): each key by itself
    if bias is not None:
        bias = bias[(*(None,) * (4 - bias.ndim), ...)]
        bias = xp.permute_dims(bias, (0, 3, 1, 2))[..., None]
    _, scores = attention_with_lse(q[:, None, ...], alone, alone[..., :0], bias=bias, **options)
    return xp.permute_dims(scores, (0, 2, 3, 1))


def flex_attention_op(
    Q: Array,
    K: Array,
    V: Array,
    *,
    prob_mod: Callable[[Array], Array] | None = None,
    scale: float | None = None,
    score_mod: Callable[[Array], Array] | None = None,
    softmax_precision: int | None = None,
) -> Array:
    """ONNX's FlexAttention (ai.onnx.preview, 1).

    Parameters
    ----------
    Q, K, V : floating arrays (B, H, Q, D), (B, G, K, D), (B, G, K, E)
    score_mod : function of the scores (B, H, Q, K)
        Makes other scores of them; -inf hides a key. Masks and biases by rules, of `attnspec.attention`, are cheaper.
    prob_mod : None
        `errors.OptionError` for anything else: attnspec has no weights but those of the softmax.
    scale, softmax_precision
        As in `attention_op`.

    Returns
    -------
    array (B, H, Q, E)

    Examples
    --------
    >>> import numpy as np
    >>> from attnspec.integrations.onnx import flex_attention_op
    >>> x = np.eye(2)[None, None]
    >>> flex_attention_op(x, x, x, score_mod=lambda s: np.where(s > 0, s, -np.inf)).tolist()
    [[[[1.0, 0.0], [0.0, 1.0]]]]
    """
    if prob_mod is not None:
        msg = "prob_mod is given: attnspec has no weights but those of the softmax. Use ONNX's own FlexAttention."
        raise OptionError(msg)
    each_floating(Q=Q, K=K, V=V)
    if not Q.ndim == K.ndim == V.ndim == 4:
        msg = f"Q {tuple(Q.shape)}, K {tuple(K.shape)}, V {tuple(V.shape)}: (batch, heads, length, width) are needed."
        raise ShapeError(msg)
    q, k, v = of_one_dtype(Q, K, V, least=least_dtype(softmax_precision))
    scale = None if scale is None else float(scale)
    if score_mod is None:
        return cast(attention(q, k, v, scale=scale), Q.dtype)
    return cast(attention(q[..., :0], k[..., :0], v, bias=score_mod(_scores(q, k, scale=scale))), Q.dtype)


def reference_ops() -> list[type]:
    """The operators of this module as classes: `onnx.reference.ReferenceEvaluator(model, new_ops=reference_ops())`.

    Returns
    -------
    list of subclasses of onnx.reference.op_run.OpRun

    Raises
    ------
    errors.MissingFrameworkError
        onnx is not installed.

    Notes
    -----
    They replace Attention, LayerNormalization, RMSNormalization, RotaryEmbedding and FlexAttention wherever they stand,
    in functions and sub-graphs too. The evaluator turns each `errors.DTypeError` into a TypeError of its own, whose
    cause it is.
    """
    try:
        OpRun = import_module("onnx.reference.op_run").OpRun
    except ImportError:
        msg = "ONNX's reference evaluator needs 'onnx', which is not installed: pip install onnx"
        raise MissingFrameworkError(msg) from None

    def as_they_are(node: Any, attributes: dict[str, Any]) -> dict[str, Any]:
        return attributes

    return [
        _operator(OpRun, "", "Attention", attention_op, _with_outputs),
        _operator(OpRun, "ai.onnx.preview", "FlexAttention", flex_attention_op, _with_functions),
        _operator(OpRun, "", "LayerNormalization", layer_normalization_op, as_they_are),
        _operator(OpRun, "", "RMSNormalization", rms_normalization_op, as_they_are),
        _operator(OpRun, "", "RotaryEmbedding", rotary_embedding_op, as_they_are),
    ]


def _operator(
    base: type,
    domain: str,
    name: str,
    function: Callable[..., Any],
    prepared: Callable[[Any, dict[str, Any]], dict[str, Any]],
) -> type:
    """A subclass of OpRun for `function`, which gets the evaluator's attributes as `prepared`."""
    known = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]

    def _run(self: Any, *inputs: Array | None, **attributes: Any) -> tuple[Array, ...]:
        for attribute in self.onnx_node.attribute:
            if attribute.name not in known:
                msg = f"{name} has no attribute {attribute.name!r}; it has {', '.join(known)}."
                raise OptionError(msg)
        outputs = function(*inputs, **prepared(self, attributes))
        return tuple(x for x in outputs if x is not None) if isinstance(outputs, tuple) else (outputs,)

    return type(name, (base,), {"op_domain": domain, "_run": _run})


def _with_outputs(node: Any, attributes: dict[str, Any]) -> dict[str, Any]:
    """Without the default mode, which the evaluator fills in, if the node has no fourth output."""
    asked = len(node.output) > 3 and node.output[3] != ""
    return attributes if asked else attributes | {"qk_matmul_output_mode": None}


def _with_functions(node: Any, attributes: dict[str, Any]) -> dict[str, Any]:
    """With a function in place of a sub-graph."""
    outer = attributes.pop("attributes", None)
    graph = attributes["score_mod"]

    def score_mod(scores: Array) -> Array:
        return graph.run(None, {graph.input_names[0]: scores}, attributes=outer)[0]

    return attributes | {"score_mod": None if graph is None else score_mod}
