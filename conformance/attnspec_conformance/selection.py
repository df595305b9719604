"""Which clauses a run is about: those that a name or the beginning of one means, of one level or of both."""

from __future__ import annotations

import re
from collections.abc import Iterable

from attnspec.errors import OptionError

from .clauses import CLAUSES

LEVELS = ("required", "extended")


def select(names: Iterable[str] = (), level: str | None = None) -> tuple[str, ...]:
    """The clauses: MASK-6 means MASK-6a, 6b and 6c, MASK all of that family.

    Raises OptionError for a name that no clause begins with, a level that there is not, and where nothing is left.
    """
    wanted = [name.upper() for name in names]
    for name in wanted:
        if not any(_means(name, clause) for clause in CLAUSES):
            msg = f"no clause {name!r}; there are {', '.join(CLAUSES)}; a family (MASK) means all of its clauses."
            raise OptionError(msg)
    if level is not None and level.lower() not in LEVELS:
        msg = f"no level {level!r}; choose one of {', '.join(LEVELS)}."
        raise OptionError(msg)
    found = tuple(
        identifier
        for identifier, clause in CLAUSES.items()
        if (not wanted or any(_means(name, identifier) for name in wanted))
        and (level is None or clause.level == level.upper())
    )
    if not found:
        named = [clause for clause in CLAUSES if any(_means(name, clause) for name in wanted)]
        msg = f"none of {', '.join(named)} is {str(level).upper()}; leave out the level, or choose other clauses."
        raise OptionError(msg)
    return found


def _means(name: str, clause: str) -> bool:
    """A family means its clauses, a clause that has parts its parts."""
    return re.fullmatch(rf"{re.escape(name)}(-\d+[A-Z]?|[A-Z])?", clause.upper()) is not None
