"""Judge attention that is not attnspec's: `load("pkg.mod:thing")` makes a subject of it.

`thing` is one of

- an `adapters.Adapter`, which says what a kernel takes and how: the way for most kernels;
- a subject (an object, or a class to call without arguments): `name`, `capabilities`, `supports(call)` and
  `forward(call)`, all of it its author's;
- a callable with the signature of `attnspec.attention`, rules and `Dropout` included, or a module or object that has
  such a callable as `attention` and, if at all, `attention_with_lse` and `attention_weights`. A parameter that the
  signature lacks makes the calls that use it unsupported.

A callable takes the arrays of one framework: that of the registered backend named after an at sign, as in
`pkg.mod:thing@torch`, or by its attribute `attnspec_backend`; otherwise NumPy's. Its attribute `attnspec_capabilities`
says what it has of float64, float16, bfloat16, vjp, shards and shards_to_the_bit; without it, the dtypes of the
backend. `attnspec_shards(along, n)` is such a callable, module or object for calls that are divided among n workers
along the "sequence", the "keys", the "heads" or the "batch", or None where they cannot be.

A refusal is a ValueError or a TypeError (adapters may name more). It is judged for being one; the text of a refusal is
a promise of attnspec's own functions alone.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from . import placement
from .adapted import Adapted
from .adapters import Adapter
from .operands import FUNCTIONS, asked_of
from .subjects import BackendSubject, Subject
from .trials import Call, Shards

REFUSALS = (ValueError, TypeError)
_DTYPES = frozenset({"float64", "float16", "bfloat16"})


def load(spec: str) -> Subject:
    """The subject that a spec names. Raises ValueError where it names nothing that can be judged."""
    path, _, backend = spec.partition("@")
    thing = _find(path, spec)
    if isinstance(thing, Adapter):
        return Adapted(thing)
    if inspect.isclass(thing):
        thing = thing()
    if all(hasattr(thing, part) for part in ("name", "capabilities", "supports", "forward")):
        return thing  # type: ignore[no-any-return]
    functions = _functions(thing)
    if not functions:
        msg = (
            f"{spec}: {type(thing).__name__} is no adapter, no subject (name, capabilities, supports, forward) and no "
            "callable, and has no callable named attention"
        )
        raise ValueError(msg)
    return FunctionSubject(path, functions, backend or getattr(thing, "attnspec_backend", "numpy"), thing)


class FunctionSubject(BackendSubject):
    """Functions with attnspec's signatures, on the arrays of a backend."""

    portable = False
    refusals = REFUSALS
    own_words = True

    def __init__(self, name: str, functions: Mapping[str, Callable[..., Any]], backend: str, thing: Any = None) -> None:
        super().__init__(placement.load(backend))
        self.name = name
        self.functions = functions
        self._shards = getattr(thing, "attnspec_shards", lambda along, n: None)
        self.capabilities = frozenset(
            getattr(thing, "attnspec_capabilities", _DTYPES & frozenset(self.backend.capabilities))
        )

    def supports(self, call: Call) -> str | None:
        """What the functions there are, their parameters and their dtypes allow."""
        wanted = asked_of(call)
        functions = self.functions if call.shards is None else self.divided(call.shards)
        if wanted not in functions:
            divided = "" if call.shards is None else f" along the {call.shards.along} among {call.shards.n}"
            return f"{self.name} has no {FUNCTIONS[wanted].__name__}{divided}"
        parameters = inspect.signature(functions[wanted]).parameters
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            lacking = [name for name in _options(call) if name not in parameters]
            if lacking:
                return f"{self.name} takes no {', '.join(lacking)}"
        return super().supports(call)

    def divided(self, shards: Shards) -> Mapping[str, Callable[..., Any]]:
        """Those that it has for such shards, if any."""
        thing = self._shards(shards.along, shards.n)
        return {} if thing is None else _functions(thing)

    def _rounds_weights(self, q: Any) -> bool:
        return False


def _options(call: Call) -> list[str]:
    """The keyword arguments that a call uses."""
    names = ["mask", "bias", "scale", "softcap", "sink", "q_positions", "k_positions"]
    if call.want != "weights":
        names.append("dropout")
    used = [name for name in names if getattr(call, name) is not None]
    return used if call.implementation == "auto" else [*used, "implementation"]


def _functions(thing: Any) -> dict[str, Callable[..., Any]]:
    attention = getattr(thing, "attention", thing)
    found = {"out": attention} | {
        want: getattr(thing, function.__name__)
        for want, function in FUNCTIONS.items()
        if hasattr(thing, function.__name__)
    }
    return found if callable(attention) else {}


def _find(path: str, spec: str) -> Any:
    """The module, or the object in it. The current folder is looked in as well, as `python -m` does."""
    module, _, name = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        thing = import_module(module)
    except ImportError as error:
        msg = f"{spec}: cannot import {module}: {error}. A subject is named pkg.mod:thing"
        raise ValueError(msg) from error
    for part in filter(None, name.split(".")):
        if not hasattr(thing, part):
            msg = f"{spec}: {module} has no {name}. A subject is named pkg.mod:thing"
            raise ValueError(msg)
        thing = getattr(thing, part)
    return thing
