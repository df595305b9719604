"""Idle cores for tiles: as many threads as the BLAS may use, each of which then uses one.

A BLAS that cuts the product of one tile among its threads loses more than it wins; tiles that are computed side by side
do not. So the usual limits hold: OPENBLAS_NUM_THREADS, `threadpoolctl.threadpool_limits`, what joblib and Dask set in
their workers. Where the BLAS may use one thread, or threadpoolctl is not installed, tiles are computed one by one.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import cache
from importlib.util import find_spec
from threading import Lock
from typing import Any


def each(function: Callable[[Any], None], tasks: Sequence[Any]) -> None:
    """`function(task)` for every task. After an error no further task begins, and none is running when it is raised."""
    workers = min(len(tasks), allowed()) if len(tasks) > 1 else 1
    if workers == 1:
        for task in tasks:
            function(task)
        return
    left = deque(tasks)

    def work() -> None:
        while True:
            try:
                task = left.popleft()
            except IndexError:
                return
            try:
                function(task)
            except BaseException:
                left.clear()
                raise

    with _one_each():
        helpers: list[Future[None]] = []
        try:
            with suppress(RuntimeError):  # no more threads are to be had, as when Python ends: this one does it all
                for _ in range(workers - 1):
                    # Silence about overflow belongs to the caller's context; every thread needs a copy of its own.
                    helpers.append(_pool(workers - 1).submit(copy_context().run, work))
            work()
        finally:
            left.clear()
            wait([helper for helper in helpers if not helper.cancel()])
    for helper in helpers:
        if not helper.cancelled():
            helper.result()


def allowed() -> int:
    """How many threads the BLAS of NumPy may use at the moment."""
    return max((library.num_threads for library in _libraries()), default=1)


@cache
def _libraries() -> tuple[Any, ...]:
    if not find_spec("threadpoolctl"):
        return ()
    from threadpoolctl import ThreadpoolController

    return tuple(ThreadpoolController().select(user_api="blas").lib_controllers)


_pool = cache(lambda workers: ThreadPoolExecutor(workers, thread_name_prefix="attnspec"))


class _Pinned:
    """Calls that are at work, and what the BLAS was allowed before the first of them."""

    def __init__(self) -> None:
        self.lock, self.calls = Lock(), 0
        self.limits: tuple[tuple[Any, int], ...] = ()


_pinned = _Pinned()


@contextmanager
def _one_each() -> Iterator[None]:
    """One thread for the BLAS until the last of the calls that ask for it is done."""
    pinned = _pinned
    with pinned.lock:
        if not pinned.calls:
            pinned.limits = tuple((library, library.num_threads) for library in _libraries())
            for library, _ in pinned.limits:
                library.set_num_threads(1)
        pinned.calls += 1
    try:
        yield
    finally:
        with pinned.lock:
            pinned.calls -= 1
            if not pinned.calls:
                for library, limit in pinned.limits:
                    library.set_num_threads(limit)


def _in_child() -> None:
    """A forked process has none of its parent's threads, and of its locks only what they were."""
    limits = _pinned.limits if _pinned.calls else ()
    _pool.cache_clear()
    _pinned.__init__()  # type: ignore[misc]
    for library, limit in limits:
        library.set_num_threads(limit)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
