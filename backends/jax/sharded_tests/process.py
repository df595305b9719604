"""One of two processes that attend together: `python process.py RANK PORT WHAT`. Run by test_sharded_processes.py."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

PROCESSES, DEVICES, PATIENCE = 2, 2, 10  # PATIENCE: seconds without a sign of life until a process counts as dead
H, G, Q, K, D, E = 8, 4, 64, 1024, 8, 6


def main(rank: int, port: str, what: str) -> None:
    """Compute, compare with the undivided call, and say so; or be killed on the way."""
    jax.config.update("jax_num_cpu_devices", DEVICES)
    jax.distributed.initialize(
        f"127.0.0.1:{port}", PROCESSES, rank, initialization_timeout=60, heartbeat_timeout_seconds=PATIENCE,
        shutdown_timeout_seconds=PATIENCE,
    )  # fmt: skip
    assert len(jax.devices()) == PROCESSES * DEVICES
    if what.startswith("kill"):
        end_in_the_middle(rank, killed=int(what[-1]))
    else:
        agree(*what.split())
        print("all agree")


def agree(how: str, mode: str) -> None:
    """One way beside the undivided call in NumPy: to the bit in reproducible mode, with gradients otherwise."""
    from attnspec_jax import sharded

    import attnspec
    from attnspec import reproducible as identical

    arrays = [np.random.default_rng(n).standard_normal(s).astype("f4") for n, s in enumerate(SHAPES)]
    mask, reproducible = attnspec.causal(align="end"), mode == "reproducible"
    attend = partial((identical if reproducible else attnspec).attention, mask=mask)
    options: dict[str, Any] = {"mesh": mesh(), "axis": "sequence", "how": how, "reproducible": reproducible}
    placed = [spread(x, P() if how == "split_keys" and n == 0 else P(None, "sequence")) for n, x in enumerate(arrays)]
    found = partial(sharded.attention, mask=mask, **options)
    if reproducible:
        compare(found(*placed), attend(*arrays), exactly=True)
        return
    (out, pull), (wanted, expected) = jax.vjp(found, *placed), attnspec.vjp(attend, *arrays)
    for one, other in zip((out, *pull(out)), (wanted, *expected(wanted)), strict=True):
        compare(one, other)


SHAPES = (H, Q, D), (G, K, D), (G, K, E)


def mesh() -> jax.sharding.Mesh:
    """Of all devices, which are known once the processes have met."""
    return jax.make_mesh((PROCESSES * DEVICES,), ("sequence",))


def spread(x: np.ndarray, spec: P) -> jax.Array:
    """The array over all devices, each process giving what its own hold."""
    return jax.make_array_from_callback(x.shape, NamedSharding(mesh(), spec), lambda index: x[index])


def compare(found: jax.Array, wanted: np.ndarray, *, exactly: bool = False) -> None:
    """What this process holds of the result."""
    for shard in found.addressable_shards:
        one, other = np.asarray(shard.data), wanted[shard.index]
        if exactly:
            assert one.tobytes() == other.tobytes()
        else:
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def end_in_the_middle(rank: int, *, killed: int) -> None:
    """Step by step, until one process is no more."""
    from attnspec_jax import sharded

    q, k, v = (spread(np.ones(s, np.float32), P(None, "sequence")) for s in SHAPES)
    for step in range(1000):
        out = sharded.attention(q, k, v, mesh=mesh(), axis="sequence")
        jax.block_until_ready(out)
        print("step", step, flush=True)
        if step == 3 and rank == killed:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
