"""Tiles computed side by side: the same bits, and the limits of the BLAS as they were."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, get_ident
from typing import Any

import numpy as np
import pytest
from attnspec_numpy import pool
from threadpoolctl import threadpool_info, threadpool_limits

import attnspec

THREADS = 3


@pytest.fixture(autouse=True)
def allowed() -> Iterator[None]:
    """As on a machine with a few cores, whatever this one has."""
    with threadpool_limits(THREADS, user_api="blas"):
        yield


def limits() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def whole_numbers(tasks: list[int]) -> tuple[list[int], set[int]]:
    """The tasks that were done, and the threads that did them."""
    done, threads, together = [], set(), Barrier(THREADS, timeout=30)

    def task(n: int) -> None:
        if n < THREADS:
            together.wait()  # all threads hold one at the same time, or nobody goes on
        done.append(n)
        threads.add(get_ident())

    pool.each(task, tasks)
    return done, threads


def test_as_many_tasks_run_at_once_as_the_blas_has_threads_and_each_runs_once() -> None:
    done, threads = whole_numbers(list(range(20)))
    assert sorted(done) == list(range(20))
    assert len(threads) == THREADS


def test_the_bits_are_those_of_one_thread() -> None:
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 3, 1100, 16), dtype=np.float32)
    mask: Any
    for mask in (None, attnspec.causal(), np.arange(1100) % 3 > 0):
        many = attnspec.attention(q, k, v, mask=mask)
        with threadpool_limits(1, user_api="blas"):
            one = attnspec.attention(q, k, v, mask=mask)
        assert np.array_equal(many, one)


def test_the_blas_has_one_thread_inside_and_its_limit_again_after() -> None:
    inside: list[set[int]] = []
    pool.each(lambda _: inside.append(limits()), range(4))
    assert inside == [{1}] * 4
    assert limits() == {THREADS}


@pytest.mark.parametrize("of_the_caller", [True, False])
def test_an_error_is_raised_once_no_task_runs_and_the_limit_is_back(of_the_caller: bool) -> None:
    begun, caller = [], get_ident()

    def task(n: int) -> None:
        begun.append(n)
        time.sleep(0.002)  # so that every thread has its turn
        if (get_ident() == caller) == of_the_caller:
            raise LookupError(n)

    with pytest.raises(LookupError):
        pool.each(task, range(500))
    after = len(begun)
    assert after < 500
    assert limits() == {THREADS}
    pool.each(begun.append, range(3))
    assert len(begun) == after + 3


def test_where_the_blas_may_use_one_thread_there_is_one() -> None:
    threads = set()
    with threadpool_limits(1, user_api="blas"):
        pool.each(lambda _: threads.add(get_ident()), range(8))
    assert threads == {get_ident()}


def test_calls_from_threads_of_the_user_leave_the_limit_as_it_was() -> None:
    q, k, v = np.random.default_rng(1).standard_normal((3, 2, 1100, 8), dtype=np.float32)
    alone = attnspec.attention(q, k, v)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: attnspec.attention(q, k, v), range(12)))
    assert all(np.array_equal(x, alone) for x in found)
    assert limits() == {THREADS}


def test_overflow_is_silent_in_every_thread() -> None:
    q: Any = np.full((3, 1100, 8), 1e30, dtype=np.float32)
    with np.errstate(all="raise"):
        out = attnspec.attention(q, q, q)
    assert not np.isfinite(out).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_a_pool_of_its_own() -> None:
    q, k, v = np.random.default_rng(2).standard_normal((3, 2, 1100, 8), dtype=np.float32)
    parents = attnspec.attention(q, k, v)

    def in_child(write: Any) -> None:
        try:
            same = np.array_equal(attnspec.attention(q, k, v), parents)
            os.write(write, b"same" if same and limits() == {THREADS} else b"other")
        finally:
            os._exit(0)

    for at_work in (False, True):
        read, write = os.pipe()
        if at_work:  # a call of another thread may be at work when a process forks
            with pool._one_each():
                child = os.fork()
                if not child:
                    in_child(write)
        else:
            child = os.fork()
            if not child:
                in_child(write)
        os.close(write)
        os.waitpid(child, 0)
        assert os.read(read, 5) == b"same"
        os.close(read)


LATE = """
import threading
import numpy as np, attnspec
from threadpoolctl import threadpool_limits

threadpool_limits(3, user_api="blas")
q = np.ones((8, 1100, 8), dtype=np.float32)

attnspec.attention(q, q, q)  # the threads are there, and are told to end with the main one


def late():
    threading.main_thread().join()
    print(attnspec.attention(q, q, q).shape)

threading.Thread(target=late).start()
"""


def test_a_thread_that_outlives_the_main_one_computes_alone() -> None:
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.strip() == "(8, 1100, 8)", done.stderr


@pytest.mark.parametrize("Q", [5, 70])
def test_a_mask_that_is_a_view_of_other_bytes_says_what_its_numbers_say(Q: int) -> None:
    q, k, v = np.random.default_rng(3).standard_normal((3, 2, Q, 8), dtype=np.float32)
    image = np.where(np.random.default_rng(4).random((Q, Q)) < 0.5, 255, 0).astype(np.uint8)
    image[:, 0] = 1
    assert np.array_equal(
        attnspec.attention(q, k, v, mask=image.view(np.bool_)), attnspec.attention(q, k, v, mask=image != 0)
    )
