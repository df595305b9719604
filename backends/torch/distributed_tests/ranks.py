"""Processes that make one `torch.distributed` group and run functions together."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import Any

LIMIT = 60.0  # seconds for one function, after which all processes are killed and the test fails
PATIENCE = 20.0  # seconds that a rank waits for another


class Ranks:
    """n processes; `run(function, ...)` calls it on each, with its rank before the other arguments."""

    def __init__(self, n: int, patience: float = PATIENCE) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload(["torch._dynamo", "attnspec_torch.distributed", "attnspec_conformance.operands"])
        self.folder = tempfile.TemporaryDirectory()
        meeting = str(Path(self.folder.name) / "meeting")
        self.pipes, self.processes, self.ended = [], [], False
        for rank in range(n):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, n, meeting, patience, there), daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def run(self, function: Callable[..., Any], *args: Any, limit: float = LIMIT) -> list[Any]:
        """What each rank returns; fails with what any of them raised, or if it takes longer."""
        answers = self.answers(function, *args, limit=limit)
        failed = [answer for ok, answer in answers if not ok]
        assert not failed, "\n".join(map(str, failed))
        return [answer for _, answer in answers]

    def answers(self, function: Callable[..., Any], *args: Any, limit: float = LIMIT) -> list[tuple[bool, Any]]:
        """(True, what it returns) or (False, the traceback) of each rank; (False, None) of one that is no more."""
        for pipe in self.pipes:
            pipe.send((function, args))
        until, found = monotonic() + limit, []
        for rank, pipe in enumerate(self.pipes):
            if not pipe.poll(max(0.0, until - monotonic())):
                self.end()
                msg = f"rank {rank} has not answered after {limit} seconds; all were killed."
                raise TimeoutError(msg)
            try:
                found.append(pipe.recv())
            except EOFError:
                found.append((False, None))
        if not all(ok for ok, _ in found):
            self.end()
        return found

    def end(self) -> None:
        """Kill them."""
        self.ended = True
        for process in self.processes:
            process.kill()
            process.join()
        self.folder.cleanup()


def _serve(rank: int, n: int, meeting: str, patience: float, pipe: Connection) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=n, timeout=timedelta(seconds=patience)
    )
    while True:
        function, args = pipe.recv()
        try:
            answer = True, function(rank, *args)
        except BaseException:
            answer = False, traceback.format_exc()
        pipe.send(answer)
