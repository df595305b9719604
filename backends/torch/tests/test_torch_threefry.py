"""Words that are drawn in place, a piece at a time, are those of `prng.rounds`."""

from __future__ import annotations

import pytest
import torch

import attnspec
from attnspec import prng

KEYS = [(0, 0), (7, -1), (-(2**31), 2**31 - 1)]


@pytest.mark.parametrize("rng", KEYS)
@pytest.mark.parametrize("shape", [(2 * 2**16 + 4465,), (300, 500), (prng.LEAST,), (0, 4)])
@pytest.mark.parametrize("wide", [False, True])
def test_words_are_those_of_the_definition(rng: tuple[int, int], shape: tuple[int, ...], wide: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    words = [torch.randint(-(2**31), 2**31, shape, generator=generator).to(torch.int32) for _ in range(2)]
    counter = (words[0] if wide else -5, words[1])
    before = [word.clone() for word in words]
    for n in range(2):
        drawn = prng.draw(rng, counter, lambda *both, n=n: both[n] + 0)
        assert torch.equal(drawn, torch.as_tensor(prng.rounds(rng, counter)[n]).expand(shape))
    assert all(map(torch.equal, before, words))


def test_a_key_of_tensors_draws_what_its_numbers_draw() -> None:
    x = torch.ones(100, 100)
    numbers = attnspec.random.key(5)
    tensors = attnspec.random.Key(torch.tensor(numbers.high, dtype=torch.int32), torch.tensor(5, dtype=torch.int32))
    assert torch.equal(attnspec.dropout(x, 0.5, numbers), attnspec.dropout(x, 0.5, tensors))


def test_keys_that_are_mapped_draw_what_each_of_them_draws() -> None:
    x = torch.ones(100, 100)
    low = torch.arange(3, dtype=torch.int32)

    def drawn(low: torch.Tensor) -> torch.Tensor:
        return attnspec.dropout(x, 0.5, attnspec.random.Key(torch.zeros_like(low), low))

    mapped = torch.func.vmap(drawn)(low)
    assert all(torch.equal(mapped[n], attnspec.dropout(x, 0.5, attnspec.random.key(n))) for n in range(3))
