"""What attention over devices sends and holds: compiled programs beside the formulas of docs/scale/jax.md.

    python backends/jax/benchmarks/traffic.py [--devices 8] [--lengths 16384 32768 65536]
    python backends/jax/benchmarks/traffic.py --million

One row for each way, mode and length: the bytes that each device sends, as the collectives of the compiled program say
and as the formula says, and the bytes that it needs beside its arguments and results, likewise. Nothing is run: the
devices are pretended, the programs are those of a CPU. `--million` works out by the formulas what 2**20 tokens take on
64 devices.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from functools import partial
from math import prod
from typing import Any, NamedTuple


class Sizes(NamedTuple):
    """Axes of a call over n devices; bytes of a number in the arrays, and of one in sums and gradients."""

    n: int
    Q: int
    K: int
    H: int = 8
    G: int = 2
    D: int = 64
    E: int = 64
    B: int = 1
    narrow: int = 4
    wide: int = 4

    @property
    def keys(self) -> int:
        """Numbers in a shard of k and v."""
        return self.B * self.G * self.K // self.n * (self.D + self.E)

    @property
    def rows(self) -> int:
        """Rows of a shard of queries, all heads together."""
        return self.B * self.H * self.Q // self.n


def sent(how: str, kind: str, s: Sizes) -> int:
    """Bytes that each device sends. An all-reduce of x bytes counts 2 (n - 1) / n x, as by a ring."""
    others, queries = s.n - 1, s.B * s.H * s.Q
    exchanged = s.rows * (s.D + s.E) * s.narrow + s.rows * s.wide + s.keys * s.narrow
    forward = {
        "ring": others * s.keys * s.narrow,
        "all_to_all": others * exchanged // s.n,
        "split_keys": 2 * others * queries * ((s.E + 2) * s.wide + 3 * 4) // s.n,
    }[how]
    if kind == "forward":
        return forward
    if kind == "reproducible":
        return {
            "ring": 2 * others * s.keys * s.narrow,
            "all_to_all": forward,
            "split_keys": others * queries * ((s.E + 2) * 8 + 3)
            + 2 * others * queries * ((s.E + 2) * 8 + 3 * 4) // s.n,
        }[how]
    return (
        forward
        + {
            "ring": others * s.keys * s.narrow + s.n * s.keys * s.wide,
            "all_to_all": forward,
            "split_keys": 2 * others * queries * (s.E + 1 + s.D) * s.wide // s.n,
        }[how]
    )


def held(how: str, kind: str, s: Sizes) -> int | None:
    """Bytes that each device needs beside its arguments and results, at most; None where no formula is stated."""
    tile = TILE * s.wide
    rows = s.rows * (s.E + 2) * s.wide
    return {
        ("ring", "forward"): 2 * s.keys * s.wide + rows + 5 * tile,
        ("ring", "gradient"): 4 * s.keys * s.wide + rows + 10 * tile,
        ("all_to_all", "forward"): 2 * (s.rows * (s.D + s.E) + s.keys) * s.wide + tile,
        ("all_to_all", "gradient"): 2 * (s.rows * (s.D + s.E) + s.keys) * s.wide + tile,
        ("ring", "reproducible"): 2 * s.keys * s.wide + 2 * s.rows * (s.E + 2) * 8 + 5 * TILE * 8,
        ("all_to_all", "reproducible"): 4 * (s.rows * (s.D + s.E) + s.keys) * s.wide + TILE * 8,
        ("split_keys", "forward"): s.keys * s.wide + 9 * s.wide * min(TILE, s.B * s.H * s.Q * s.K // s.n),
    }.get((how, kind))


TILE = 2**21  # scores of a tile, all heads together, at most


def program(how: Any, kind: str, s: Sizes) -> Any:
    """The compiled program of a causal call."""
    import jax
    import jax.numpy as jnp
    from attnspec_jax import sharded
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    import attnspec

    mesh = jax.make_mesh((s.n,), ("sequence",), devices=jax.devices()[: s.n])
    split = NamedSharding(mesh, P(None, None, "sequence"))
    whole = NamedSharding(mesh, P())
    of_q = whole if how == "split_keys" else split
    dtype = {2: jnp.bfloat16, 4: jnp.float32}[s.narrow]
    shapes = ((s.H, s.Q, s.D), of_q), ((s.G, s.K, s.D), split), ((s.G, s.K, s.E), split)
    arrays = [jax.ShapeDtypeStruct((s.B, *shape), dtype, sharding=place) for shape, place in shapes]
    attend = partial(
        sharded.attention_with_lse, mesh=mesh, axis="sequence", how=how, reproducible=kind == "reproducible",
        mask=attnspec.causal(align="end"),
    )  # fmt: skip

    def both(*arrays: Any) -> Any:
        results, pull = jax.vjp(attend, *arrays)
        return results, pull(results)

    return jax.jit(both if kind == "gradient" else attend).lower(*arrays).compile()


SIZES = {"pred": 1, "s8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "f64": 8}
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) .*\{$")
_COLLECTIVE = re.compile(r" (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(")
_CALLED = re.compile(
    r"(?:body|to_apply|calls|true_computation|false_computation|branch_computations)=\{?([^,}]*(?:, ?%[^,}]*)*)\}?"
)
_TIMES = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


def collectives(compiled: Any) -> list[tuple[str, int]]:
    """(kind, bytes of its result on a device) of each collective that a run of the program meets."""
    text: dict[str, list[str]] = {}
    name = entry = ""
    for line in compiled.as_text().splitlines():
        head = _COMPUTATION.match(line)
        if head:
            name = head[2]
            entry = name if head[1] else entry
            text[name] = []
        elif name:
            text[name].append(line)
    return list(_met(text, entry))


def _met(text: dict[str, list[str]], name: str) -> Iterator[tuple[str, int]]:
    for line in text.get(name, ()):
        found = _COLLECTIVE.search(line)
        if found:
            result = line[: found.start()].partition("=")[2]
            shapes = re.findall(r"(\w+)\[([\d,]*)\]", result)
            yield found[1], sum(SIZES[kind] * prod(map(int, filter(None, n.split(",")))) for kind, n in shapes)
            continue
        known = _TIMES.search(line)
        times = int(known[1]) if known and " while(" in line else 1
        for called in _CALLED.findall(line):
            for inner in re.split(r", ?", called):
                yield from [*_met(text, inner.strip().lstrip("%"))] * times


def counted(compiled: Any, n: int) -> int:
    """Bytes that a device sends in a run of the program."""
    share = {"collective-permute": 1.0, "all-to-all": (n - 1) / n, "all-reduce": 2 * (n - 1) / n}
    return round(sum(share[kind] * size for kind, size in collectives(compiled)))


def main() -> None:
    """Print a row for each program, or for the formulas of a million tokens."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--devices", type=int, default=8)
    options.add_argument("--lengths", type=int, nargs="+", default=(16384, 32768, 65536))
    options.add_argument("--ways", nargs="+", default=WAYS)
    options.add_argument("--kinds", nargs="+", default=KINDS)
    options.add_argument("--million", action="store_true")
    given = options.parse_args()
    if given.million:
        million()
        return
    devices = f"--xla_force_host_platform_device_count={given.devices}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {devices}"
    print("| way | | Q | K | sent | by formula | temporary | formula, at most |\n|---|---|---|---|---|---|---|---|")
    for how in given.ways:
        for kind in given.kinds:
            for length in given.lengths:
                queries, groups = 1 if how == "split_keys" else length, given.devices if how == "all_to_all" else 2
                sizes = Sizes(given.devices, Q=queries, K=length, H=8, G=groups)
                compiled = program(how, kind, sizes)
                row = (
                    how, kind, queries, length, counted(compiled, sizes.n), round(sent(how, kind, sizes)),
                    compiled.memory_analysis().temp_size_in_bytes, held(how, kind, sizes) or "",
                )  # fmt: skip
                print(f"| {' | '.join(map(str, row))} |", flush=True)


WAYS, KINDS = ("ring", "all_to_all", "split_keys"), ("forward", "gradient", "reproducible")


def million() -> None:
    """The rows of the page: 2**20 tokens in bfloat16, 64 devices, heads as in a model of some ten billion weights."""
    print("| way | | Q | MB sent | MB temporary |\n|---|---|---|---|---|")
    for how in ("ring", "split_keys"):
        for kind in KINDS:
            sizes = Sizes(64, 1 if how == "split_keys" else 2**20, 2**20, H=32, G=8, D=128, E=128, narrow=2)
            most = held(how, kind, sizes)
            memory = "" if most is None else f"{most / 1e6:.0f}"
            print(f"| {how} | {kind} | {sizes.Q} | {sent(how, kind, sizes) / 1e6:.1f} | {memory} |")


if __name__ == "__main__":
    main()
