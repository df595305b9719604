"""What is measured: the cases, and the arrays and rules of one call in NumPy, from which every subject starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import alibi
from ..backend import choose
from ..errors import OptionError
from .bench_sizes import Size, parsed

__all__ = ["CASES", "RATE", "Case", "Problem", "named", "problem"]

RATE = 0.1
LONG = "1x8x512x64,1x8x1024x64,1x8x2048x64,1x8x4096x64"
DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class Case:
    """A kind of call.

    what
        "attention"; "gradients": forward and backward; "dropout": the mask alone; "import": no call at all.
    mask
        "causal", "padding" or "boolean".
    fit
        What becomes of the size that the user gives.
    """

    name: str
    says: str
    sizes: str
    what: str = "attention"
    mask: str | None = None
    biased: bool = False
    fit: Callable[[Size], Size] = lambda size: size

    def sized(self, given: list[Size] | None) -> list[Size]:
        """The sizes to measure, each once."""
        return list(dict.fromkeys(map(self.fit, parsed(self.sizes) if given is None else given)))


def _one_query(size: Size) -> Size:
    return size._replace(Q=1)


def _groups(size: Size) -> Size:
    """A quarter as many key and value heads, or as near to it as divides H."""
    if size.G < size.H or size.H == 1:
        return size
    return size._replace(G=max(n for n in range(1, size.H) if size.H % n == 0 and n <= max(1, size.H // 4)))


CASES = {
    case.name: case
    for case in (
        Case("plain", "every key visible", LONG),
        Case("causal", "keys up to the query's own place", LONG, mask="causal"),
        Case("padding", "the last quarter of the keys is padding", "1x8x2048x64", mask="padding"),
        Case("boolean", "an array that hides half of all pairs at random", "1x8x2048x64", mask="boolean"),
        Case("alibi", "a linear bias for each head", "1x8x2048x64", biased=True),
        Case("grouped", "four query heads share a key/value head, causal", "1x8x2048x64", mask="causal", fit=_groups),
        Case("decode", "one query", "Q1 K4096,Q1 K32768", fit=_one_query),
        Case("grouped-decode", "one query, four query heads share a key/value head", "Q1 K4096,Q1 K32768",
             fit=lambda size: _groups(_one_query(size))),
        Case("gradients", "forward and backward", "1x8x512x64,1x8x1024x64,1x8x2048x64", what="gradients"),
        Case("dropout", f"the mask of a dropout of {RATE} alone", "1x1x1024x64", what="dropout"),
        Case("overhead", "so small that the call itself is what costs", "1x1x8x8,2x8x64x64"),
        Case("import", "a process that imports", "1x1x1x1", what="import", fit=lambda size: Size(1, 1, 1, 1, 1, 1, 1)),
    )
}  # fmt: skip


def named(text: str) -> list[Case]:
    """The cases of a list with commas, or "all". Raises `errors.OptionError` for a name that none has."""
    names = list(CASES) if text == "all" else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in CASES:
            msg = f"no case {name!r}. There are {', '.join(CASES)}, and `all`."
            raise OptionError(msg)
    return [CASES[name] for name in names]


@dataclass(frozen=True)
class Problem:
    """One call: arrays of NumPy, and what is visible and added.

    q (B, H, Q, D), k (B, G, K, D), v (B, G, K, E), and g, a cotangent of the output (B, H, Q, E).
    lengths (B,), pairs (Q, K) and slopes (H,) are None where the case has none.
    """

    case: Case
    size: Size
    dtype: str
    q: Any
    k: Any
    v: Any
    g: Any
    causal: bool = False
    lengths: Any = None
    pairs: Any = None
    slopes: tuple[float, ...] | None = None

    def visible(self, rows: slice = slice(None)) -> Any:
        """The mask of those queries as an array (B or 1, 1, rows, K), or None."""
        np = choose("numpy").xp
        i, j = np.arange(self.size.Q)[rows, None], np.arange(self.size.K)
        if self.causal:
            return (j <= i)[None, None]
        if self.lengths is not None:
            return np.broadcast_to(j < self.lengths[:, None, None, None], (self.size.B, 1, len(i), self.size.K))
        return None if self.pairs is None else self.pairs[None, None, rows]

    def bias(self, rows: slice = slice(None)) -> Any:
        """What is added for those queries as an array (1, H, rows, K), or None."""
        if self.slopes is None:
            return None
        np = choose("numpy").xp
        distance = np.abs(np.arange(self.size.K) - np.arange(self.size.Q)[rows, None])
        return (-np.asarray(self.slopes)[None, :, None, None] * distance).astype(self.dtype)


def problem(case: Case, size: Size, dtype: str = "float32") -> Problem:
    """Normal numbers from a fixed seed. Raises `errors.OptionError` for a dtype that is not measured."""
    if dtype not in DTYPES:
        msg = f"no dtype {dtype!r} here. Choose one of {', '.join(DTYPES)}."
        raise OptionError(msg)
    np = choose("numpy").xp
    rng = np.random.default_rng(0)
    B, H, G, Q, K, D, E = size
    if case.what in ("dropout", "import"):
        return Problem(case, size, dtype, *[np.zeros(1, dtype=dtype)] * 4)
    shapes = ((B, H, Q, D), (B, G, K, D), (B, G, K, E), (B, H, Q, E))
    q, k, v, g = (rng.standard_normal(shape, dtype=dtype) for shape in shapes)
    pairs = None
    if case.mask == "boolean":
        pairs = rng.random((Q, K), dtype="float32") < 0.5
        pairs[:, 0] = True  # libraries disagree about a query that sees nothing
    return Problem(
        case, size, dtype, q, k, v, g,
        causal=case.mask == "causal",
        lengths=np.full(B, -(-3 * K // 4)) if case.mask == "padding" else None,
        pairs=pairs,
        slopes=_slopes(H) if case.biased else None,
    )  # fmt: skip


def _slopes(H: int) -> tuple[float, ...]:
    """The published ones."""
    rule: Any = alibi(H)
    return tuple(rule.slopes)
