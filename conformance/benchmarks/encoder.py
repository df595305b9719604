"""A sentence encoder beside its matrix products alone: all-MiniLM-L6-v2, 32 sentences of 128 tokens.

    python conformance/benchmarks/encoder.py [--rounds 9] [--backend numpy --backend jax]

CPU time on one thread, in milliseconds, of `minilm.MiniLM.embeddings` and of the products that it has to make, by the
same framework, in turns in one process: medians, and the quartiles of their ratio. On JAX both are compiled. What an
encoder written by hand in torch takes, `backends/torch/benchmarks/beside_torch.py` measures.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from statistics import median, quantiles
from time import process_time
from typing import Any

POOLS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
os.environ.update(dict.fromkeys(POOLS, "1"))  # libraries read it when they are loaded
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import numpy as np  # noqa: E402

from attnspec import minilm  # noqa: E402
from attnspec.backend import Backend, choose  # noqa: E402
from attnspec.errors import BackendError  # noqa: E402

B, Q = 32, 128
LENGTHS = [Q - 2 * n for n in range(B)]


def main() -> None:
    """Print a row for each backend."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--backend", action="append")
    given = parser.parse_args()
    print(f"{'':8}{'encoder':>10}{'products':>10}{'ratio':>8}{'quartiles':>16}")
    for name in given.backend or ("numpy", "torch", "jax"):
        try:
            backend = choose(name)
        except BackendError as error:
            print(f"{name}: {error}")
            continue
        whole, products = calls(backend)
        pairs = list(taken(whole, products, given.rounds))
        ratios = [one / other for one, other in pairs]
        one, other = (1e3 * median(times) for times in zip(*pairs, strict=True))
        low, middle, high = quantiles(ratios, n=4)
        print(f"{name:8}{one:10.0f}{other:10.0f}{middle:8.2f}{low:10.2f}-{high:.2f}", flush=True)


def calls(backend: Backend) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The encoder, and its products."""
    model = minilm.load(backend)
    ids = backend.asarray(np.random.default_rng(0).integers(1000, 20000, (B, Q)))
    compiled = backend.jit if backend.name == "jax" and backend.jit is not None else lambda function: function
    encoder = compiled(lambda model, ids: model.embeddings(ids, LENGTHS))
    products = compiled(lambda pairs: [backend.xp.matmul(*pair) for pair in pairs])
    pairs = [pair for layer in model.stack.layers for pair in of_layer(backend, layer)]
    return (
        lambda: backend.synchronize(encoder(model, ids)),
        lambda: [backend.synchronize(x) for x in products(pairs)],
    )


def of_layer(backend: Backend, layer: Any) -> Iterator[tuple[Any, Any]]:
    """What a layer multiplies, in arrays of these shapes; each a product of its own, or a compiler makes it once."""
    rng, (M, H, D), F = np.random.default_rng(1), layer.attention.wq.shape, layer.feed_forward.w_in.shape[-1]
    shapes = [((B * Q, M), (M, H * D))] * 3
    shapes += [((B, H, Q, D), (B, H, D, Q)), ((B, H, Q, Q), (B, H, Q, D)), ((B * Q, H * D), (H * D, M))]
    shapes += [((B * Q, M), (M, F)), ((B * Q, F), (F, M))]
    for pair in shapes:
        one, other = (backend.asarray(rng.standard_normal(shape, dtype="float32")) for shape in pair)
        yield one, other


def taken(one: Callable[[], Any], other: Callable[[], Any], rounds: int) -> Iterator[tuple[float, float]]:
    """Seconds of both, for each round; the first calls are not counted."""
    one()
    other()
    for _ in range(rounds):
        start = process_time()
        one()
        between = process_time()
        other()
        yield between - start, process_time() - between


if __name__ == "__main__":
    main()
