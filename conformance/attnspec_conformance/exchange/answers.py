"""The answers that a program wrote, as a subject."""

from __future__ import annotations

import json
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from ..judges import asked
from ..subjects import MAY_LACK, NotJudgedError, dtype_of
from ..trials import OF_SUBJECTS, Call, Result
from . import tensors
from .calls import ExchangeError, Export

USUAL = ("float64", "float16", "bfloat16", "vjp")
KNOWN = (*USUAL, *OF_SUBJECTS)


class Answers:
    """A directory with `<id>.safetensors`, or `<id>.json` where a call is refused or unsupported, and `subject.json`.

    Without `subject.json` the name is the directory's, and dtypes and gradients are taken to be there. Whoever divides
    calls among workers has to say so: one that cannot would answer all the same.
    """

    live = False

    def __init__(self, results: Path, made: Export) -> None:
        self._results = results
        self._identifiers = made.identifiers
        self._calls = [call for law in made.laws for trial in law.all_trials for call in trial.calls]
        if not results.is_dir():
            msg = f"{results} is no folder; the answers are the files of one"
            raise ExchangeError(msg)
        path = results / "subject.json"
        itself = _itself(path) if path.is_file() else {}
        self.name = itself.get("name", results.name)
        self.capabilities: AbstractSet[str] = frozenset(itself.get("capabilities", USUAL))
        self._lacks = frozenset(itself.get("lacks", ()))
        self._rounds_weights = itself.get("rounds_weights", False)
        self._base_two = itself.get("base_two", False)

    def supports(self, call: Call) -> str | None:
        """The reason that the program wrote. Of a call that was not exported, what is true of all like it."""
        if id(call) in self._identifiers:
            return self._reason(self._identifiers[id(call)])
        return self._of_all_like(call)

    def forward(self, call: Call) -> Result:
        """The answer, or the refusal. Raises `ExchangeError`, with the file's name, where it cannot be read."""
        name = self._identifiers[id(call)]
        refusal = self._results / f"{name}.json"
        if refusal.is_file():
            answer = _object(refusal)
            if answer.get("error") != "refused":
                msg = f"{refusal} has the error {answer.get('error')!r}, wanted 'refused' or 'unsupported'"
                raise ExchangeError(msg)
            return Result(error="refused", message=str(answer.get("reason", "")), own_words=True)
        path = self._results / f"{name}.safetensors"
        try:
            arrays = tensors.decode(path.read_bytes())
        except ValueError as error:
            msg = f"{path}: {error}"
            raise ExchangeError(msg) from error
        parts = {part: arrays[part] for part in asked(call) if part in arrays}
        return Result(
            **{part: x for part, (x, _) in parts.items()},
            dtype=dtype_of(dtype for part, (_, dtype) in parts.items() if part != "lse"),
            lse_dtype=parts["lse"][1] if "lse" in parts else "",
            rounds_weights=self._rounds_weights,
            base_two=self._base_two,
            own_words=True,
            lacks=self._lacks & frozenset(asked(call)),
        )

    def _reason(self, name: str) -> str | None:
        path = self._results / f"{name}.json"
        if path.is_file():
            answer = _object(path)
            return str(answer.get("reason", "no reason given")) if answer.get("error") == "unsupported" else None
        if not (self._results / f"{name}.safetensors").is_file():
            msg = f"no answer: {name}.safetensors is missing"
            raise NotJudgedError(msg)
        return None

    def _of_all_like(self, call: Call) -> str | None:
        like = {
            self._identifiers[id(other)]
            for other in self._calls
            if other.dtype == call.dtype and (other.want == "gradients") == (call.want == "gradients")
        }
        try:
            reasons = [self._reason(name) for name in sorted(like)]
        except NotJudgedError:
            return None
        return reasons[0] if reasons and all(reasons) else None


def _itself(path: Path) -> dict[str, Any]:
    """What a program says of itself. Raises `ExchangeError` for what subject.schema.json does not allow."""
    found = _object(path)
    words = {"capabilities": KNOWN, "lacks": sorted(MAY_LACK)}
    kinds = {"name": (str, "a string"), "rounds_weights": (bool, "true or false"), "base_two": (bool, "true or false")}
    for name, value in found.items():
        if name in words:
            fits = isinstance(value, list) and all(word in words[name] for word in value)
            wanted = f"a list of {', '.join(words[name])}"
        elif name in kinds:
            kind, wanted = kinds[name]
            fits = isinstance(value, kind)
        else:
            continue
        if not fits:
            msg = f"{path} has {name} {value!r}, wanted {wanted}"
            raise ExchangeError(msg)
    return found


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        msg = f"{path} is no JSON: {error}"
        raise ExchangeError(msg) from error
    if not isinstance(found, dict):
        msg = f"{path} holds no JSON object"
        raise ExchangeError(msg)
    return found
