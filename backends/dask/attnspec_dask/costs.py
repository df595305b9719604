"""What attention by chunks costs, as formulas: the memory of a worker, and the bytes that are read and that move.

The memory is of chunks, of what goes in and comes out, and of partial results that wait for each other, which grow with
Q and with the depth of the tree, log K; a product Q K is nowhere in it. The bytes are linear in Q for a number of
chunks of keys, and in K for a number of chunks of queries.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnspec.reproducible.steady import CHUNK

TILE = 2**21  # the most scores that the walk over a chunk makes at once


@dataclass(frozen=True)
class Axes:
    """The lengths of a call's axes, leading ones counted among the heads, of its chunks, and bytes of a number."""

    H: int
    G: int
    Q: int
    K: int
    D: int
    E: int
    q_chunk: int
    k_chunk: int
    itemsize: int = 4

    @property
    def keys(self) -> int:
        """Bytes of a chunk of keys with its values."""
        return self.G * self.k_chunk * (self.D + self.E) * self.itemsize

    @property
    def queries(self) -> int:
        """Bytes of a chunk of queries."""
        return self.H * self.q_chunk * self.D * self.itemsize

    @property
    def rows(self) -> int:
        """Chunks of queries."""
        return -(-self.Q // self.q_chunk)

    @property
    def tasks(self) -> int:
        """How many partial results there are, where no mask hides a chunk."""
        return self.rows * -(-self.K // self.k_chunk)

    def depth(self, every: int) -> int:
        """Levels of the tree that merges the partial results of a chunk of queries."""
        levels, merged = 1, every
        while merged * self.rows < self.tasks:
            levels, merged = levels + 1, merged * every
        return levels

    def partial(self, *, reproducible: bool = False) -> int:
        """Bytes of a partial result: sums and three flags of each row, in float64 for each 256 keys if reproducible."""
        rows = self.H * self.q_chunk
        if reproducible:
            return -(-self.k_chunk // CHUNK) * rows * ((self.E + 2) * 8 + 3)
        return rows * ((self.E + 2) * self.itemsize + 3)


def memory(axes: Axes, *, threads: int = 1, every: int = 4, reproducible: bool = False, gradients: bool = False) -> int:
    """The most bytes that a worker needs beyond those that it has when idle.

    threads (4 keys + queries + tile + partial) + 2 keys + (every depth + 1) rows partial + H Q (D + E + 1) itemsize

    A thread has its chunks, a copy of the keys for the computation, and the tile; as many chunks again are read ahead,
    and one is on its way in or out, twice; partial results wait for those that they merge with; the queries and the
    result are whole somewhere. In reproducible mode a chunk of keys is of float64, and the copies are its slices.

    With gradients, of one chunk of queries, a thread has two tiles more and the gradients of its chunks; those of the
    keys wait to be written, twice; those of the queries for each other; and the rows and their cotangents are whole.
    """
    wide = 8 if reproducible else axes.itemsize
    part, keys = axes.partial(reproducible=reproducible), axes.keys * wide // axes.itemsize
    working = (7 if reproducible else 2) * keys + axes.queries * wide // axes.itemsize + TILE * wide + part
    whole = axes.H * axes.Q * (axes.D + axes.E + 1) * axes.itemsize
    waiting = (every * axes.depth(every) + 1) * axes.rows * part
    needed = threads * (working + 2 * keys) + 2 * keys + waiting + whole
    if gradients:
        waiting = (every * axes.depth(every) + 1) * axes.rows * axes.queries
        whole = axes.H * axes.Q * (axes.D + 2 * axes.E + 6) * axes.itemsize
        needed += threads * (2 * TILE * wide + keys + axes.queries) + 2 * keys + waiting + whole
    return needed


def read_bytes(axes: Axes, *, gradients: bool = False) -> int:
    """Bytes of keys and values that are read in all: once for each chunk of queries, and once more for gradients."""
    return (2 if gradients else 1) * axes.rows * axes.G * axes.K * (axes.D + axes.E) * axes.itemsize


def moved_bytes(axes: Axes, *, workers: int = 2, reproducible: bool = False, gradients: bool = False) -> int:
    """The most bytes that go from worker to worker: queries to each, keys and values and partial results once.

    In reproducible mode keys and values go as float64. With gradients, rows and their cotangents go to each, and what a
    pair of chunks gives to the gradients of both goes once.
    """
    keys = read_bytes(axes) * (8 if reproducible else axes.itemsize) // axes.itemsize
    to_each = axes.H * axes.Q * axes.D * axes.itemsize
    moved = (workers - 1) * to_each + keys + axes.tasks * axes.partial(reproducible=reproducible)
    if gradients:
        rows = axes.H * axes.Q * 2 * (axes.E + 3) * axes.itemsize
        moved += (workers - 1) * (rows + to_each) + 2 * read_bytes(axes) + axes.tasks * axes.queries
    return moved
