"""Processes that are the ranks of a group on the CPU."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

TIMEOUT = timedelta(seconds=40)  # far above what any test takes
_GRACE = 20.0  # seconds beyond a group's timeout until a process counts as hanging

# Ranks are forked from a process that has imported torch and started nothing.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "pyflash.distributed",
        "torch._dynamo",  # which DTensor imports at its first op
        "torch.distributed.tensor.debug",
        "torch.distributed.tensor.parallel",
    ]
)


class Died(Exception):
    """A rank ended without a result."""


def outcomes(
    n_ranks: int, function: Callable[..., Any], *arguments: Any, timeout: timedelta = TIMEOUT
) -> list[Any]:
    """What function(rank, *arguments) returned on each rank, or the exception that it raised. The
    function is one of a module's; results are pickled. Fails if a rank hangs."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        store = str(Path(folder) / "store")
        connections: list[Connection] = []
        for rank in range(n_ranks):
            ours, theirs = _context.Pipe(duplex=False)
            process = _context.Process(
                target=_rank, args=(rank, n_ranks, store, timeout, theirs, function, arguments)
            )
            process.start()
            theirs.close()
            stack.callback(_end, process)
            connections.append(ours)
        results: dict[Connection, Any] = {}
        until = time.monotonic() + timeout.total_seconds() + _GRACE
        while len(results) < n_ranks:
            ready = wait([c for c in connections if c not in results], until - time.monotonic())
            assert ready, f"ranks {[i for i, c in enumerate(connections) if c not in results]} hang"
            for connection in ready:
                results[connection] = _receive(connection)
        return [results[connection] for connection in connections]


def results(n_ranks: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What function(rank, *arguments) returned on each rank; raises what any rank raised."""
    found = outcomes(n_ranks, function, *arguments)
    for outcome in found:
        if isinstance(outcome, Exception):
            raise outcome
    return found


def _receive(connection: Connection) -> Any:
    try:
        return connection.recv()
    except EOFError:
        return Died()


def _end(process: multiprocessing.process.BaseProcess) -> None:
    process.join(2)
    if process.is_alive():
        process.kill()
        process.join()


def _rank(
    rank: int,
    n_ranks: int,
    store: str,
    timeout: timedelta,
    connection: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=n_ranks, timeout=timeout
    )
    try:
        connection.send(function(rank, *arguments))
    except Exception as error:
        connection.send(error)
    os._exit(0)  # without waiting for ranks that are gone
