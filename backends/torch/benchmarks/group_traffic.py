"""What attention over a process group sends and holds: runs on loopback beside the formulas of docs/scale/torch.md.

    python backends/torch/benchmarks/group_traffic.py [--ranks 4] [--lengths 8192 16384]
    python backends/torch/benchmarks/group_traffic.py --million

One row for each way, mode and length: the bytes that a rank sends, as the kernel counts what was acknowledged on the
sockets of its process (the mean of the ranks), and by the formula; and by how much the resident memory of a process
grows at its peak, beside the formula. A call is causal, in a zigzag order where it is a ring, so that all ranks have
the same to do. `--million` works out by the formulas what 2**20 tokens take on 64 ranks. Linux, for the counters.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import struct
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

WAYS, KINDS = ("ring", "all_to_all", "split_keys"), ("forward", "gradient", "reproducible")


class Sizes(NamedTuple):
    """Axes of a call over n ranks; bytes of a number in the arrays, and of one in sums and gradients."""

    n: int
    Q: int
    K: int
    H: int = 8
    G: int = 4
    D: int = 64
    E: int = 32
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
    """Bytes that a rank sends. A sum of x bytes over the ranks counts 2 (n - 1) / n x, as by a ring."""
    others, queries = s.n - 1, s.B * s.H * s.Q
    exchanged = s.rows * (s.D + s.E) * s.narrow + s.rows * s.wide + s.keys * s.narrow
    forward = {
        "ring": others * s.keys * s.narrow,
        "all_to_all": others * exchanged // s.n,
        "split_keys": 2 * others * queries * ((s.E + 2) * s.wide + 3) // s.n,
    }[how]
    if kind == "forward":
        return forward
    if kind == "reproducible":
        return {"ring": forward, "all_to_all": forward,
                "split_keys": 2 * others * queries * ((s.E + 2) * 8 + 3) // s.n}[how]  # fmt: skip
    return (
        forward
        + {
            "ring": others * s.keys * s.narrow + s.n * s.keys * s.wide,
            "all_to_all": forward,
            "split_keys": 2 * others * queries * (s.E + 1) * s.wide // s.n,
        }[how]
    )


TILE = 2**18  # scores of a tile, of the heads that are computed at once
CHUNK = 2**16  # those of one in reproducible mode, of each head
ARENAS = 2**23  # bytes by which resident memory may grow beyond arrays: the allocator takes it by arenas


def held(how: str, kind: str, s: Sizes) -> int | None:
    """Bytes that a rank needs beside its arguments, results included, at most; None where no formula is stated."""
    keys, queries = s.keys * s.wide, s.rows * (s.D + s.E) * s.wide
    rows, tiles = s.rows * (s.E + 2), 16 * TILE * s.wide
    exact = 12 * s.B * s.H * CHUNK * 8
    most = {
        ("ring", "forward"): 2 * s.keys * s.narrow + 8 * rows * s.wide + tiles,
        ("ring", "gradient"): 2 * s.keys * s.narrow + 5 * keys + 8 * rows * s.wide + 4 * queries + tiles,
        ("ring", "reproducible"): 2 * s.keys * s.narrow + 20 * rows * 8 + exact,
        ("all_to_all", "forward"): 4 * (queries + keys) + tiles,
        ("all_to_all", "gradient"): 8 * (queries + keys) + tiles,
        ("all_to_all", "reproducible"): 8 * (queries + keys) + exact,
        ("split_keys", "forward"): keys + 8 * s.n * rows * s.wide + tiles,
        ("split_keys", "gradient"): 3 * keys + 16 * s.n * rows * s.wide + tiles,
    }.get((how, kind))
    return None if most is None else most + ARENAS


def measured(how: str, kind: str, s: Sizes, patience: float = 120.0) -> list[tuple[int, int]]:
    """(bytes sent, bytes that the resident memory grew) of each rank."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["attnspec_torch.distributed"])
    answers: Any = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "meeting")
        started = [
            context.Process(target=_rank, args=(rank, how, kind, s, meeting, patience, answers)) for rank in range(s.n)
        ]
        for process in started:
            process.start()
        try:
            return [answers.get(timeout=patience) for _ in started]
        finally:
            for process in started:
                process.kill()
                process.join()


