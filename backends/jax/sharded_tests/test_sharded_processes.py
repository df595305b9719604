"""Two processes of two devices each, over loopback: they agree with one, and neither outlives the other unnoticed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("process.py")
LIMIT = 240  # seconds; a process that hangs is killed and fails the test


def together(what: str) -> list[subprocess.CompletedProcess[str]]:
    """How both processes ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    started = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(rank), str(port), what],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        ended = [(process, *process.communicate(timeout=LIMIT)) for process in started]
    finally:
        for process in started:
            process.kill()
    return [subprocess.CompletedProcess(p.args, p.returncode, out, err) for p, out, err in ended]


@pytest.mark.parametrize(
    ("how", "mode"),
    [
        ("ring", "default"),
        *(pytest.param(how, "default", marks=pytest.mark.slow) for how in ("all_to_all", "split_keys")),
        *(pytest.param(how, "reproducible", marks=pytest.mark.slow) for how in ("ring", "all_to_all", "split_keys")),
    ],
)
def test_two_processes_agree_with_one(how: str, mode: str) -> None:
    for done in together(f"{how} {mode}"):
        assert done.returncode == 0, done.stderr[-3000:]
        assert "all agree" in done.stdout


@pytest.mark.parametrize("killed", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_when_a_process_is_killed_the_other_ends_and_says_so(killed: int) -> None:
    """Process 0 keeps count of the others, so its end and that of another are noticed in different ways."""
    done = together(f"kill {killed}")
    assert done[killed].returncode == -signal.SIGKILL
    other = done[1 - killed]
    assert other.returncode != 0
    assert "step 3" in done[killed].stdout
    assert "step 10" not in other.stdout
    assert "Connection closed by peer" in other.stderr or "another task died" in other.stderr, other.stderr[-3000:]
