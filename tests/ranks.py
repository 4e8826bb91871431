"""run_ranks: a test's function in several real processes that talk over gloo on loopback."""

from __future__ import annotations

import importlib.util
import inspect
import multiprocessing
import os
import pickle
import socket
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

FOLLOWERS_S = 1.0  # after a failure, how long to listen for one that happened earlier


class RankFailed(AssertionError):
    """The first rank that failed, with its traceback."""


def run_ranks(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout_s: float = 90.0,
    group_timeout_s: float = 30.0,
) -> list[Any]:
    """What `fn(*args)` returned on each of `world_size` ranks, tensors by value.

    `fn` stands at the top level of a module, which fresh processes load from its file. Raises RankFailed for the
    first rank that fails, or when time is up; no process is left either way.
    """
    context = multiprocessing.get_context("spawn")
    call = (inspect.getfile(fn), fn.__name__, args)
    store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(world_size)}
    processes, pipes = [], {}
    try:
        for rank in range(world_size):
            ours, theirs = context.Pipe(duplex=False)
            environ = {**store, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
            process = context.Process(
                target=_rank_main, args=(theirs, call, environ, group_timeout_s), daemon=True
            )
            process.start()
            theirs.close()
            processes.append(process)
            pipes[ours] = rank
        return _collect(pipes, time.monotonic() + timeout_s)
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.kill()
            process.join()
            process.close()


def _collect(pipes: dict[Connection, int], deadline: float) -> list[Any]:
    results: dict[int, Any] = {}
    failures: list[tuple[float, int, str]] = []
    open_ = dict(pipes)
    while open_:
        ready = wait(list(open_), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for pipe in ready:
            rank = open_.pop(pipe)
            try:
                failed_at, value = pickle.loads(pipe.recv_bytes())
            except EOFError:
                failed_at, value = time.monotonic(), "died without a word"
            if failed_at is None:
                results[rank] = value
            else:
                failures.append((failed_at, rank, value))
                deadline = min(deadline, time.monotonic() + FOLLOWERS_S)
    if failures:
        _, rank, text = min(failures)
        raise RankFailed(f"rank {rank} of {len(pipes)} failed first:\n{text}")
    if open_:
        raise RankFailed(f"ranks {sorted(open_.values())} were not done in time")
    return [results[rank] for rank in sorted(results)]


def _rank_main(
    pipe: Connection, call: tuple[str, str, tuple[Any, ...]], environ: dict[str, str], group_timeout_s: float
) -> None:
    os.environ.update(environ)
    torch.set_num_threads(1)
    try:
        path, name, args = call
        dist.init_process_group("gloo", timeout=timedelta(seconds=group_timeout_s))
        result = getattr(_load(path), name)(*args)
        message = (None, result)
        dist.destroy_process_group()
    except BaseException:
        message = (time.monotonic(), traceback.format_exc())
    pipe.send_bytes(pickle.dumps(message))


def _load(path: str) -> Any:
    """The module in this file, under a name of its own: test files share base names."""
    spec = importlib.util.spec_from_file_location("ranks_test_module", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
