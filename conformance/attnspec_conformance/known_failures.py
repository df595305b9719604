"""What a backend's own package says of the tests that it fails: `known_failures.toml` beside its module.

    [name_of_the_law_or_test]
    kind = "todo"          # ours to fix; "upstream": theirs, needs `link`; "never": by design
    reason = "..."

The first two are strict: they shout when they start to pass.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnspec import registry

KINDS = {"todo": "ours to fix", "upstream": "theirs to fix", "never": "by design"}


class InvalidEntryError(ValueError):
    """An entry that says too little, or names nothing."""


@dataclass(frozen=True)
class KnownFailure:
    """One test that is known to fail, and why."""

    test: str
    kind: str
    why: str


def read(backend: Any) -> list[KnownFailure]:
    """The entries of the package that the backend's module lies in; none for a module without a package."""
    module = registry.load(backend.name)
    package, file = module.__package__, module.__file__
    path = Path(file).with_name("known_failures.toml") if package and file else None
    if path is None or not path.is_file():
        return []
    return [_entry(path, test, entry) for test, entry in tomllib.loads(path.read_text("utf-8")).items()]


def _entry(path: Path, test: str, entry: dict[str, str]) -> KnownFailure:
    kind, reason, link = (entry.get(field, "") for field in ("kind", "reason", "link"))
    if kind not in KINDS or not reason or (kind == "upstream") != bool(link):
        msg = (
            f"{path}: [{test}] needs kind = one of {', '.join(KINDS)}, a reason, and a link where and only where "
            f"the kind is upstream; got {entry}"
        )
        raise InvalidEntryError(msg)
    return KnownFailure(test, kind, f"{KINDS[kind]}: {reason}{f' ({link})' if link else ''}")
