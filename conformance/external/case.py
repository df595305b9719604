"""A test that somebody else wrote, asked of attnspec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """`check()` raises AssertionError where attnspec's answer is not the one that the authors of the test want."""

    name: str
    check: Callable[[], None] = field(repr=False)

    def fails(self) -> bool:
        """Whether the answer is not the wanted one."""
        try:
            self.check()
        except AssertionError:
            return True
        return False

    def __str__(self) -> str:
        return self.name
