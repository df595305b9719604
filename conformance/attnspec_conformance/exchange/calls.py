"""The calls of all laws as files, and the table of them."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

import attnspec
from attnspec.errors import AttnspecError

from .. import masks, oracle_random
from ..drawn import drawn_laws
from ..laws import LAWS
from ..masks import Array
from ..trials import Call, Law
from . import tensors

SCHEMA = 2


class ExchangeError(AttnspecError, ValueError):
    """Files that were not exported by this version, or were changed since."""


@dataclass(frozen=True, eq=False)
class Export:
    """What is written: the table, the files, and which call has which identifier."""

    laws: tuple[Law, ...]
    table: dict[str, Any]
    files: dict[str, bytes]
    identifiers: dict[int, str]

    @classmethod
    @lru_cache(maxsize=1)
    def of(cls, seed: int, cases: int) -> Export:
        """Every call of every law. Calls that ask the same share an identifier."""
        laws = (*LAWS.values(), *drawn_laws(seed, cases))
        known: dict[bytes, str] = {}
        files: dict[str, bytes] = {}
        identifiers: dict[int, str] = {}
        calls, trials = [], []
        for law in laws:
            for number, trial in enumerate(law.all_trials):
                names = []
                for call in trial.calls:
                    content, options = encode(call)
                    key = content + json.dumps(options).encode()
                    if key not in known:
                        known[key] = name = f"{len(known):05d}"
                        files[f"{name}.safetensors"] = content
                        calls.append({"id": name, "sha256": sha256(content).hexdigest(), **options})
                    identifiers[id(call)] = known[key]
                    names.append(known[key])
                clauses = list(trial.clauses or law.clauses)
                needs = sorted(law.needs)
                trials.append({"law": law.name, "trial": number, "clauses": clauses, "needs": needs, "calls": names})
        version = attnspec.__version__
        table = {
            "schema": SCHEMA, "attnspec": version, "seed": seed, "cases": cases, "calls": calls, "trials": trials,
        }  # fmt: skip
        return cls(laws, table, files, identifiers)


def check(directory: Path) -> Export:
    """The export that a directory holds, made again and found to be the same. Raises `ExchangeError`."""
    path = directory / "calls.json"
    try:
        found = json.loads(path.read_text("utf-8"))
        schema, seed, cases = (found[name] for name in ("schema", "seed", "cases"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        msg = f"{path} is no table of exported calls ({type(error).__name__}: {error}); export writes one"
        raise ExchangeError(msg) from error
    if schema != SCHEMA or not (isinstance(seed, int) and isinstance(cases, int)):
        msg = f"{path} has schema {schema!r}, seed {seed!r} and cases {cases!r}; this version reads schema {SCHEMA}"
        raise ExchangeError(msg)
    made = Export.of(seed, cases)
    if found != made.table:
        msg = f"{path} is not what {made.table['attnspec']} exports for seed {seed}: it was written by "
        msg += f"{found.get('attnspec')} or changed{_first_difference(found, made.table)}. Export the calls again"
        raise ExchangeError(msg)
    for name, content in made.files.items():
        file = directory / name
        if not file.is_file() or file.read_bytes() != content:
            msg = f"{file} is {'changed' if file.is_file() else 'missing'}: its answer would be to another call"
            raise ExchangeError(msg)
    return made


def encode(call: Call) -> tuple[bytes, dict[str, Any]]:
    """The file of a call, and its entry in the table. The options stand in both."""
    arrays: dict[str, tuple[Array | None, str]] = {
        name: (getattr(call, name), call.dtype) for name in ("q", "k", "v", "sink", "dout")
    }
    arrays["bias"] = call.bias, call.bias_dtype or call.dtype
    arrays["dlse"] = call.dlse, "float64" if call.dtype == "float64" else "float32"
    for name in ("q_positions", "k_positions"):
        arrays[name] = getattr(call, name), "int32"
    rule = None
    if call.mask is not None:
        positions = call.q_positions, call.k_positions
        arrays["mask"] = masks.pairs(call.mask, _pairs(call), *positions), "bool"
        rule = _rule(call.mask, arrays, "mask")
    if call.dropout is not None:
        rate, shape = call.dropout.rate, _pairs(call)
        keep = oracle_random.bernoulli(oracle_random.key(call.dropout.seed), 1 - rate, shape)
        arrays["keep"] = (keep[0] if call.q.ndim == 2 else keep), "bool"
    options: dict[str, Any] = {
        "want": call.want,
        "dtype": call.dtype,
        "scale": _number(call.scale),
        "softcap": _number(call.softcap),
        "rate": None if call.dropout is None else _number(call.dropout.rate),
        "seed": None if call.dropout is None else call.dropout.seed,
        "layout": call.layout,
        "implementation": call.implementation,
        "shards": None if call.shards is None else asdict(call.shards),
    }
    metadata = {name: str(value) for name, value in options.items() if value is not None}
    if call.shards is not None:
        metadata["shards"] = f"{call.shards.along} {call.shards.n}"
    given = {name: (np.asarray(x), dtype) for name, (x, dtype) in arrays.items() if x is not None}
    return tensors.encode(given, metadata), {**options, "mask": rule}


def _rule(mask: masks.Mask, arrays: dict[str, tuple[Array | None, str]], name: str) -> dict[str, Any]:
    """The rule of a mask. A dense part of a composition becomes an array of its own, mask.0 and so on."""

    def inner(part: masks.Mask) -> dict[str, Any]:
        dense = sum(key.startswith("mask.") for key in arrays)
        return _rule(part, arrays, f"mask.{dense}")

    match mask:
        case masks.Dense(array):
            arrays[name] = array, "bool"
            return {"rule": "array", "array": name}
        case masks.Causal(offset, align):
            return {"rule": "causal", "offset": _plain(offset), "align": align}
        case masks.Window(left, right, offset, align):
            return {"rule": "window", "left": left, "right": right, "offset": _plain(offset), "align": align}
        case masks.Padding(lengths):
            return {"rule": "padding", "lengths": _plain(lengths)}
        case masks.Segments(q_ids, k_ids):
            return {"rule": "segments", "q_ids": _plain(q_ids), "k_ids": _plain(k_ids)}
        case masks.Inverse(part):
            return {"rule": "not", "of": [inner(part)]}
        case masks.Both(one, other):
            return {"rule": "and", "of": [inner(one), inner(other)]}
        case masks.Either(one, other):
            return {"rule": "or", "of": [inner(one), inner(other)]}


def _number(x: float | None) -> float | str | None:
    """JSON has no word for what is not finite."""
    return x if x is None or math.isfinite(x) else str(float(x))


def _plain(integers: int | Array) -> Any:
    return np.asarray(integers).tolist()


def _pairs(call: Call) -> tuple[int, ...]:
    """(..., H, Q, K), with one head where the call has no head axis."""
    q, k, v = ((1, *x.shape) if x.ndim == 2 else x.shape for x in (call.q, call.k, call.v))
    return (*np.broadcast_shapes(q[:-3], k[:-3], v[:-3]), *q[-3:-1], k[-2])


def _first_difference(found: dict[str, Any], made: dict[str, Any]) -> str:
    calls = found.get("calls")
    if not isinstance(calls, list):
        return ""
    differing = [m["id"] for f, m in zip(calls, made["calls"], strict=False) if f != m]
    return f", first in call {differing[0]}" if differing else ""
