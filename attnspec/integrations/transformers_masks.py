"""transformers' masks as attnspec's rules.

transformers describes a mask by a function of four indices, put together from a few of its own. Those that are known
become rules; any other one is asked, by transformers' own `sdpa_mask`, for a tile at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from operator import and_, or_
from typing import Any

from .._compat import Array, Namespace
from ..host import host_of
from ..masks import as_mask, causal, window
from ..rules import Rule, Status
from ..shapes import Span

# `sdpa_mask` gives None for what torch's kernel can be told otherwise.
_NEVER_NONE = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}


class RuleMask:
    """What a model holds in place of a boolean tensor (B, 1, Q, K): the rule, and the tensor if somebody asks for it.

    Models pass it on; those that cut, move or look into their mask get the tensor.
    """

    ndim = 4

    def __init__(self, rule: Rule, shape: tuple[int, int, int, int], array: Callable[[], Array]) -> None:
        self.rule, self.shape, self._array = rule, shape, array

    @cached_property
    def array(self) -> Array:
        """The tensor of transformers."""
        return self._array()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what copying and pickling ask of an object that has no fields yet
            raise AttributeError(name)
        return getattr(self.array, name)

    def __getitem__(self, index: Any) -> Array:
        return self.array[index]


class RuleMasks:
    """A mask function for `AttentionMaskInterface`; `masking` is `transformers.masking_utils`."""

    def __init__(self, masking: Any) -> None:
        self.masking = masking

    def __call__(
        self,
        *,
        batch_size: int,
        q_length: int,
        kv_length: int,
        q_offset: int | Array = 0,
        kv_offset: int = 0,
        mask_function: Callable[..., Array],
        attention_mask: RuleMask | Array | None = None,
        allow_is_causal_skip: bool = False,
        allow_is_bidirectional_skip: bool = False,
        **options: Any,
    ) -> RuleMask | Array | None:
        """Query i stands at q_offset + i and key j at kv_offset + j; `attention_mask` (B, positions) is padding."""
        if isinstance(attention_mask, RuleMask):  # `generate` makes masks ahead and hands them to the model as its mask
            return attention_mask
        q_offset = q_offset + 0  # a static cache counts on in its own tensor
        array = partial(
            self.masking.sdpa_mask, batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset,
            kv_offset=kv_offset, mask_function=mask_function, attention_mask=attention_mask, **_NEVER_NONE, **options,
        )  # fmt: skip
        if q_length == 1:  # a step of decoding has no Q x K, and compiled ones want tensors
            return array(
                allow_is_causal_skip=allow_is_causal_skip, allow_is_bidirectional_skip=allow_is_bidirectional_skip
            )
        evaluate = partial(self.masking.sdpa_mask, batch_size=batch_size, **_NEVER_NONE, **options)
        translation = _Translation(self.masking, evaluate, q_offset, kv_offset)
        rule = translation.of(mask_function)
        skips = allow_is_causal_skip or allow_is_bidirectional_skip
        if not skips and not translation.evaluated:  # the model asked for a tensor
            return array()
        padding = self._padding(attention_mask, kv_length, kv_offset)
        everything = padding is None and mask_function is self.masking.bidirectional_mask_function
        if everything and allow_is_bidirectional_skip:
            return None
        rule = rule if padding is None else rule & as_mask(padding)
        return RuleMask(rule, (batch_size, 1, q_length, kv_length), array)

    def _padding(self, attention_mask: Array | None, kv_length: int, kv_offset: int) -> Array | None:
        """(B, 1, 1, K), or None where every key is known to be real."""
        if attention_mask is None:
            return None
        seen = self.masking.prepare_padding_mask(attention_mask, kv_length, kv_offset)
        seen = seen[:, kv_offset : kv_offset + kv_length]
        if host_of(seen).concrete(seen) and bool(seen.all()):
            return None
        return seen[:, None, None, :]


class _Translation:
    """Of one call's mask function; `evaluated` counts its parts that are no rule and are asked for by `evaluate`."""

    def __init__(self, masking: Any, evaluate: Callable[..., Array], q_offset: int | Array, kv_offset: int) -> None:
        self.evaluate, self.evaluated = evaluate, 0
        self.q_offset, self.kv_offset = q_offset, kv_offset
        shift = q_offset - kv_offset
        # By the code of the function, with what its closure holds. A window of w counts the query's own key.
        self.known: dict[Any, Callable[..., Rule]] = {
            masking.causal_mask_function.__code__: lambda: causal(shift),
            masking.bidirectional_mask_function.__code__: lambda: window(None, None),
            masking.sliding_window_overlay(1).__code__: lambda w: window(w - 1, None, offset=shift),
            masking.sliding_window_bidirectional_overlay(1).__code__: lambda w: window(w, w, offset=shift),
            masking.and_masks().__code__: lambda functions: reduce(and_, map(self.of, functions)),
            masking.or_masks().__code__: lambda functions: reduce(or_, map(self.of, functions)),
        }

    def of(self, function: Callable[..., Array]) -> Rule:
        """The rule of a function (batch, head, query, key) -> may attend."""
        make = self.known.get(getattr(function, "__code__", None))
        if make is not None:
            return make(*(cell.cell_contents for cell in function.__closure__ or ()))
        self.evaluated += 1
        return as_mask(Evaluated(partial(self.evaluate, mask_function=function), self.q_offset, self.kv_offset))


@dataclass(frozen=True)
class Evaluated:
    """A rule that asks `array` for the tile whose first query and key stand there."""

    array: Callable[..., Array]
    q_offset: int | Array
    kv_offset: int

    def tile(self, q: Span, k: Span, /, *, xp: Namespace, device: Any) -> Array:
        """See `Mask.tile`."""
        return self.array(
            q_length=q.size, kv_length=k.size, q_offset=self.q_offset + q.start, kv_offset=self.kv_offset + k.start
        )

    def status(self, q: Span, k: Span, /) -> Status:
        """See `Mask.status`."""
        return "some"
