"""The subject of an adapter: attnspec's words put into a kernel's, and its answer put back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from . import masks, oracle_random, placement
from .adapters import Adapter
from .masks import Array
from .operands import Operands, asked_of, lay
from .subjects import BackendSubject
from .trials import Call


class Adapted(BackendSubject):
    """Asks the kernel of an adapter."""

    portable = False
    own_words = True

    def __init__(self, adapter: Adapter) -> None:
        super().__init__(placement.load(adapter.backend, adapter.device))
        self.adapter = adapter
        self.name = adapter.name
        self.capabilities = frozenset(adapter.capabilities)
        self.refusals = adapter.refusals
        self.base_two = adapter.lse == "2"

    def supports(self, call: Call) -> str | None:
        """The first thing that the adapter has no words for."""
        adapter, takes = self.adapter, self.adapter.arguments
        if call.want == "weights" and adapter.weights is None:
            return "it gives no weights"
        if asked_of(call) == "lse" and adapter.lse is None:
            return "it gives no lse"
        if call.implementation != "auto":
            return "it has one implementation"
        for name in ("scale", "softcap", "sink"):
            if getattr(call, name) is not None and name not in takes:
                return f"it takes no {name}"
        if call.dropout is not None and "rate" not in takes:
            return "it takes no dropout"
        if call.dropout is not None and "keep" not in takes and call.dropout.rate not in (0, 1):
            return "it takes no mask of what dropout keeps"
        if call.bias is not None and "bias" not in takes and (adapter.mask is None or adapter.mask.means != "added"):
            return "it takes no bias"
        if call.mask is not None and adapter.mask is None and by_rule(adapter, call) is None:
            return f"it takes no mask like this: {type(call.mask).__name__.lower()}"
        if call.shards is not None and self._kernel(call) is None:
            return f"it divides nothing along the {call.shards.along} among {call.shards.n}"
        return super().supports(call) or adapter.limits(call)

    def _operands(self, call: Call) -> Operands:
        adapter = replace(self.adapter, kernel=self._kernel(call) or self.adapter.kernel)
        return _Translated(self.backend, adapter, call)

    def _kernel(self, call: Call) -> Callable[..., Any] | None:
        """The kernel that is asked; None if there is none for such shards."""
        shards, adapter = call.shards, self.adapter
        if shards is None:
            return adapter.kernel
        return None if adapter.shards is None else adapter.shards(shards.along, shards.n)

    def _rounds_weights(self, q: Array) -> bool:
        return self.adapter.rounds_weights


def by_rule(adapter: Adapter, call: Call) -> dict[str, Any] | None:
    """The arguments that say the call's mask without an array of pairs, or None where there are none."""
    mask, Q, K = call.mask, call.q.shape[-2], call.k.shape[-2]
    if call.q_positions is not None or call.k_positions is not None:
        return None
    if isinstance(mask, masks.Padding) and adapter.layout == "packed":
        return {}
    if not isinstance(mask, masks.Causal | masks.Window) or np.any(np.asarray(mask.offset) != 0):
        return None
    flag, sides = adapter.causal, adapter.window
    if isinstance(mask, masks.Causal):
        return {flag.argument: True} if flag is not None and (mask.align == flag.align or Q == K) else None
    if sides is None or (mask.align != sides.align and Q != K):
        return None
    more = int(sides.counts_itself)
    return {sides.argument: tuple(sides.unbounded if n is None else n + more for n in (mask.left, mask.right))}


