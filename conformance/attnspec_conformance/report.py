"""The closing section of a run: for each backend, which clauses were judged, failed, or not reached."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from .clauses import CLAUSES

_FAILED = ("failed", "error")
_JUDGED = ("passed", "xfailed", "xpassed", *_FAILED)


def write(terminal: Any) -> None:
    """Write it to pytest's terminal reporter."""
    judged, failed = _tally(terminal.stats)
    if not judged:
        return
    terminal.write_sep("=", "clauses of attnspec")
    for name in sorted(judged):
        missing = [clause for clause in CLAUSES if clause not in judged[name]]
        terminal.write_line(
            f"{name}: {len(judged[name])} judged, {len(failed[name])} failed, {len(missing)} not judged"
        )
        for title, clauses in (("failed", sorted(failed[name])), ("not judged", missing)):
            if clauses:
                terminal.write_line(f"    {title}: {', '.join(clauses)}")


def _tally(stats: dict[str, list[Any]]) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    judged: dict[str, set[str]] = defaultdict(set)
    failed: dict[str, set[str]] = defaultdict(set)
    for outcome in _JUDGED:
        for one in stats.get(outcome, []):
            properties = dict(getattr(one, "user_properties", ()))
            name, clauses = properties.get("attnspec_backend"), properties.get("attnspec_clauses", ())
            if name:
                judged[name].update(clauses)
                if outcome in _FAILED:
                    failed[name].update(clauses)
    return judged, failed
