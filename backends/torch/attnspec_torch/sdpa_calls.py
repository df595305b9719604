"""The calls of torch's fused operation that a call of attention is, and where their numbers cannot be taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnspec.derivative import summed_to
from attnspec.request import Request

from .sdpa_plan import Piece, plan_of

attend = torch._scaled_dot_product_flash_attention_for_cpu  # three quarters of the time of `torch.ops.aten...`
pull = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default

# So few queries take as long as one, if there are so many keys: the time goes into reading these.
_FEW, _MANY = 16, 256

# Below it no product of three entries, of a scale and of as many terms as fit a memory leaves float32.
LARGEST = 2.0**30
LARGEST_SCALE = 2.0**10
LARGEST_LSE = 2.0**10  # beyond, the weights of the walk back have to be made of references and totals


class Operands(NamedTuple):
    """q, k and v with their leading axes as one, in the dtype of the computation, with zeros up to one width D."""

    q: Tensor  # (B, H, Q, D)
    k: Tensor  # (B, G, K, D)
    v: Tensor


class Results(NamedTuple):
    """Rows of which the fused operation gave no number that counts are in doubt; None: none is."""

    out: Tensor  # (B, H, Q, E)
    lse: Tensor  # (B, H, Q)
    doubt: Tensor | None


class Calls(NamedTuple):
    """A call of attention in pieces."""

    request: Request
    pieces: Sequence[Piece]
    given: Operands
    bias: Tensor | None  # (B, 1, 1, K): 0, and -inf where keys are hidden from all queries
    whole: bool  # there is one piece, of all items and queries

    @classmethod
    def of(cls, request: Request) -> Calls:
        """Of a call that `sdpa.supports`."""
        axes, plan = request.axes, plan_of(request)
        assert plan is not None
        given = operands_of(request)
        bias = None
        if plan.seen is not None:
            seen = plan.seen[(None,) * max(0, 3 - plan.seen.ndim)]
            bias = bias_of(seen, given.q.dtype)
            bias = bias.expand(*axes.lead, *bias.shape[-3:]).reshape(-1, *bias.shape[-3:])
        pieces = plan.pieces(axes)
        whole = len(pieces) == 1 and pieces[0][:2] == (slice(0, given.q.shape[0]), slice(0, axes.Q))
        return cls(request, pieces, given, bias, whole)

    def flat(self, x: Tensor) -> Tensor:
        """An array (..., H, Q[, E]) with its leading axes as one."""
        x = x.reshape(-1, *x.shape[len(self.request.axes.lead) :])
        return readable(x, self.given.q.shape[-1]) if x.ndim == 4 else x

    def shaped(self, x: Tensor) -> Tensor:
        """With the leading axes of the call."""
        lead = self.request.axes.lead
        return x if len(lead) == 1 else x.reshape(*lead, *x.shape[1:])

    def read(self) -> tuple[Tensor, Tensor]:
        """The keys and the values that are read at all."""
        _, k, v = self.given
        stop = max((piece.k.stop for piece in self.pieces), default=0)
        return (k, v) if stop == k.shape[-2] else (k[..., :stop, :], v[..., :stop, :])

    def looked_at(self) -> Sequence[Tensor]:
        """What has to be tame: the keys, unless all queries are read with their opposites."""
        return () if all(map(self.few, self.pieces)) else self.read()[:1]

    def few(self, piece: Piece) -> bool:
        """Whether the queries of a piece are read with their opposites."""
        axes = self.request.axes
        Q, K = (span.stop - span.start for span in (piece.q, piece.k))
        return are_few(Q, axes.H // axes.G, K, causal=piece.causal)

    def sees(self, flags: Tensor) -> Tensor:
        """Of flags of keys (B, G, K), which queries see one: (B, H, Q)."""
        axes = self.request.axes
        found = flags.new_zeros((*flags.shape[:2], axes.Q))
        for piece in self.pieces:
            found[piece.items, :, piece.q] |= _of_queries(piece, flags[piece.items, :, piece.k])
        return found.repeat_interleave(axes.H // axes.G, 1)

    def without(self, bad: Tensor) -> tuple[Operands, Tensor]:
        """0 for keys and values that are bad (B, G, K) or hidden, and the rows (B, H, Q) that see a bad one."""
        unread = bad
        if self.bias is not None:
            hidden = self.bias[:, :, 0] != 0
            bad, unread = bad & ~hidden, bad | hidden
        q, *of_keys = self.given
        return Operands(q, *(x.masked_fill(unread[..., None], 0.0) for x in of_keys)), self.sees(bad)

    def attended(self, operands: Operands) -> Results:
        """By the fused operation."""
        results = self._of_piece(self.pieces[0], operands) if self.whole else self._of_pieces(operands)
        E = self.request.axes.E
        return results if results.out.shape[-1] == E else results._replace(out=results.out[..., :E])

    def _of_pieces(self, operands: Operands) -> Results:
        q = operands.q
        out, lse = q.new_zeros(q.shape), q.new_full(q.shape[:-1], -math.inf)
        doubt = None
        for piece in self.pieces:
            rows = piece.rows
            part = self._of_piece(piece, operands)
            if part.doubt is not None:
                doubt = torch.zeros_like(lse, dtype=torch.bool) if doubt is None else doubt
                doubt[rows] |= part.doubt
            merged = _merged((out[rows], lse[rows]), part[:2]) if piece.causal and piece.k.start else part[:2]
            out[rows], lse[rows] = merged
        return Results(out, lse, doubt)

    def _of_piece(self, piece: Piece, operands: Operands) -> Results:
        bias = self._bias(piece)
        scale, few = float(self.request.scale), self.few(piece)
        q, k, v = self._cut(piece, operands)
        results = fused(q, k, v, scale, bias, causal=piece.causal, few=few)
        if bias is None:
            return results
        out, lse, doubt = results
        seen = _of_queries(piece, bias[:, :, 0] == 0)
        return Results(out, lse.masked_fill(~seen, -math.inf), None if doubt is None else doubt & seen)

    def pulled(self, operands: Operands, g: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, ...]:
        """The gradients of q, k and v; rows whose lse is infinite add nothing."""
        if self.bias is not None or not self.whole:
            lse = lse.masked_fill(lse == -math.inf, math.inf)
        if self.whole and self.pieces[0].k == slice(0, operands.k.shape[-2]):
            (piece,) = self.pieces
            return pull(g, *operands, out, lse, 0.0, piece.causal, **self._options(piece))  # type: ignore[no-any-return]
        found = tuple(x.new_zeros(x.shape) for x in operands)
        for piece in self.pieces:
            rows, keys = piece.rows, (piece.items, slice(None), piece.k)
            cut, options = self._cut(piece, operands), self._options(piece)
            part = pull(g[rows], *cut, out[rows], lse[rows], 0.0, piece.causal, **options)
            for x, place, of_part in zip(found, (rows, keys, keys), part, strict=True):
                x[place] += of_part
        return found

    def named(self, gradients: Sequence[Tensor]) -> dict[str, Tensor]:
        """In the shapes of q, k and v."""
        of = {"q": self.request.q, "k": self.request.k, "v": self.request.v}
        shaped = zip(of, of.values(), map(self.shaped, gradients), strict=True)
        return {name: summed_to(x[..., : given.shape[-1]], tuple(given.shape)) for name, given, x in shaped}

    def _cut(self, piece: Piece, operands: Operands) -> Sequence[Tensor]:
        q, k, v = operands
        if self.whole and piece.k.stop == k.shape[-2]:
            return operands
        keys = piece.items, slice(None), piece.k
        return q[piece.rows], k[keys], v[keys]

    def _options(self, piece: Piece) -> dict[str, Any]:
        return {"scale": float(self.request.scale), "attn_mask": self._bias(piece)}

    def _bias(self, piece: Piece) -> Tensor | None:
        return None if self.bias is None else self.bias[piece.items, ..., piece.k]


def operands_of(request: Request) -> Operands:
    """The arrays of a call."""
    lead, width = request.axes.lead, max(request.axes.D, request.axes.E)
    return Operands(*[_flat(x, lead, width) for x in (request.q, request.k, request.v)])


def bias_of(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores so that only keys that are seen count."""
    # The bits of -inf, or none: to choose by flags in no order takes ten times as long as arithmetic.
    integers, infinity = _BITS[dtype]
    return seen.to(integers, memory_format=torch.contiguous_format).sub_(1).bitwise_and_(infinity).view(dtype)


