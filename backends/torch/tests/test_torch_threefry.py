"""The generator in the place of its counters has the words of `prng.rounds`."""

from __future__ import annotations

import pytest
import torch
from attnspec_torch.threefry import rounds_in_place

import attnspec
from attnspec.prng import rounds

KEYS = [(0, 0), (7, -1), (-(2**31), 2**31 - 1)]


@pytest.mark.parametrize("rng", KEYS)
@pytest.mark.parametrize("shapes", [((), (70001,)), ((300, 1), (1, 500)), ((3, 5), (3, 5)), ((0, 4), (1, 4))])
def test_words_are_those_of_the_definition(rng: tuple[int, int], shapes: tuple[tuple[int, ...], ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    counter = tuple(torch.randint(-(2**31), 2**31, s, generator=generator).to(torch.int32) for s in shapes)
    before = [c.clone() for c in counter]
    for one, other in zip(rounds_in_place(rng, counter), rounds(rng, counter), strict=True):
        assert torch.equal(one, other)
    assert all(map(torch.equal, before, counter))


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
