"""Whose attention is judged: a folder for each library, with what it is asked through and what it promises.

`libraries/<library>/peers.toml` describes the peers of one library, `constraints.txt` beside it pins its environment,
and `<library>_subjects.py` has the subjects. `choices.toml` names what is attnspec's own choice.

    ["torch.sdpa"]                       # what tables and commands call the peer
    title = "torch.nn.functional.scaled_dot_product_attention"
    subject = "torch_subjects:sdpa"      # as `attnspec conformance --subject` takes it, in the library's folder
    documentation = "https://..."        # what it is judged by
    distributions = ["torch"]            # whose versions the table shows
    [ "torch.sdpa".differs ]             # a clause, a law or a trial of it, and what its documentation says instead
    "MASK-7" = "..."
    "any_two_masks_compose[3]" = "..."
    [ "torch.sdpa".promises ]            # a choice of attnspec's that this documentation makes too
    "MASK-5" = "..."
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from attnspec_conformance.clauses import CLAUSES
from attnspec_conformance.drawn import drawn_laws
from attnspec_conformance.laws import LAWS

HERE = Path(__file__).parent
# A level down, since the names of its folders would be taken for the libraries where those are not installed.
LIBRARIES = HERE / "libraries"
# Functions of whole arrays divide nothing, so the laws of shards are not for them.
ASKED = {name: law for name, law in LAWS.items() if "shards" not in law.needs}
NAMES = {*CLAUSES, *LAWS, *(law.name for law in drawn_laws(0, 1))}


@dataclass(frozen=True)
class Peer:
    """One way to ask one library for attention, and what its documentation says where that is not the clauses."""

    name: str
    library: str
    title: str
    subject: str
    documentation: str
    distributions: tuple[str, ...]
    differs: Mapping[str, str]
    promises: Mapping[str, str]


def libraries() -> list[str]:
    """The folders that describe peers."""
    return sorted(path.parent.name for path in LIBRARIES.glob("*/peers.toml"))


def peers(library: str) -> list[Peer]:
    """The peers of a library, in the order of its file. Raises ValueError where the file cannot be meant so."""
    path = LIBRARIES / library / "peers.toml"
    entries = tomllib.loads(path.read_text("utf-8"))
    return [_peer(path, library, name, dict(entry)) for name, entry in entries.items()]


@dataclass(frozen=True)
class Choices:
    """What attnspec chose and others may choose otherwise.

    trials
        By what others may do ("open", "undefined", "half" or "dtype"), clauses and laws, each with the choice.
    rows
        Clauses about rows of an answer.
    """

    trials: Mapping[str, Mapping[str, str]]
    rows: Mapping[str, str]


def choices() -> Choices:
    """Those of choices.toml."""
    path = HERE / "choices.toml"
    tables = {kind: _claims(path, kind, table) for kind, table in tomllib.loads(path.read_text("utf-8")).items()}
    return Choices(rows=tables.pop("rows"), trials=tables)


def _peer(path: Path, library: str, name: str, entry: dict[str, object]) -> Peer:
    claims = {kind: _claims(path, f"{name}.{kind}", entry.pop(kind, {})) for kind in ("differs", "promises")}
    both = claims["differs"].keys() & claims["promises"].keys()
    wanted = {"title", "subject", "documentation", "distributions"}
    if both or entry.keys() != wanted:
        wrong = f"{', '.join(sorted(both))} both differs and is promised" if both else f"has {', '.join(entry)}"
        msg = f"{path}: {name} {wrong}; a peer has {', '.join(sorted(wanted))}, and may have differs and promises"
        raise ValueError(msg)
    return Peer(
        name=name,
        library=library,
        title=str(entry["title"]),
        subject=str(entry["subject"]),
        documentation=str(entry["documentation"]),
        distributions=tuple(entry["distributions"]),  # type: ignore[arg-type]
        **claims,
    )


def _claims(path: Path, where: str, table: object) -> dict[str, str]:
    """A table from clauses or laws to a reason, which is compulsory."""
    claims = dict(table)  # type: ignore[call-overload]
    for name, reason in claims.items():
        if re.sub(r"\[\d+\]$", "", name) not in NAMES:
            msg = f"{path}: {where} names {name}, which is neither a clause nor a law"
            raise ValueError(msg)
        if not isinstance(reason, str) or not reason.strip():
            msg = f"{path}: {where} gives no reason for {name}"
            raise ValueError(msg)
    return claims
