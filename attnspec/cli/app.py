"""The commands, put together; a refusal of attnspec becomes one line and exit code 1."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import typer

from ..errors import AttnspecError
from .backends import backends
from .bench import bench
from .conformance import conformance
from .demo import demo
from .embed import embed

__all__ = ["app"]


def _refusing(command: Callable[..., None]) -> Callable[..., None]:
    @wraps(command)
    def run(*args: Any, **options: Any) -> None:
        try:
            command(*args, **options)
        except (AttnspecError, OSError, UnicodeError) as error:
            print(f"attnspec: {error}", file=sys.stderr)
            raise typer.Exit(1) from None

    return run


app = typer.Typer(
    help="What attention means: see it, run it, and find out which frameworks can.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (backends, bench, embed, demo):
    app.command()(_refusing(_command))
app.add_typer(conformance, name="conformance")
