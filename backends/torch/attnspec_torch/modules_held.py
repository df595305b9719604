"""Structs of `attnspec.params` as torch modules, and what their calls share: draws, dtypes, the axis of the batch."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from attnspec._compat import dtype_name, is_array
from attnspec.errors import DTypeError, OptionError
from attnspec.multihead import AttentionOptions
from attnspec.random import Key, wrap
from attnspec.shapes import number
from attnspec.struct import Struct

_CAST = (torch.float16, torch.bfloat16, torch.float32)  # what autocast casts; it leaves float64 and integers alone


class Held(torch.nn.Module):  # type: ignore[misc]
    """A struct whose arrays are Parameters, by the names of its fields; structs in it are modules likewise."""

    def __init__(self, params: Struct) -> None:
        super().__init__()
        self._kind = type(params)
        self._names = tuple(f.name for f in fields(params))  # type: ignore[arg-type]
        self._static: dict[str, Any] = {}
        for name in self._names:
            value = getattr(params, name)
            if isinstance(value, Struct):
                self.add_module(name, Held(value))
            elif is_array(value):
                # Copied, because one array may stand in two places.
                copy = value.detach().clone(memory_format=torch.contiguous_format)
                self.register_parameter(name, torch.nn.Parameter(copy))
            else:
                self._static[name] = value

    @property
    def params(self) -> Any:
        """The struct, with the Parameters for its arrays."""
        return self._kind(**{name: self._part(name) for name in self._names})

    def _part(self, name: str) -> Any:
        if name in self._static:
            return self._static[name]
        part = getattr(self, name)
        return part.params if isinstance(part, Held) else part

    def _get_name(self) -> str:
        return self._kind.__name__ if type(self) is Held else type(self).__name__

    def extra_repr(self) -> str:
        """Shapes and options, for `print`."""
        shapes = {name: tuple(p.shape) for name, p in self.named_parameters(recurse=False)}
        return ", ".join(f"{name}={value}" for name, value in (shapes | self._static).items() if value is not None)


class Module(Held):
    """A struct, the dropout in training, and which axis is the batch's."""

    def __init__(self, params: Struct, dropout: float, batch_first: bool) -> None:
        super().__init__(params)
        self.dropout: float = number("dropout", dropout, low=0.0, high=1.0)
        self.batch_first = batch_first

    def extra_repr(self) -> str:
        """Shapes and options, for `print`."""
        return ", ".join(
            filter(None, (super().extra_repr(), f"dropout={self.dropout}", f"batch_first={self.batch_first}"))
        )

    def _rng(self, rng: Key | None, x: torch.Tensor) -> Key:
        """The key that the call was given, or one that torch's generator gives."""
        if rng is None:
            return wrap(torch.randint(-(2**31), 2**31, (2,), dtype=torch.int32, device=x.device))
        if torch.compiler.is_compiling() and isinstance(rng, Key) and isinstance(rng.low, int):
            # As numbers they would be constants of the program, which were compiled anew for every key.
            words = (torch.full((), word, dtype=torch.int32, device=x.device) for word in (rng.high, rng.low))
            return Key(*words)
        return rng

    def _taken(self, x: torch.Tensor | None, dtype: torch.dtype | None = None) -> Any:
        """An input with the batch first; under autocast in that dtype, the parameters' unless given."""
        if x is None:
            return None
        of_tensors(x)
        own = next(self.parameters(), x).dtype if dtype is None else dtype
        if x.dtype != own and x.dtype in _CAST and torch.is_autocast_enabled(x.device.type):
            x = x.to(own)
        return self._turned(x)

    def _turned(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.batch_first or x.ndim < 3 else x.transpose(-3, -2)


def refuse_dropout(options: AttentionOptions) -> None:
    """Dropout is the module's: a rate, the mode, and the `rng` of a call."""
    if "dropout" in options:
        msg = "dropout is an option of the module, not of a call: pass the rate to the module, and rng=key here."
        raise OptionError(msg)


def of_tensors(*inputs: Any) -> None:
    """Refuse the arrays of others."""
    for x in inputs:
        if not isinstance(x, torch.Tensor):
            msg = f"an input is of type {type(x).__name__}; a tensor is needed. Make one with `torch.as_tensor`."
            raise DTypeError(msg)


def with_named_dtype(options: dict[str, Any]) -> dict[str, Any]:
    """Options of `init`, a dtype of torch by its name."""
    return {name: dtype_name(value) if name == "dtype" else value for name, value in options.items()}
