"""False alarms: thousands of drawn calls that a right implementation has to pass.

    python conformance/meta_tests/alarms.py [--cases N] [--seed N] [--refill N] SUBJECT...

A subject is a backend's name, or `faultless`, the control. Every call is judged against the oracle within its bound,
and where there are keys that nobody sees, asked again with the largest numbers in them, for the same bits. `--refill`
asks every drawn call that many times, each time with other numbers; by default 50 where a backend compiles each new
shape and option.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from dataclasses import fields, is_dataclass

import numpy as np
import wrong
from attnspec_conformance import masks, oracle
from attnspec_conformance.drawn import drawn
from attnspec_conformance.judges import same_bits, within_bound
from attnspec_conformance.problems import normal, rounded
from attnspec_conformance.subjects import BackendSubject
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from attnspec.backend import choose
from attnspec.host import DEFAULT, host_of

DTYPES = ("float32", "float32", "float32", "float64", "float16", "bfloat16")
LAYOUTS = ("plain", "plain", "transposed", "reversed", "strided", "readonly")
LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38}
SHOWN = 5


def varied(call, draw):
    """The drawn call in some dtype and layout, by some implementation, and with positions where its mask lets it."""
    dtype = draw.choice(DTYPES)
    changes = {name: rounded(getattr(call, name), dtype) for name in ("q", "k", "v")}
    for name in ("bias", "sink"):
        if getattr(call, name) is not None:
            changes[name] = rounded(getattr(call, name), dtype)
    if draw.random() < 0.3 and not aligned_to_the_end(call.mask):
        Q, K, first = call.q.shape[-2], call.k.shape[-2], draw.randrange(6)
        places = [range(first, first + Q), range(first // 2, first // 2 + K)]
        if draw.random() < 0.5:
            places = [np.array(draw.sample(range(20), len(rows)), np.int32) for rows in places]
        changes |= zip(("q_positions", "k_positions"), places, strict=True)
    implementation = draw.choice(("auto", "auto", "portable"))
    return call.but(dtype=dtype, layout=draw.choice(LAYOUTS), implementation=implementation, **changes)


def aligned_to_the_end(mask):
    """Whether the mask counts from K - Q, which excludes positions."""
    if not is_dataclass(mask):
        return False
    return getattr(mask, "align", "start") == "end" or any(
        aligned_to_the_end(getattr(mask, field.name)) for field in fields(mask)
    )


def refilled(call, times, draw):
    """The call, and `times - 1` more that differ from it in their numbers alone."""
    yield call
    for _ in range(times - 1):
        seed = draw.randrange(2**20)
        made = {
            name: normal(seed + n, *getattr(call, name).shape, dtype=call.dtype)
            for n, name in enumerate(("q", "k", "v"))
        }
        if call.bias is not None:
            fresh = normal(seed + 3, *call.bias.shape, dtype=call.dtype, size=2.0)
            made["bias"] = np.where(np.isneginf(call.bias), call.bias, fresh)
        if call.sink is not None:
            made["sink"] = normal(seed + 4, *call.sink.shape, dtype=call.dtype)
        if call.dropout is not None:
            made["dropout"] = masks.Dropout(call.dropout.rate, draw.randrange(2**63))
        yield call.but(**made)


def poisoned(call):
    """The call with the largest numbers at the keys that nobody sees; None if there are none."""
    visible = oracle.attention(call).visible
    hidden = ~visible.any(axis=tuple(range(visible.ndim - 1)))
    if not hidden.any():
        return None
    k, v = call.k.copy(), call.v.copy()
    largest = LARGEST.get(call.dtype, float(np.finfo(np.float32).max))
    k[..., hidden, :], v[..., hidden, :] = largest, -largest / 2
    return call.but(k=k, v=rounded(v, call.dtype))


def verdicts(subject, call):
    """What is said of one call, by the name of the question."""
    result = subject.forward(call)
    yield "within the bound", within_bound(call)((result,))
    if (other := poisoned(call)) is not None:
        yield "unseen", same_bits()((result, subject.forward(other)))


def cases(seed, count, refill):
    """Every case with its number."""
    for number, call in enumerate(drawn(seed, -(-count // refill))):
        draw = random.Random(f"{seed} {number} varied")
        for turn, one in enumerate(refilled(varied(call, draw), refill, draw)):
            if number * refill + turn < count:
                yield f"{number}.{turn}", one


def alarms(subject, seed, count, refill):
    """Judge the cases, print what came out, and say how many were failed."""
    seen, worst, start = Counter(), 0.0, time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), TextColumn("{task.fields[alarms]} false alarms")) as progress:
        task = progress.add_task(subject.name, total=count, alarms=0)
        for number, call in cases(seed, count, refill):
            if (reason := subject.supports(call)) is not None:
                seen["unsupported"] += 1
                seen[f"  {reason}"] += 1
            else:
                seen["cases"] += 1
                seen[f"  {call.dtype}"] += 1
                for question, verdict in verdicts(subject, call):
                    seen[question] += 1
                    if verdict.ok:
                        worst = max(worst, verdict.worst)
                        continue
                    seen["false alarms"] += 1
                    if seen["false alarms"] <= SHOWN:
                        progress.console.print(f"case {number} of seed {seed}, {question}: {verdict.message}")
            progress.update(task, advance=1, alarms=seen["false alarms"])
            done = seen["cases"] + seen["unsupported"]
            if not progress.console.is_terminal and done % 1000 == 0:
                print(f"{subject.name}: {done} of {count}, {time.monotonic() - start:.0f} s", flush=True)
    print(f"{subject.name}: {seen['false alarms']} false alarms, {time.monotonic() - start:.0f} s")
    print(f"  greatest error: {worst:.3f} of its bound")
    for what, number in sorted(seen.items()):
        print(f"  {what}: {number}")
    return seen["false alarms"]


def named(name):
    """The subject of that name."""
    if name == "faultless":
        return wrong.Faultless()
    backend = choose(name)
    if hasattr(backend, "enable"):
        backend.enable("float64")
    return BackendSubject(backend)


def times(subject):
    """How often each drawn call is asked: where eager calls are programs, shapes and options are compiled once each."""
    if not isinstance(subject, BackendSubject):
        return 1
    return 1 if host_of(subject.backend.asarray([0.0])).run is DEFAULT.run else 50


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="+", metavar="SUBJECT")
    parser.add_argument("--cases", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--refill", type=int)
    asked = parser.parse_args()
    subjects = map(named, asked.subjects)
    counts = [alarms(subject, asked.seed, asked.cases, asked.refill or times(subject)) for subject in subjects]
    sys.exit(1 if any(counts) else 0)