def _rank(rank: int, how: Any, kind: str, s: Sizes, meeting: str, patience: float, answers: Any) -> None:
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from attnspec_torch import distributed

    import attnspec

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=s.n, timeout=timedelta(seconds=patience)
    )
    Q = s.Q if how == "split_keys" else s.Q // s.n
    dtype = {2: torch.bfloat16, 4: torch.float32}[s.narrow]
    shapes = (s.B, s.H, Q, s.D), (s.B, s.G, s.K // s.n, s.D), (s.B, s.G, s.K // s.n, s.E)
    arrays = [torch.rand(shape, dtype=dtype).requires_grad_(kind == "gradient") for shape in shapes]
    options: dict[str, Any] = {"mask": attnspec.causal(s.K - s.Q)}
    if how == "ring" and kind != "reproducible":
        for name, length in (("q_positions", s.Q), ("k_positions", s.K)):
            pieces = torch.arange(length).chunk(2 * s.n)
            options[name] = torch.cat([pieces[rank], pieces[2 * s.n - 1 - rank]])

    def call(arrays: Any, options: Any) -> Any:
        results = distributed.attention_with_lse(*arrays, how=how, reproducible=kind == "reproducible", **options)
        return results if kind != "gradient" else torch.autograd.grad(results, arrays, results)

    few = [x[..., : 256 if kind == "reproducible" else 2, :].detach().requires_grad_(x.requires_grad) for x in arrays]
    call(few, {})  # the first call connects the processes, and loads what it needs
    dist.barrier()
    time.sleep(0.3)
    before, resident = acknowledged(), _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    results = call(arrays, options)
    peak = _memory("VmHWM") - resident
    dist.barrier()
    time.sleep(0.3)  # for the last acknowledgement
    answers.put((acknowledged() - before, peak))
    time.sleep(patience)
    del results


def acknowledged() -> int:
    """Bytes that the other ends of this process's TCP connections have acknowledged since these exist."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:  # closed meanwhile, or no TCP
            continue
        total += struct.unpack_from("Q", information, 120)[0]  # tcpi_bytes_acked of linux/tcp.h
    return total


def _memory(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    found = re.search(rf"{name}:\s+(\d+) kB", status)
    assert found is not None
    return 1024 * int(found[1])


def main() -> None:
    """Print a row for each run, or for the formulas of a million tokens."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--ranks", type=int, default=4)
    options.add_argument("--lengths", type=int, nargs="+", default=(8192, 16384))
    options.add_argument("--ways", nargs="+", default=WAYS)
    options.add_argument("--kinds", nargs="+", default=KINDS)
    options.add_argument("--million", action="store_true")
    given = options.parse_args()
    if given.million:
        million()
        return
    print("| `how` | | Q | K | MB sent | by formula | MB held | formula, at most |\n|---|---|---|---|---|---|---|---|")
    for how in given.ways:
        for kind in given.kinds:
            for length in given.lengths:
                sizes = Sizes(given.ranks, Q=1 if how == "split_keys" else length, K=length)
                ranks = measured(how, kind, sizes)
                counted, peak = sum(n for n, _ in ranks) / len(ranks), max(n for _, n in ranks)
                most = held(how, kind, sizes)
                row = (
                    f'`"{how}"`', kind, sizes.Q, sizes.K, f"{counted / 1e6:.3f}",
                    f"{sent(how, kind, sizes) / 1e6:.3f}", f"{peak / 1e6:.1f}",
                    "" if most is None else f"{most / 1e6:.1f}",
                )  # fmt: skip
                print(f"| {' | '.join(map(str, row))} |", flush=True)


def million() -> None:
    """The rows of the page: 2**20 tokens in bfloat16, 64 ranks, heads as in a model of some ten billion weights."""
    print("| `how` | | Q | MB sent | MB held, at most |\n|---|---|---|---|---|")
    for how in ("ring", "split_keys"):
        for kind in KINDS:
            sizes = Sizes(64, 1 if how == "split_keys" else 2**20, 2**20, H=32, G=8, D=128, E=128, narrow=2)
            most = held(how, kind, sizes)
            memory = "" if most is None else f"{most / 1e6:.0f}"
            print(f'| `"{how}"` | {kind} | {sizes.Q} | {sent(how, kind, sizes) / 1e6:.1f} | {memory} |')


if __name__ == "__main__":
    main()
