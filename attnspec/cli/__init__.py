"""The command `attnspec`. Needs the extra `cli`; nothing else in attnspec imports this package."""

from __future__ import annotations

import sys

__all__ = ["main"]

LIBRARIES = {"typer", "rich", "click"}


def main() -> None:
    """Run the command line."""
    try:
        from .app import app
    except ModuleNotFoundError as error:
        if error.name not in LIBRARIES:
            raise
        print(f"the attnspec command needs {error.name!r}: pip install 'attnspec[cli]'", file=sys.stderr)
        raise SystemExit(1) from None
    app(prog_name="attnspec")
