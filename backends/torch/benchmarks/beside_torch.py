"""attnspec beside what torch has: attention, its gradients, decoding, dropout, and a sentence encoder.

    OMP_NUM_THREADS=1 python backends/torch/benchmarks/beside_torch.py [--lengths 512 2048] [--repeats 11]

One row for each call: processor time of torch and of attnspec in milliseconds, taken in turns in one process on one
thread, the median of the repeats, and how many times as fast attnspec is.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import torch
from torch.nn import functional

import attnspec
from attnspec import minilm
from attnspec.backend import choose

Row = tuple[str, Callable[[], Any], Callable[[], Any]]
H, G, D = 8, 2, 64


def of_attention(n: int) -> Iterator[Row]:
    """Forward, and with gradients."""
    q, k, v, few_k, few_v = (torch.randn(1, heads, n, D) for heads in (H, H, H, G, G))
    keys, causal = torch.arange(n) < n - n // 8, attnspec.causal()
    padded = attnspec.padding([n - n // 8])
    cases: list[tuple[str, tuple[torch.Tensor, ...], dict[str, Any], dict[str, Any]]] = [
        ("plain", (q, k, v), {}, {}),
        ("causal", (q, k, v), {"is_causal": True}, {"mask": causal}),
        ("8/2 heads, causal", (q, few_k, few_v), {"is_causal": True, "enable_gqa": True}, {"mask": causal}),
        ("a row of keys", (q, k, v), {"attn_mask": keys[None]}, {"mask": keys}),
        ("padding", (q, k, v), {"attn_mask": keys[None]}, {"mask": padded}),
    ]
    for name, arrays, theirs, ours in cases:
        torchs = partial(functional.scaled_dot_product_attention, **theirs)
        own = partial(attnspec.attention, **ours)
        yield f"{name}, {n}", partial(torchs, *arrays), partial(own, *arrays)
        yield f"{name}, {n}, gradients", _pulled(torchs, arrays), _pulled(own, arrays)


def _pulled(function: Callable[..., Any], arrays: tuple[torch.Tensor, ...]) -> Callable[[], Any]:
    leaves = [x.clone().requires_grad_() for x in arrays]
    g = torch.ones_like(leaves[0])
    return lambda: torch.autograd.grad(function(*leaves), leaves, g)


def of_decoding(n: int) -> Iterator[Row]:
    """One query."""
    for heads in (H, G):
        q, k, v = (torch.randn(1, *x, D) for x in ((H, 1), (heads, n), (heads, n)))
        torchs = partial(functional.scaled_dot_product_attention, enable_gqa=heads != H)
        own = partial(attnspec.attention, q, k, v)
        yield f"one query, {n} keys, {H}/{heads} heads", partial(torchs, q, k, v), own


def of_dropout() -> Iterator[Row]:
    """A million entries."""
    x, rng = torch.randn(1024, 1024), attnspec.random.key(3)
    yield "dropout", lambda: functional.dropout(x, 0.1), lambda: attnspec.dropout(x, 0.1, rng)


def of_encoder() -> Iterator[Row]:
    """32 sentences of 128 tokens, by all-MiniLM-L6-v2."""
    model = minilm.load(choose("torch"))
    ids = torch.randint(1000, 20000, (32, 128), generator=torch.Generator().manual_seed(0))
    lengths = [128 - 2 * n for n in range(32)]
    yield "32 sentences", lambda: plain_encoder(model, ids, lengths), lambda: model.embeddings(ids, lengths)


def plain_encoder(model: minilm.MiniLM, ids: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """The same encoder as one writes it in torch."""
    seen = torch.arange(ids.shape[-1]) < torch.tensor(lengths)[:, None]
    x = model.tokens[ids] + model.types[0] + model.positions[: ids.shape[-1]]
    x = _norm(x, model.norm)
    for layer in model.stack.layers:
        own: Any = layer.attention
        q, k, v = (
            functional.linear(x, w.flatten(1).T, b.flatten()).unflatten(-1, w.shape[1:]).transpose(1, 2)
            for w, b in ((own.wq, own.bq), (own.wk, own.bk), (own.wv, own.bv))
        )
        heads = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None, None])
        y = functional.linear(heads.transpose(1, 2).flatten(-2), own.wo.flatten(0, 1).T, own.bo)
        x = _norm(x + y, layer.norm_attention)
        inner: Any = layer.feed_forward
        y = functional.gelu(functional.linear(x, inner.w_in.T, inner.b_in))
        x = _norm(x + functional.linear(y, inner.w_out.T, inner.b_out), layer.norm_feed_forward)
    mean = (x * seen[..., None]).sum(1) / seen.sum(1, keepdim=True)
    return functional.normalize(mean, dim=-1)


def _norm(x: torch.Tensor, norm: attnspec.NormParams) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-1:], norm.gamma, norm.beta, norm.eps)


def taken(row: Row, repeats: int) -> tuple[float, float]:
    """Medians in milliseconds; the answers of dropout differ, all others are compared."""
    name, theirs, ours = row
    one, other = theirs(), ours()
    if name != "dropout":
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    spent: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for function, times in zip((theirs, ours), spent, strict=True):
            start = time.process_time()
            function()
            times.append(time.process_time() - start)
    return 1e3 * median(spent[0]), 1e3 * median(spent[1])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--without-encoder", action="store_true", help="its weights are a package of their own")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for n in arguments.lengths for row in of_attention(n)]
    rows += [row for n in (4096, 32768) for row in of_decoding(n)] + list(of_dropout())
    if not arguments.without_encoder:
        rows += of_encoder()
    print(f"{'':36}{'torch':>9}{'attnspec':>10}{'times':>8}")
    for row in rows:
        one, other = taken(row, arguments.repeats)
        print(f"{row[0]:36}{one:9.2f}{other:10.2f}{one / other:8.2f}", flush=True)


if __name__ == "__main__":
    main()