class _Translated(Operands):
    """The kernel's arguments. The call's arrays are rearranged by the backend's own operations, which differentiate."""

    def __init__(self, backend: Any, adapter: Adapter, call: Call) -> None:
        self.backend, self.adapter, self.call = backend, adapter, call
        self.arrays = [lay(backend, x, call.dtype, call.layout) for x in (call.q, call.k, call.v)]
        q, k, v = ((1, *x.shape) if x.ndim == 2 else x.shape for x in self.arrays)
        self.lead = _common(q[:-3], k[:-3], v[:-3])
        self.pairs = (*(self.lead or ()), q[-3], q[-2], k[-2])
        self.merges = adapter.leading == 1 or adapter.layout == "packed"
        self.named: dict[str, Callable[[Sequence[Array]], Any]] = {}
        rule = None if call.mask is None else by_rule(adapter, call)
        for name, value in (rule or {}).items():
            self.named[name] = _always(value)
        self._mask_and_bias(None if rule is not None else call.mask)
        self._options()
        if adapter.layout == "packed":
            self._starts()
        self.function = self._asked

    def _asked(self, *arrays: Array) -> Any:
        q, k, v = map(self._merged, arrays[:3])
        H, G = q.shape[-3], k.shape[-3]
        if not self.adapter.grouped and G and H % G == 0 and v.shape[-3] == G:
            k, v = (self.backend.xp.repeat(x, H // G, axis=-3) for x in (k, v))
        q, k, v = self._laid(q), self._laid(k, self.lengths), self._laid(v, self.lengths)
        named = {name: make(arrays) for name, make in self.named.items()}
        if asked_of(self.call) == "weights":
            assert self.adapter.weights is not None  # or it would have been said to be unsupported
            return self._parted(self.adapter.weights(q, k, v, **named))
        answer = self.adapter.kernel(q, k, v, **named)
        out, lse = answer if isinstance(answer, tuple) else (answer, None)
        if asked_of(self.call) == "out":
            return self._parted(self._unlaid(out))
        if lse is None:
            msg = f"{self.adapter.name} gave None for lse, which it is said to give"
            raise LookupError(msg)
        lse = self._heads_first(lse)
        return self._parted(self._unlaid(out)), self._parted(lse * math.log(2) if self.adapter.lse == "2" else lse)

    def _mask_and_bias(self, mask: masks.Mask | None) -> None:
        """The mask as an array of pairs, and the bias: in an argument each, or added up in one."""
        call, takes, pairs = self.call, self.adapter.arguments, self.adapter.mask
        seen = None if mask is None else self._full(masks.pairs(mask, self.pairs, call.q_positions, call.k_positions))
        dtype = call.bias_dtype or call.dtype
        if "bias" in takes and call.bias is not None:
            self.named[takes["bias"]] = self._array(self._full(call.bias), dtype)
        if pairs is None:
            return
        if pairs.means != "added":
            if seen is not None:
                self.named[pairs.argument] = self._array(seen if pairs.means == "attends" else ~seen, "bool")
            return
        bias = None if call.bias is None or "bias" in takes else self._full(call.bias)
        if seen is not None:
            bias = np.where(seen, 0.0 if bias is None else bias, -np.inf)
        if bias is not None:
            self.named[pairs.argument] = self._array(bias, dtype)

    def _options(self) -> None:
        call, takes = self.call, self.adapter.arguments
        for name in ("scale", "softcap"):
            if (value := getattr(call, name)) is not None:
                self.named[takes[name]] = _always(value)
        if call.sink is not None:
            self.named[takes["sink"]] = self._array(np.broadcast_to(call.sink, self.pairs[-3:-2]), call.dtype)
        if call.dropout is not None:
            rate, shape = call.dropout.rate, self.pairs
            self.named[takes["rate"]] = _always(rate)
            if "keep" in takes:
                keep = oracle_random.bernoulli(oracle_random.key(call.dropout.seed), 1 - rate, shape)
                self.named[takes["keep"]] = self._array(self._full(keep), "bool")

    def _starts(self) -> None:
        for name, length in zip(self.adapter.packed, (self.pairs[-2], self.lengths), strict=True):
            lengths = np.broadcast_to(length, math.prod(self.lead or ()))
            self.named[name] = self._array(np.concatenate([[0], np.cumsum(lengths)]), "int32")

    @property
    def lengths(self) -> Array:
        """How many keys the items of the batch have: all, unless packed sequences are shortened by padding."""
        K, mask = self.pairs[-1], self.call.mask
        if isinstance(mask, masks.Padding) and self.adapter.layout == "packed":
            return np.clip(np.broadcast_to(mask.lengths, self.lead or ()), 0, K).reshape(-1)
        return np.asarray(K)

    def _full(self, x: Array) -> Array:
        """Of the whole shape (B, H, Q, K); as it is where it does not broadcast, which the kernel is to refuse."""
        if self.lead is None or _common(x.shape, self.pairs) != self.pairs:
            return x
        full = np.broadcast_to(x, self.pairs)
        return full.reshape(math.prod(self.lead), *self.pairs[-3:]) if self.merges else full

    def _merged(self, x: Array) -> Array:
        """(B, H, S, W) with one leading axis, broadcast where the axes fit and left to the kernel where not."""
        xp = self.backend.xp
        x = xp.expand_dims(x, axis=0) if x.ndim == 2 else x
        lead, rest = tuple(x.shape[:-3]) if self.lead is None else self.lead, tuple(x.shape[-3:])
        if not self.merges or (len(lead) == 1 and tuple(x.shape) == (*lead, *rest)):
            return x
        return xp.reshape(xp.broadcast_to(x, (*lead, *rest)), (math.prod(lead), *rest))

    def _parted(self, x: Array) -> Array:
        """The leading axes of the call in place of one; no head axis where the call has none."""
        if self.merges and self.lead is not None:
            x = self.backend.xp.reshape(x, (*self.lead, *x.shape[1:]))
        return x[0, ...] if self.call.q.ndim == 2 else x

    def _laid(self, x: Array, lengths: Array | None = None) -> Array:
        """(B, H, S, W) in the kernel's layout."""
        xp, layout = self.backend.xp, self.adapter.layout
        if layout == "BHSD":
            return x
        x = xp.moveaxis(x, -3, -2)
        if layout == "BSHD":
            return x
        if lengths is not None and lengths.ndim:
            return xp.concat([x[b, :n, ...] for b, n in enumerate(map(int, lengths))])
        return xp.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))

    def _unlaid(self, out: Array) -> Array:
        """(B, H, Q, E) again."""
        xp, layout = self.backend.xp, self.adapter.layout
        if layout == "packed":
            out = xp.reshape(out, (math.prod(self.lead or ()), self.pairs[-2], *out.shape[-2:]))
        return out if layout == "BHSD" else xp.moveaxis(out, -2, -3)

    def _heads_first(self, lse: Array) -> Array:
        """(B, H, Q)."""
        xp, first = self.backend.xp, self.adapter.lse_heads_first
        if self.adapter.layout != "packed":
            return lse if first else xp.moveaxis(lse, -1, -2)
        parts = (math.prod(self.lead or ()), self.pairs[-2])
        if first:
            return xp.moveaxis(xp.reshape(lse, (lse.shape[0], *parts)), 0, 1)
        return xp.moveaxis(xp.reshape(lse, (*parts, lse.shape[-1])), -1, -2)


def _common(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape that they broadcast to, if they do."""
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        return None


def _always(value: Any) -> Callable[[Sequence[Array]], Any]:
    return lambda arrays: value
