"""Calls of torch's fused operation for any mask and any bias: what is added to the scores, a few queries at a time.

The operation adds an array to the scores, -inf where a pair is hidden. It is made in stripes that fit a bounded memory.
A sum is -inf whatever was hidden, if the product is a number: so queries and keys that might make another are told
apart, by the query that has them or sees them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

import torch
from torch import Tensor

from attnspec.fast import narrowed
from attnspec.request import Request
from attnspec.rules import And, ArrayMask, Padding, Rule, Segments, Window
from attnspec.terms import ArrayBias, Foreign, Sum, Term

from .sdpa_calls import Calls, Operands, attend, bias_of, operands_of, pull, readable
from .sdpa_distances import Added, Distances, band_of
from .sdpa_plan import Piece, plan_of

# The entries of a stripe, at most: beyond, they no longer lie in a cache when the operation reads them.
ENTRIES = 2**21
# Where a mask is known to hide all of so many keys they are left out; and so many queries are rows of its own tiles.
_BLOCK = 256


def calls_of(request: Request) -> Calls:
    """Of a call that `sdpa.supports`."""
    if band_of(request) is not None:
        return Distances.of(request)
    needed = request.bias is not None or plan_of(request) is None
    return Stripes.of(request) if needed else Calls.of(request)


def why_not(request: Request) -> str | None:
    """None, or why a call is neither one of distances nor one of stripes."""
    if band_of(request) is not None:
        return None
    if len(request.axes.lead) > 1:
        return "a mask or a bias of pairs, and more than one leading axis"
    if any(isinstance(x, Tensor) for x in (request.q_positions, request.k_positions)):
        return "positions are known only as tensors"
    for rule in _rules(request.mask):
        banded = isinstance(rule, Window) and rule.left is not None
        if banded or not isinstance(rule, ArrayMask | Segments | Padding | Window):
            return f"of a {type(rule).__name__} whole tiles are left out, or it is not looked into"
    return "of a bias it knows no gradient" if any(isinstance(x, Foreign) for x in _terms(request.bias)) else None


def _rules(rule: Rule | None) -> list[Rule]:
    if isinstance(rule, And):
        return [*_rules(rule.a), *_rules(rule.b)]
    return [] if rule is None else [rule]


def _terms(term: Term | None) -> list[Term]:
    if isinstance(term, Sum):
        return [*_terms(term.a), *_terms(term.b)]
    return [] if term is None else [term]


class Stripes(Added):
    """A call of attention in pieces of some items, heads and queries, and of all keys that the mask may show them."""

    @classmethod
    def of(cls, request: Request) -> Stripes:
        """Of a call of which `why_not` says nothing, and which has no `band_of`."""
        axes, given = request.axes, operands_of(request)
        pieces = list(_pieces(request, given.q))
        whole = len(pieces) == 1 and all(
            place == slice(0, n)
            for place, n in zip((pieces[0].q, pieces[0].k, pieces[0].heads), (axes.Q, axes.K, axes.H), strict=True)
        )
        return cls(request, pieces, given, None, whole and pieces[0].items.stop == math.prod(axes.lead))

    def sees(self, flags: Tensor) -> Tensor:
        """Of flags of keys (B, G, K), which queries see one: (B, H, Q)."""
        q, groups = self.given.q, self.request.axes.H // self.request.axes.G
        found = torch.zeros_like(q[..., 0], dtype=torch.bool)
        for piece in self.pieces:
            seen = (self._stripe(piece) != -math.inf).to(q.dtype)
            of_keys = flags.repeat_interleave(groups, 1)[piece.items, piece.heads, piece.k].to(q.dtype)
            found[piece.rows] = torch.einsum("bhqk,bhk->bhq", seen, of_keys) > 0
        return found

    def _attend(self, piece: Piece, operands: Operands) -> tuple[Tensor, Tensor]:
        added = self._stripe(piece)
        out, lse = attend(*self._cut(piece, operands), 0.0, False, **self._options(added))
        # The operation gives lse = 0 and out = 0 to a row all of whose scores are -inf.
        if bool((lse == 0).any()):
            lse.masked_fill_((added == -math.inf).all(-1), -math.inf)
            out.masked_fill_((lse == -math.inf)[..., None], 0.0)
        return out, lse

    def _pull(self, piece: Piece, operands: Operands, rows: tuple[Tensor, Tensor, Tensor]) -> Sequence[Tensor]:
        g, out, lse = rows
        cut, options = self._cut(piece, operands), self._options(self._stripe(piece))
        return pull(g, *cut, out, lse, 0.0, False, **options)  # type: ignore[no-any-return]

    def _stripe(self, piece: Piece) -> Tensor:
        """What is added to the scores of a piece, (b or 1, h or 1, q or 1, k)."""
        return _stripe(self.request, piece, self.given.q)


def _stripe(request: Request, piece: Piece, like: Tensor) -> Tensor:
    block = (piece.items, piece.heads)[-1 - len(request.axes.lead) :]
    spans = request.q_span(piece.q.start, _length(piece.q)), request.k_span(piece.k.start, _length(piece.k))
    place = {"xp": request.xp, "device": request.device}
    seen = None if request.mask is None else request.mask.part(block).tile(*spans, **place)
    if request.bias is None:
        added = bias_of(seen, like.dtype)
    else:
        added = narrowed(request.xp, request.bias.part(block).tile(*spans, **place), like)
        added = added if seen is None else torch.where(seen, added, -math.inf)
    added = added[(None,) * (4 - added.ndim)]
    if added.shape[-1] != _length(piece.k):
        added = added.expand(*added.shape[:-1], _length(piece.k))
    return readable(added, added.shape[-1])


def _pieces(request: Request, like: Tensor) -> Iterator[Piece]:
    axes, of_one = request.axes, slice(0, 1)
    B, rows, heads, items = math.prod(axes.lead), axes.Q, axes.H, math.prod(axes.lead)
    if math.prod(axes.scores) > ENTRIES and not _is_at_hand(request):
        every = Piece(slice(0, B), of_one, of_one, causal=False, heads=slice(0, heads))
        by_item, by_head = (n > 1 for n in _stripe(request, every, like).shape[:2])
        entries, of_group = ENTRIES // axes.K, heads // axes.G
        rows = min(rows, max(1, entries // (of_group if by_head else 1)))
        rows -= rows % _BLOCK if _BLOCK < rows < axes.Q else 0
        if by_head:
            heads = min(heads, of_group * max(1, entries // (rows * of_group)))
        if by_item:
            items = min(items, max(1, entries // (rows * (heads if by_head else 1))))
    for of_items, of_heads, q in product(_cut(B, items), _cut(axes.H, heads), _cut(axes.Q, rows)):
        k = _seen_keys(request, q)
        if k.stop > k.start:
            yield Piece(of_items, q, k, causal=False, heads=of_heads)


def _is_at_hand(request: Request) -> bool:
    """Whether all that is added is an array that is there already."""
    if request.mask is not None or not isinstance(request.bias, ArrayBias):
        return False
    held = request.bias.array
    same = held.dtype == torch.promote_types(request.q.dtype, torch.float32)
    return bool(same and held.ndim and held.shape[-1] == request.axes.K and held.stride(-1) == 1)


def _cut(n: int, step: int) -> list[slice]:
    return [slice(start, min(n, start + step)) for start in range(0, n, step)]


def _seen_keys(request: Request, q: slice) -> slice:
    """From the first to the last block that the mask is not known to hide."""
    if request.mask is None:
        return slice(0, request.axes.K)
    rows = request.q_span(q.start, _length(q))
    cuts = _cut(request.axes.K, _BLOCK)
    spans = ((k, request.k_span(k.start, _length(k))) for k in cuts)
    seen = [k for k, span in spans if request.mask.status(rows, span) != "none"]
    return slice(seen[0].start, seen[-1].stop) if seen else slice(0, 0)


def _length(place: slice) -> int:
    return place.stop - place.start  # type: ignore[no-any-return]
