"""attnspec's functions as torch modules: parameters that an optimiser takes and a `state_dict` names.

    from attnspec.backend import torch as backend

    layer = backend.TransformerLayer.init(rng, model_width=64, heads=8, hidden_width=256, order="pre", dropout=0.1)
    y = layer(x, mask=attnspec.causal())
    same = backend.TransformerLayer.from_torch(torch.nn.TransformerEncoderLayer(64, 8, batch_first=True))

A module copies the arrays of a struct of `attnspec.params` into Parameters of the same names, so that its `state_dict`
is `attnspec.params.flatten(module.params)`, and calls the function of that struct. What belongs to torch is here:

training
    Dropout happens in `train()` alone. It is drawn by the `rng` that the call is given, a `Key`, and drops the same
    entries on every backend. Without one, two words are drawn from torch's generator of the device, which
    `torch.manual_seed` seeds, as `nn.Dropout` does; a checkpointed layer drops the same again.
autocast
    The inside is never lowered (SHAPE-3). Inputs of another dtype than the parameters, such as those that autocast has
    lowered before, are cast to it, and the result has it; `AddAndNorm` takes the widest of its inputs and parameters.
    float64 is left alone, and outside of autocast mixed dtypes are what the functions say.
batch_first
    x is (B, Q, M) or (Q, M), with `batch_first=False` (Q, B, M) or (Q, M).
torch.compile
    Compiles without a graph break, dropout included. `rng` drops the same entries as in eager mode; what torch's
    generator gives a program of Inductor is Inductor's, as for `nn.Dropout`. Every length has a program of its own,
    with `dynamic=True` too, because tiles are cut by lengths: pad texts to a few of them, since torch stops at
    `torch._dynamo.config.recompile_limit` programs. Keys and rates share a
    program with `dynamic=True`; else the first key and rate have one, and the next another that serves those after it,
    or for rates, with `dynamic=False` for keys too, one each. A key of arrays, `attnspec.random.wrap(words)`, is
    never a constant.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, Self, Unpack

import torch

import attnspec
from attnspec.errors import OptionError
from attnspec.multihead import AttentionOptions
from attnspec.random import Key, split
from attnspec.shapes import number, of_type

from .modules_from_torch import in_its_state, layer_params, multi_head_params, norm_params
from .modules_held import Module, of_tensors, refuse_dropout, with_named_dtype

__all__ = ["AddAndNorm", "MultiHeadAttention", "TransformerLayer"]


class MultiHeadAttention(Module):
    """`attnspec.multi_head_attention` as a module.

    Parameters
    ----------
    params : attnspec.MultiHeadParams
        Copied into Parameters wq (M, H, D), wk (C, G, D), wv (C, G, E), wo (H, E, M) and, unless None, bq, bk, bv, bo.
    dropout : float
        Rate on the weights, in training.
    batch_first : bool
    sink : float, optional
        The sink of calls that give none.

    Examples
    --------
    >>> import attnspec, torch
    >>> module = MultiHeadAttention.init(attnspec.random.key(0), model_width=8, heads=2)
    >>> module(torch.ones(3, 5, 8), mask=attnspec.causal()).shape
    torch.Size([3, 5, 8])
    """

    def __init__(
        self,
        params: attnspec.MultiHeadParams,
        *,
        dropout: float = 0.0,
        batch_first: bool = True,
        sink: float | None = None,
    ) -> None:
        of_type("params", params, attnspec.MultiHeadParams)
        super().__init__(params, dropout, batch_first)
        self.sink = sink

    @classmethod
    def init(
        cls, rng: Key, *, dropout: float = 0.0, batch_first: bool = True, device: Any = None, **sizes: Any
    ) -> Self:
        """A fresh module: `sizes` as of `MultiHeadParams.init`, and the same numbers on every backend."""
        params = attnspec.MultiHeadParams.init(rng, like=torch.empty(0, device=device), **with_named_dtype(sizes))
        return cls(params, dropout=dropout, batch_first=batch_first)

    @classmethod
    def from_torch(cls, module: torch.nn.MultiheadAttention) -> Self:
        """A module with the weights, the layout and the rate of `nn.MultiheadAttention`, and its output in evaluation.

        ======================================= ==========================================================
        `nn.MultiheadAttention`                 here
        ======================================= ==========================================================
        `m(x, x, x)[0]`, `m(x, c, c)[0]`        `module(x)`, `module(x, c)`
        `m(x, x, x)[1]`                         `module.weights(x)`, averaged by `.mean(-3)`
        `attn_mask` boolean, True = hidden      `mask=~attn_mask`; of (B * H, Q, K): `.unflatten(0, (B, H))`
        `attn_mask` floating                    `bias=attn_mask`
        `key_padding_mask` boolean (B, K)       `mask=~key_padding_mask[:, None, None, :]`, or `padding(lengths)`
        both                                    `as_mask(~attn_mask) & ~key_padding_mask[:, None, None, :]`
        `is_causal=True` and its mask           `mask=causal()`
        `kdim` and `vdim` that differ           `module(x, torch.cat([key, value], -1))`
        `add_zero_attn`                         `sink=0.0`; the weights have no column for it
        ======================================= ==========================================================

        Raises
        ------
        errors.OptionError
            With `add_bias_kv`; `attnspec.integrations.torch.multi_head_attention_forward` has it, and takes keys and
            values that are two arrays of one width.

        Notes
        -----
        A row that may see nothing is bo here, and NaN or bo in torch. Other rows agree to rounding, not to the bit.
        """
        params = multi_head_params(module)
        made = cls(
            params,
            dropout=module.dropout,
            batch_first=module.batch_first,
            sink=0.0 if module.add_zero_attn else None,
        )
        return in_its_state(made, params, module)  # type: ignore[no-any-return]

    def forward(
        self,
        x: torch.Tensor,
        context: torch.Tensor | None = None,
        *,
        rng: Key | None = None,
        rotary: attnspec.Rotary | None = None,
        **options: Unpack[AttentionOptions],
    ) -> torch.Tensor:
        """MultiHead(x): (B, Q, M) -> (B, Q, M); context (B, K, C). Options as `multi_head_attention`, dropout aside."""
        x, context = self._taken(x), self._taken(context)
        options = self._options(options)
        if self.training and self.dropout:
            options["dropout"] = attnspec.Dropout(self.dropout, self._rng(rng, x))
        return self._turned(attnspec.multi_head_attention(self.params, x, context, rotary=rotary, **options))

    def weights(
        self,
        x: torch.Tensor,
        context: torch.Tensor | None = None,
        *,
        rotary: attnspec.Rotary | None = None,
        **options: Unpack[AttentionOptions],
    ) -> torch.Tensor:
        """What each head looks at, before dropout: (B, H, Q, K)."""
        x, context = self._taken(x), self._taken(context)
        return attnspec.multi_head_weights(self.params, x, context, rotary=rotary, **self._options(options))

    def _options(self, options: AttentionOptions) -> AttentionOptions:
        refuse_dropout(options)
        return {"sink": self.sink, **options}


class AddAndNorm(Module):
    """`attnspec.add_and_norm` as a module: layer_norm(x + dropout(sublayer_out)), post-norm.

    Parameters
    ----------
    params : attnspec.NormParams
        Of kind "layer"; gamma and beta (M,) are copied into Parameters.
    dropout : float
        Rate on the sublayer's output, in training.

    Examples
    --------
    >>> import attnspec, torch
    >>> module = AddAndNorm.init(width=2, eps=0.0)
    >>> module(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 3.0])).tolist()
    [-1.0, 1.0]
    """

    def __init__(self, params: attnspec.NormParams, *, dropout: float = 0.0) -> None:
        of_type("params", params, attnspec.NormParams)
        if params.kind != "layer":
            msg = f'kind={params.kind!r}: add-and-norm is defined for "layer". Use TransformerLayer, or the functions.'
            raise OptionError(msg)
        super().__init__(params, dropout, batch_first=True)

    @classmethod
    def init(cls, *, width: int, dropout: float = 0.0, device: Any = None, **options: Any) -> Self:
        """Gain 1 and offset 0; further options as of `NormParams.init`."""
        params = attnspec.NormParams.init(width=width, like=torch.empty(0, device=device), **with_named_dtype(options))
        return cls(params, dropout=dropout)

    @classmethod
    def from_torch(cls, module: torch.nn.LayerNorm, *, dropout: float = 0.0) -> Self:
        """`module(x + dropout(sublayer_out))` of a `nn.LayerNorm` over the last axis."""
        params = norm_params(module)
        return in_its_state(cls(params, dropout=dropout), params, module)  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor, sublayer_out: torch.Tensor, *, rng: Key | None = None) -> torch.Tensor:
        """layer_norm(x + dropout(sublayer_out)), both (..., M)."""
        of_tensors(x, sublayer_out)
        wide = reduce(torch.promote_types, (a.dtype for a in (x, sublayer_out, *self.parameters())))
        x, sublayer_out, params = self._taken(x, wide), self._taken(sublayer_out, wide), self.params
        dropout = attnspec.Dropout(self.dropout, self._rng(rng, x)) if self.training and self.dropout else None
        return attnspec.add_and_norm(x, sublayer_out, params.gamma, params.beta, eps=params.eps, dropout=dropout)


class TransformerLayer(Module):
    """`attnspec.transformer_layer` as a module.

    Parameters
    ----------
    params : attnspec.LayerParams
        Copied into Parameters of their names, such as "attention.wq" and "norm_feed_forward.gamma".
    dropout, residual_dropout : float
        Rates in training: on the weights, and on the output of either sublayer before it is added.
    batch_first : bool

    Examples
    --------
    >>> import attnspec, torch
    >>> layer = TransformerLayer.init(
    ...     attnspec.random.key(0), model_width=8, heads=2, hidden_width=16, order="pre", dropout=0.1)
    >>> layer(torch.ones(3, 5, 8), mask=attnspec.causal(), rng=attnspec.random.key(1)).shape
    torch.Size([3, 5, 8])
    """

    def __init__(
        self,
        params: attnspec.LayerParams,
        *,
        dropout: float = 0.0,
        residual_dropout: float = 0.0,
        batch_first: bool = True,
    ) -> None:
        of_type("params", params, attnspec.LayerParams)
        super().__init__(params, dropout, batch_first)
        self.residual_dropout: float = number("residual_dropout", residual_dropout, low=0.0, high=1.0)

    @classmethod
    def init(
        cls,
        rng: Key,
        *,
        dropout: float = 0.0,
        residual_dropout: float = 0.0,
        batch_first: bool = True,
        device: Any = None,
        **sizes: Any,
    ) -> Self:
        """A fresh layer: `sizes` as of `LayerParams.init`, and the same numbers on every backend."""
        params = attnspec.LayerParams.init(rng, like=torch.empty(0, device=device), **with_named_dtype(sizes))
        return cls(params, dropout=dropout, residual_dropout=residual_dropout, batch_first=batch_first)

    @classmethod
    def from_torch(cls, module: torch.nn.TransformerEncoderLayer) -> Self:
        """A layer with the weights, options and rates of `nn.TransformerEncoderLayer`, and its output in evaluation.

        `src_mask` and `src_key_padding_mask` are `attn_mask` and `key_padding_mask` of
        `MultiHeadAttention.from_torch`. Activations are ReLU, GELU of either kind, and SiLU, as function or module.

        Notes
        -----
        In training torch drops entries inside the feed-forward network too, between the activation and the second map,
        which the paper does not and no option here does.
        """
        params = layer_params(module)
        made = cls(
            params,
            dropout=module.self_attn.dropout,
            residual_dropout=module.dropout1.p,
            batch_first=module.self_attn.batch_first,
        )
        return in_its_state(made, params, module)  # type: ignore[no-any-return]

    def forward(
        self,
        x: torch.Tensor,
        *,
        rng: Key | None = None,
        rotary: attnspec.Rotary | None = None,
        **options: Unpack[AttentionOptions],
    ) -> torch.Tensor:
        """(B, Q, M) -> (B, Q, M). Options as `transformer_layer`, dropout aside; the two draws split `rng`."""
        refuse_dropout(options)
        x, residual_dropout = self._taken(x), None
        if self.training and (self.dropout or self.residual_dropout):
            of_weights, of_sums = split(self._rng(rng, x))
            options = {**options, "dropout": attnspec.Dropout(self.dropout, of_weights)}
            residual_dropout = attnspec.Dropout(self.residual_dropout, of_sums)
        y = attnspec.transformer_layer(self.params, x, rotary=rotary, residual_dropout=residual_dropout, **options)
        return self._turned(y)
