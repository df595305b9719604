"""attnspec as the attention of transformers' models: `attn_implementation="attnspec"`."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal

from .._compat import Array, cast, dtype_name, is_array, namespace
from ..attention import attention, attention_weights
from ..errors import MissingFrameworkError, OptionError, ShapeError
from ..masks import Mask, window
from ..random import wrap
from ..request import Dropout
from ..shapes import of_one_dtype
from ..terms import Bias, as_bias
from .transformers_masks import RuleMask, RuleMasks

__all__ = ["attend", "register"]

# What models hand to every attention and what says nothing about its value: where rows stand (rotated or masked
# before), what else the model returns, and what other implementations want to know ahead.
_WITHOUT_MEANING = frozenset({
    "cache", "cache_position", "deterministic", "encoder_attention_mask", "encoder_hidden_states", "hidden_states",
    "labels", "layer_idx", "max_length_k", "max_length_q", "num_items_in_batch", "output_hidden_states",
    "output_router_logits", "past_key_values", "position_embeddings", "position_ids", "return_dict", "shift_labels",
    "use_cache",
})  # fmt: skip


def register(name: str = "attnspec", *, masks: Literal["rules", "arrays"] = "rules") -> None:
    """Make `attn_implementation=name` mean `attnspec.attention` in every model that asks transformers' interfaces.

    Parameters
    ----------
    name : str
        For `from_pretrained(..., attn_implementation=name)` and `model.set_attn_implementation(name)`.
    masks : "rules" or "arrays"
        What the models hand on. "rules": causal, sliding windows and padding as attnspec's rules and every other
        pattern (packed sequences, chunks, blocks of an image, functions of your own) as a rule that asks
        transformers' function for one tile at a time, so that no array of Q x K is made. "arrays": the boolean arrays
        of transformers' `sdpa_mask`, for models that compute with their mask and for `torch.compile` without breaks.

    Raises
    ------
    errors.MissingFrameworkError
        Without transformers.
    errors.OptionError
        For any other `masks`; and in a model that hands on an argument which `attend` does not know.

    Notes
    -----
    Sequences and steps of decoding, caches of either kind, grouped heads, cross-attention, sliding windows, softcaps,
    sinks, T5's position bias, dropout, gradients and their checkpoints: see `attend`. Models that do not ask the
    interfaces (Bloom, MPT, Falcon) are not reached. transformers refuses `output_attentions=True` in a *config* whose
    attention is not eager; in the call it is allowed.

    Where they differ: a query that may see no key, as the padding before a sequence, gives 0 here and the mean of all
    values in eager; keys that it may not see are not read, so that NaN in them stays where it is.
    Source: transformers 5.24, `AttentionInterface` and `AttentionMaskInterface`.

    Examples
    --------
    With transformers installed, and a model at `path`::

        from transformers import AutoModel
        from attnspec.integrations import transformers
        transformers.register()
        model = AutoModel.from_pretrained(path, attn_implementation="attnspec")
    """
    if masks not in ("rules", "arrays"):
        msg = f'masks={masks!r}: "rules" (nothing of size Q x K) or "arrays" (transformers\' own) is needed.'
        raise OptionError(msg)
    try:
        library = import_module("transformers")
        masking = import_module("transformers.masking_utils")
    except ImportError as error:
        msg = f"attnspec.integrations.transformers needs transformers: pip install transformers ({error})."
        raise MissingFrameworkError(msg) from error
    library.AttentionInterface.register(name, attend)
    library.AttentionMaskInterface.register(name, RuleMasks(masking) if masks == "rules" else masking.sdpa_mask)


def attend(
    module: Any,
    query: Array,
    key: Array,
    value: Array,
    attention_mask: RuleMask | Array | None = None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Array | None = None,
    position_bias: Array | None = None,
    output_attentions: bool | None = None,
    **others: Any,
) -> tuple[Array, Array | None]:
    """What transformers' models call: `attention` in their words.

    Parameters
    ----------
    module : torch.nn.Module
        The layer; read are `training`, and `is_causal` where the argument of that name is None.
    query : tensor (B, H, Q, D)
    key, value : tensors (B, G, K, D), (B, G, K, E)
        Of several dtypes, as under autocast: computed in the widest.
    attention_mask
        What the registered mask function gave, or a tensor broadcastable to (B, H, Q, K): boolean, True = may attend,
        or floating, added, where transformers writes the most negative number of the dtype for "may not". None is
        transformers' None: if causal, the first query stands with the first key, and a single query sees every key.
    scaling, softcap, s_aux
        The scale, the softcap, and the sinks (H,).
    dropout
        Rate, on the weights, if `module.training`. The key is drawn from torch's generator of the device, so that
        `torch.manual_seed` repeats it and a checkpointed layer drops the same weights when it is run again.
    sliding_window
        A window of w sees its own key and w - 1 before. A mask that is given contains it already.
    position_bias
        Added to the scores, broadcastable to (B, H, Q, K).
    output_attentions
        Whether the weights are returned too: those before dropout. The output is the same bits.

    Returns
    -------
    out : tensor (B, Q, H, E)
        In the dtype of the values.
    weights : tensor (B, H, Q, K) or None
        In the dtype of the queries.

    Raises
    ------
    errors.OptionError
        For another argument that is not None, unless it is known to change nothing.
    """
    _refuse_unknown(module, others)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    mask, bias = _visible(query, key, attention_mask, causal=causal, sliding_window=sliding_window)
    if position_bias is not None:
        bias = position_bias if bias is None else as_bias(position_bias) + bias
    meant: dict[str, Any] = {"mask": mask, "bias": bias, "scale": scaling, "softcap": softcap, "sink": s_aux}
    q, k, v = of_one_dtype(query, key, value)
    out = cast(attention(q, k, v, **meant, dropout=_drawn_dropout(module, dropout, query)), value.dtype)
    weights = cast(attention_weights(q, k, **meant), query.dtype) if output_attentions else None
    return out.transpose(1, 2).contiguous(), weights


def _refuse_unknown(module: Any, others: dict[str, Any]) -> None:
    unknown = {n: x for n, x in others.items() if x is not None and n not in _WITHOUT_MEANING}
    if not unknown:
        return
    name, value = next(iter(unknown.items()))
    got = f"a {type(value).__name__} {tuple(value.shape)}" if is_array(value) else repr(value)
    way = (
        "Packed sequences are understood by position_ids that begin again in each, without an attention_mask"
        if name in ("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx")
        else 'It may change what attention means; load this model with attn_implementation="eager"'
    )
    msg = f"{type(module).__name__} hands its attention {name}={got}, which attnspec does not know. {way}."
    raise OptionError(msg)


def _visible(
    query: Array, key: Array, given: RuleMask | Array | None, *, causal: bool, sliding_window: int | None
) -> tuple[Mask | Array | None, Bias | Array | None]:
    """(mask, bias) of attnspec."""
    Q, K = query.shape[-2], key.shape[-2]
    if isinstance(given, RuleMask):
        if tuple(given.shape[-2:]) != (Q, K):
            msg = (
                f"the model's mask is for (Q, K) = {tuple(given.shape[-2:])} and its attention has {(Q, K)}: it "
                'cuts or joins masks. Use register(masks="arrays").'
            )
            raise ShapeError(msg)
        return given.rule, None
    if given is None:
        return _implied(Q, K, causal=causal, sliding_window=sliding_window), None
    if is_array(given) and given.ndim != 4:
        msg = (
            f"attention_mask has shape {tuple(given.shape)}; (B, 1 or H, Q, K) is needed. Register the mask function "
            "too, as register() does, or insert the axes: a mask of keys (B, K) is mask[:, None, None, :]."
        )
        raise ShapeError(msg)
    if "float" not in dtype_name(given):
        return given, None
    xp = namespace(given)
    lowest = max(float(xp.finfo(x.dtype).min) for x in (given, query))
    return None, xp.where(given <= lowest, -xp.inf, given)


def _implied(Q: int, K: int, *, causal: bool, sliding_window: int | None) -> Mask | None:
    """What no mask means."""
    if causal:
        before = None if sliding_window is None else sliding_window - 1
        return window(before, 0, align="end" if Q == 1 else "start")
    if sliding_window is not None and sliding_window < K:
        msg = (
            f"sliding_window={sliding_window} over K={K} keys without a mask in a layer that is not causal: families "
            "count such a window differently. Pass the mask."
        )
        raise OptionError(msg)
    return None


def _drawn_dropout(module: Any, rate: float, query: Array) -> Dropout | None:
    if not module.training or rate == 0:
        return None
    xp = namespace(query)
    return Dropout(rate, wrap(xp.randint(-(2**31), 2**31, (2,), dtype=xp.int32, device=query.device)))