_BITS = {torch.float32: (torch.int32, -(2**23)), torch.float64: (torch.int64, -(2**52))}


def are_few(Q: int, heads: int, K: int, *, causal: bool) -> bool:
    """Whether so many queries of a group of heads are read with their opposites, which notice infinite keys.

    Where they are not, the keys are looked at.
    """
    return not causal and Q * heads <= _FEW and K >= _MANY


def fused(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None = None, *, causal: bool, few: bool
) -> Results:
    """One call of the fused operation, or those of `in_halves`."""
    if few:
        stacked = q.reshape(*k.shape[:2], -1, q.shape[-1])
        n = stacked.shape[-2]
        out, mirrored = attend(torch.cat([stacked, -stacked], -2), k, v, scale=scale, attn_mask=bias)
        out, lse = out[..., :n, :].reshape(q.shape), mirrored[..., :n].reshape(q.shape[:-1])
        return Results(out, lse, _doubt(out, lse, mirrored))
    if bias is not None or not is_halved(q.shape[-2], k.shape[-2], causal=causal):
        out, lse = attend(q, k, v, 0.0, causal, scale=scale, attn_mask=bias)
        return Results(out, lse, _doubt(out, lse, lse))
    doubts = []

    def looked_at(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> tuple[Tensor, Tensor]:
        out, lse, doubt = fused(q, k, v, scale, causal=is_causal, few=False)
        doubts.append(torch.zeros_like(lse, dtype=torch.bool) if doubt is None else doubt)
        return out, lse

    out, lse = in_halves(looked_at, q, k, v)
    first, *later = doubts
    doubt = torch.cat([first, later[0] | later[1]], -1)
    return Results(out, lse, doubt if bool(doubt.any()) else None)


def _doubt(out: Tensor, lse: Tensor, mirrored: Tensor) -> Tensor | None:
    # The operation gives lse = 0 and out = 0 to a row all of whose scores are -inf.
    least, most = torch.aminmax(mirrored)
    if least.item() > 0 and most.item() < math.inf:
        return None
    size = mirrored.abs()
    if bool(((size > 0) & (size < math.inf)).all()):
        return None
    return ~(lse.abs() < math.inf) | ((lse == 0) & (out == 0).all(-1))


def is_halved(Q: int, K: int, *, causal: bool) -> bool:
    """Whether a call without a bias is in halves: of 512 keys the operation computes what it then hides, too."""
    return causal and _HALVED[0] <= K <= Q <= _HALVED[1]


_HALVED = 384, 512  # shorter ones take as long in pieces; of longer ones the operation leaves out whole blocks itself


def in_halves(attend: Callable[..., tuple[Tensor, Tensor]], q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(out, lse) of a causal call, by three calls of a half as many queries and keys."""
    middle = k.shape[-2] // 2
    (q0, q1), (k0, k1), (v0, v1) = ((x[:, :, :middle], x[:, :, middle:]) for x in (q, k, v))
    out, lse = q.new_empty(q.shape), q.new_empty(q.shape[:-1])
    out[:, :, :middle], lse[:, :, :middle] = attend(q0, k0, v0, is_causal=True)
    (a, of_a), (b, of_b) = attend(q1, k0, v0, is_causal=False), attend(q1, k1, v1, is_causal=True)
    # As `_merged`, but a row of keys that are all hidden is not among these; and every array that is made costs time.
    more, rows = of_a - of_b, out[:, :, middle:]
    torch.mul(a, more.sigmoid()[..., None], out=rows)
    rows.addcmul_(b, more.neg_().sigmoid_()[..., None])
    lse[:, :, middle:] = torch.logaddexp(of_a, of_b)
    return out, lse


def are_tame(*arrays: Tensor) -> bool:
    """Whether every entry is below `LARGEST`: the sum of squares is no less than that of the greatest of them."""
    return all(_of_squares(x) <= _LARGEST_SQUARE for x in arrays)


_LARGEST_SQUARE = LARGEST**2


def _of_squares(x: Tensor) -> float:
    if x.numel() > _LONG and x.is_contiguous():
        flat = x.view(-1)
        return float(torch.dot(flat, flat))
    return float(torch.linalg.vector_norm(x)) ** 2


_LONG = 2**12  # the product is the faster of the two; of fewer, one operation is faster than two


def _of_queries(piece: Piece, flags: Tensor) -> Tensor:
    """Of flags of a piece's keys (b, x, k), which of its queries see one: (b, x, q)."""
    if not piece.causal:
        return flags.any(-1, keepdim=True)
    Q, so_far = piece.q.stop - piece.q.start, flags.cumsum(-1) > 0
    return torch.cat([so_far[..., :Q], so_far[..., -1:].expand(*flags.shape[:2], max(0, Q - flags.shape[-1]))], -1)


def _flat(x: Tensor, lead: tuple[int, ...], width: int) -> Tensor:
    """(..., a, b, c) -> (B, a, b, width), in the dtype of the computation."""
    if x.dtype.itemsize < 4:
        x = x.float()
    if len(lead) != 1 or x.shape[:-3] != lead:
        x = x.expand(*lead, *x.shape[-3:]).reshape(-1, *x.shape[-3:])
    return readable(x, width)


def readable(x: Tensor, width: int) -> Tensor:
    """So wide, and with steps of 1 along the last axis: the operation takes both for granted."""
    if x.shape[-1] != width:
        return torch.nn.functional.pad(x, (0, width - x.shape[-1]))
    # Of entries that are alone in their rows any step is 1; what lies otherwise may be rounded otherwise.
    return x if x.stride(-1) == 1 and width > 1 else x.contiguous()


def _merged(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The results over two disjoint sets of keys as one.

    Shares that are made of the lse of both would not add up to 1 where that is large, and has lost its small part.
    """
    more = torch.where(one[1] == other[1], 0.0, one[1] - other[1])
    first, second = (out * share[..., None] for (out, _), share in ((one, more.sigmoid()), (other, (-more).sigmoid())))
    return first + second, torch.logaddexp(one[1], other[1])
