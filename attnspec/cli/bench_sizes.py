"""The axes of a measured call, as the command line spells them."""

from __future__ import annotations

import re
from typing import NamedTuple

from ..errors import OptionError

__all__ = ["Size", "parsed", "spelled"]

LETTERS = "BHGQKDE"
NEEDED = "Q"
FORMS = '"1x8x2048x64", which is BxHxNxD, or letters: "B1 H8 G2 Q2048 K2048 D64"'


class Size(NamedTuple):
    """q (B, H, Q, D), k (B, G, K, D), v (B, G, K, E)."""

    B: int
    H: int
    G: int
    Q: int
    K: int
    D: int
    E: int

    @property
    def scores(self) -> int:
        """How many scores there are without a mask."""
        return self.B * self.H * self.Q * self.K


def parsed(text: str) -> list[Size]:
    """The sizes of a list with commas.

    Of letters Q is compulsory; others are B1, H8, G as H, K as Q, D64 and E as D unless given.

    Examples
    --------
    >>> from attnspec.cli.bench_sizes import parsed
    >>> parsed("1x8x512x64, H6 G2 Q1 K4096")
    [Size(B=1, H=8, G=8, Q=512, K=512, D=64, E=64), Size(B=1, H=6, G=2, Q=1, K=4096, D=64, E=64)]
    """
    return [_one(part.strip()) for part in text.split(",")]


def spelled(size: Size) -> str:
    """The shortest form that `parsed` takes back."""
    if size.G == size.H and size.Q == size.K and size.D == size.E:
        return f"{size.B}x{size.H}x{size.Q}x{size.D}"
    letters = (f"{name}{length}" for name, length in size._asdict().items())
    alike = ({"G"} if size.G == size.H else set()) | ({"E"} if size.E == size.D else set())
    return " ".join(letter for letter in letters if letter[0] not in alike)


def _one(text: str) -> Size:
    if re.fullmatch(r"\d+x\d+x\d+x\d+", text):
        B, H, N, D = map(int, text.split("x"))
        return _checked(text, Size(B, H, H, N, N, D, D))
    words = text.split()
    found = {word[:1]: int(word[1:]) for word in words if re.fullmatch(rf"[{LETTERS}]\d+", word)}
    if len(found) != len(words) or NEEDED not in found:
        msg = f"no shape {text!r}. Write {FORMS}; Q is needed, the others have defaults."
        raise OptionError(msg)
    B, H, Q, D = found.get("B", 1), found.get("H", 8), found["Q"], found.get("D", 64)
    return _checked(text, Size(B, H, found.get("G", H), Q, found.get("K", Q), D, found.get("E", D)))


def _checked(text: str, size: Size) -> Size:
    if 0 in size or size.H % size.G:
        msg = f"shape {text!r}: every axis needs to be 1 or more, and H={size.H} a multiple of G={size.G}."
        raise OptionError(msg)
    return size
