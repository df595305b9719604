"""torch's own modules as parameters of attnspec: copied weights in its layouts, or a refusal that names the option."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from attnspec import FeedForwardParams, LayerParams, MultiHeadParams, NormParams
from attnspec.errors import DTypeError, OptionError
from attnspec.params import Activation, flatten
from attnspec.struct import Struct

_FUNCTIONS: dict[Any, Activation] = {
    functional.relu: "relu", torch.relu: "relu", functional.gelu: "gelu", functional.silu: "silu",
}  # fmt: skip


def in_its_state(made: Any, params: Struct, module: torch.nn.Module) -> Any:
    """The module made of these parameters, in the mode of torch's, and learning where its weights learn."""
    for name, x in flatten(params).items():
        made.get_parameter(name).requires_grad_(x.requires_grad)
    return made.train(module.training)


@torch.enable_grad()  # type: ignore[untyped-decorator]
def multi_head_params(module: torch.nn.MultiheadAttention) -> MultiHeadParams:
    """The four maps of `nn.MultiheadAttention`; keys and values of two widths are read beside one another."""
    of_class(module, torch.nn.MultiheadAttention)
    of_class(module.out_proj, torch.nn.Linear)
    if module.bias_k is not None:
        msg = (
            "the module has add_bias_kv=True, a learned key and value that multi_head_attention lacks. "
            "attnspec.integrations.torch.multi_head_attention_forward has them."
        )
        raise OptionError(msg)
    heads = (module.num_heads, module.head_dim)
    single = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    weights = single if module.in_proj_weight is None else module.in_proj_weight.chunk(3)
    wq, wk, wv = (w.unflatten(0, heads).permute(2, 0, 1) for w in weights)
    if wk.shape[0] != wv.shape[0]:
        wk, wv = torch.cat([wk, torch.zeros_like(wv)]), torch.cat([torch.zeros_like(wk), wv])
    bias = module.in_proj_bias
    bq, bk, bv = (None,) * 3 if bias is None else (b.unflatten(0, heads) for b in bias.chunk(3))
    out = module.out_proj
    return MultiHeadParams(wq, wk, wv, out.weight.T.unflatten(0, heads), bq, bk, bv, out.bias)


@torch.enable_grad()  # type: ignore[untyped-decorator]
def layer_params(module: torch.nn.TransformerEncoderLayer) -> LayerParams:
    """The parts of `nn.TransformerEncoderLayer`."""
    of_class(module, torch.nn.TransformerEncoderLayer, "_sa_block", "_ff_block")
    of_class(module.linear1, torch.nn.Linear)
    of_class(module.linear2, torch.nn.Linear)
    if module.dropout1.p != module.dropout2.p:
        msg = f"dropout1 has p={module.dropout1.p}, dropout2 {module.dropout2.p}; one rate for both sums is needed."
        raise OptionError(msg)
    into, out = module.linear1, module.linear2
    return LayerParams(
        multi_head_params(module.self_attn),
        FeedForwardParams(into.weight.T, out.weight.T, into.bias, out.bias, activation=_activation(module.activation)),
        norm_params(module.norm1),
        norm_params(module.norm2),
        order="pre" if module.norm_first else "post",
    )


@torch.enable_grad()  # type: ignore[untyped-decorator]
def norm_params(module: torch.nn.LayerNorm) -> NormParams:
    """Gain, offset and eps of `nn.LayerNorm` over one axis."""
    of_class(module, torch.nn.LayerNorm)
    if len(module.normalized_shape) != 1:
        msg = f"normalized_shape={tuple(module.normalized_shape)}: a norm over the last axis alone is needed."
        raise OptionError(msg)
    return NormParams(module.weight, module.bias, "layer", module.eps)


def of_class(module: Any, kind: type, *methods: str) -> None:
    """Refuse another module, such as a quantised one, and one that computes something of its own."""
    own = isinstance(module, kind) and all(
        getattr(type(module), name) is getattr(kind, name) and name not in vars(module)
        for name in ("forward", *methods)
    )
    if not own:
        listed = " and ".join((", ".join(("forward", *methods[:-1])), *methods[-1:]))
        msg = f"the module is {type(module).__qualname__}; {kind.__qualname__} with its own {listed} is needed."
        raise DTypeError(msg)
    for part in module.modules():
        if part._forward_hooks or part._forward_pre_hooks:
            msg = f"{type(part).__qualname__} has forward hooks, which would not be called here. Remove them first."
            raise OptionError(msg)


def _activation(function: Any) -> Activation:
    if function in _FUNCTIONS:
        return _FUNCTIONS[function]
    if type(function) is torch.nn.GELU:
        return "gelu_tanh" if function.approximate == "tanh" else "gelu"
    if type(function) in (torch.nn.ReLU, torch.nn.SiLU):
        return "relu" if type(function) is torch.nn.ReLU else "silu"
    msg = f"the activation is {function!r}: ReLU, GELU or SiLU, as torch's function or module, is needed."
    raise OptionError(msg)
