"""Judge attention in any language: every call written to files, and a verdict on the answers that a program wrote.

`export` writes `calls.json` and one safetensors file a call; a program reads them and writes one safetensors file an
answer; `judge` makes of them the report that a live run makes. The format is described in docs/spec/exchange.md and by
the JSON Schemas beside this module.
"""

from __future__ import annotations

import json
from pathlib import Path

from ..drawn import CASES
from ..verdict import Report, judge_all
from .answers import Answers
from .calls import ExchangeError, Export, check

__all__ = ["ExchangeError", "export", "judge"]


def export(directory: str | Path, *, seed: int = 0, cases: int = CASES) -> None:
    """Write every call of every law, with `cases` calls drawn from the seed, into a new or empty directory.

    The same seed writes the same bytes on any machine.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        msg = f"{folder} is not empty; calls are exported into a directory of their own"
        raise ExchangeError(msg)
    made = Export.of(seed, cases)
    for name, content in made.files.items():
        (folder / name).write_bytes(content)
    (folder / "calls.json").write_text(json.dumps(made.table, indent=1) + "\n", "utf-8", newline="\n")


def judge(directory: str | Path, results: str | Path) -> Report:
    """The report on the answers in `results` to the calls in `directory`.

    The trials are made again from the seed in `calls.json`. Raises `ExchangeError` where that or a call's file is not
    what `export` wrote. An answer that is missing is not judged; one that cannot be read is a failure.
    """
    made = check(Path(directory))
    answers = Answers(Path(results), made)
    return judge_all(answers, made.laws, seed=made.table["seed"], cases=made.table["cases"])
