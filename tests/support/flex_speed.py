"""Variants beside FlexAttention with max-autotune: the parts `flex` and `ahead` of
support.variant_speed.

FlexAttention is compiled ahead, in several processes that fill inductor's cache, for all variants
of a length; then one process, with nothing beside it, takes kernels from the cache and times them.
Processes compile side by side, but only one of them at a time uses the GPU: benchmarks of
max-autotune and block masks are made under a lock, so that it chooses on a GPU at rest. (The one
launch of each kernel that is done is outside of the lock.)

Lengths come in the order 4k, 16k, 1k. Compiling a length may take COMPILING of the time that is
left; if it takes more, what is compiled by then is timed, and nothing else. Environment:
FLEX_LIMIT, seconds (200); FLEX_PROCESSES (cores less two); FLEX_VARIANTS, names divided by commas.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from statistics import geometric_mean
from typing import Any, NamedTuple

import torch
from support.timed_variants import (
    D_HEADS,
    DEVICE,
    NAMED,
    ON_GPU,
    TOKENS,
    Run,
    apart,
    first_line,
    given_of,
    microseconds,
    ours,
    problem_of,
    said,
    say,
)

from pyflash.bench.measure import rotated_inputs
from pyflash.bench.variants import Given, flex_functions
from pyflash.op.selection import Problem

LENGTHS = (TOKENS // 4, TOKENS, TOKENS // 16)
MODE = "max-autotune-no-cudagraphs"
COMPILING = 0.6
MEAN, LEAST = 2.0, 1.6  # asked
N_SAMPLES = 7
APART = 1e-2  # of the norm, at most; both round P and out to bf16

Lock = AbstractContextManager[Any]


class Cell(NamedTuple):
    name: str
    d_head: int
    seqlen: int

    def __str__(self) -> str:
        return f"{self.name:13s} {self.d_head:4d} {self.seqlen:6d}"


def cells(seqlen: int) -> list[Cell]:
    """A bias of 16k x 16k has more elements than FlexAttention counts."""
    names = os.environ.get("FLEX_VARIANTS", ",".join([*NAMED, "bools"])).split(",")
    return [
        Cell(name, d_head, seqlen)
        for d_head in D_HEADS
        for name in names
        if name != "bias" or seqlen < TOKENS
    ]


def flex_run(given: Given, problem: Problem, lock: Lock) -> Run:
    """FlexAttention, compiled at the first call; on the CPU as it is."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    score_mod, mask_mod = flex_functions(given, problem)
    extents = [
        n if name in given.mask_reads else None
        for name, n in (("b", problem.batch), ("h", problem.heads_q))
    ]
    mask = None
    if mask_mod is not None:
        with lock:
            lengths = problem.seqlen_q, problem.seqlen_k
            mask = create_block_mask(mask_mod, *extents, *lengths, device=problem.device)
            _rest()
    run: Callable[..., Any] = flex_attention
    if ON_GPU:
        torch._dynamo.reset()  # else each cell counts as one more form of the same function
        run = torch.compile(flex_attention, dynamic=False, mode=MODE)

    def call(*inputs: torch.Tensor) -> torch.Tensor:
        heads_first = (x.transpose(1, 2) for x in inputs)
        return run(*heads_first, score_mod=score_mod, block_mask=mask).transpose(1, 2)

    return call


def _rest() -> None:
    if ON_GPU:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


# Ahead: what other processes run.

_LOCK: Lock = nullcontext()


def _start(lock: Lock) -> None:
    """In each process."""
    global _LOCK
    _LOCK = lock
    _compile_in_one_thread()
    if ON_GPU:
        with said("max-autotune of several processes at a time"):  # else the pool starts others
            benchmark_alone(lock)


def _compile_in_one_thread() -> None:
    """A pool in each process would be processes squared."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    if ON_GPU:
        from torch._inductor import config

        config.compile_threads = 1


def benchmark_alone(lock: Lock) -> None:
    """Takes the lock wherever max-autotune measures what it chooses from."""
    from torch._inductor.select_algorithm import AlgorithmSelectorCache as Choices

    benchmark = Choices.benchmark_in_current_process

    def alone(*arguments: Any, **options: Any) -> Any:
        with lock:
            try:
                return benchmark(*arguments, **options)
            finally:
                _rest()

    Choices.benchmark_in_current_process = staticmethod(alone)  # type: ignore[method-assign]


def compile_ahead(cell: Cell) -> tuple[float, str]:
    """Seconds, and what went wrong."""
    start, error = time.monotonic(), ""
    try:
        with torch.no_grad():
            problem = problem_of(cell.d_head, cell.seqlen)
            with _LOCK:
                given, inputs = given_of(cell.name, problem), rotated_inputs(problem, DEVICE)[0]
                _rest()
            flex_run(given, problem, _LOCK)(*inputs)
            del given, inputs
    except Exception as raised:
        error = first_line(raised)
    with contextlib.suppress(Exception):
        _rest()
    return time.monotonic() - start, error


class Ahead:
    """The processes that compile."""

    def __init__(self) -> None:
        usual = len(os.sched_getaffinity(0)) - 2 if ON_GPU else 1
        self.n_processes = max(1, int(os.environ.get("FLEX_PROCESSES", usual)))
        self.pool: ProcessPoolExecutor | None = None
        self.is_over = False  # it took too long, and was stopped

    def compile(self, wanted: list[Cell], until: float) -> list[Cell]:
        """Those that may be timed: compiled in time, or to be compiled then, since a process ended
        or most failed, which is not FlexAttention's doing."""
        start, found, seconds, failed = time.monotonic(), [], 0.0, []
        if self.pool is None:
            context = multiprocessing.get_context("spawn")
            self.pool = ProcessPoolExecutor(
                self.n_processes, context, initializer=_start, initargs=(context.RLock(),)
            )
        running = {self.pool.submit(compile_ahead, cell): cell for cell in wanted}
        done, late = wait(running, max(0.0, until - time.monotonic()))
        for result, cell in running.items():
            if result not in done:
                continue
            of_one, error = (0.0, "") if result.exception() else result.result()
            seconds += of_one
            if error:
                failed.append(cell)
                say(f"{cell} FlexAttention failed: {error}")
            else:
                found.append(cell)
        self.is_over = len(late) > 0
        n_ended = sum(result.exception() is not None for result in done)
        if late or n_ended:
            self.stop()  # nothing compiles beside times
        took, ended = time.monotonic() - start, f", {n_ended} where a process ended" * (n_ended > 0)
        say(f"{len(found)} of {len(wanted)} ahead in {took:.0f} s, {seconds:.0f} of all{ended}")
        return found if len(failed) <= len(wanted) // 2 else wanted

    def stop(self) -> None:
        for process in multiprocessing.active_children():
            process.kill()
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)
            self.pool = None


# Times.


def timed(cell: Cell) -> float:
    """FlexAttention's time over pyflash's."""
    problem = problem_of(cell.d_head, cell.seqlen)
    given, inputs = given_of(cell.name, problem), rotated_inputs(problem, DEVICE)
    start = time.monotonic()
    flex, own = flex_run(given, problem, nullcontext()), ours(given)
    out = flex(*inputs[0])
    seconds = time.monotonic() - start
    error = apart(own(*inputs[0]), out)
    if not error < APART:
        raise AssertionError(f"results are {error:.3g} of the norm apart")
    del out
    us = microseconds({"flex": (flex, inputs), "own": (own, inputs)}, N_SAMPLES)
    ratio = us["flex"] / us["own"]
    say(
        f"{cell} {us['own']:9.1f} us, flex {us['flex']:9.1f}, ratio {ratio:6.3f}"
        f"{'' if ratio >= LEAST else ' missed'}, apart {error:.1e}, compiled in {seconds:.1f} s"
    )
    return ratio


def means(found: dict[Cell, float]) -> Iterator[str]:
    """Of all, of each d_head and length, and of all but bools, which have no name."""

    def mean(what: str, ratios: list[float]) -> str:
        if not ratios:
            return f"{what}: none"
        n_good = sum(ratio >= LEAST for ratio in ratios)
        return (
            f"{what}: geometric mean {geometric_mean(ratios):.3f} (bar {MEAN:g}), least "
            f"{min(ratios):.3f}, {n_good} of {len(ratios)} at {LEAST:g} or above"
        )

    for d_head in D_HEADS:
        for seqlen in LENGTHS:
            ratios = [x for cell, x in found.items() if cell[1:] == (d_head, seqlen)]
            if ratios:
                yield mean(f"d {d_head}, {seqlen}", ratios)
    for d_head in D_HEADS:
        yield mean(f"d {d_head}", [x for cell, x in found.items() if cell.d_head == d_head])
    yield mean("named variants", [x for cell, x in found.items() if cell.name in NAMED])
    yield mean("all", list(found.values()))


def main(times: bool) -> None:
    _compile_in_one_thread()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    until = time.monotonic() + float(os.environ.get("FLEX_LIMIT", 200))
    installed = find_spec("flash_attn") is not None
    say(f"FlexAttention's FLASH backend: flash_attn is {'' if installed else 'not '}installed")
    found: dict[Cell, float] = {}
    ahead = Ahead()
    try:
        for seqlen in LENGTHS:
            left = until - time.monotonic()
            if ahead.is_over or left <= 0:
                say(f"no time for {seqlen}")
                break
            compiled = ahead.compile(cells(seqlen), until - (1 - COMPILING) * left * times)
            if times:
                _time(compiled, until, found)
    finally:
        for line in means(found) if times else ():
            say(line)
        ahead.stop()


def _time(compiled: list[Cell], until: float, found: dict[Cell, float]) -> None:
    """Into `found`, one by one: who stops this has what is there."""
    for n_done, cell in enumerate(compiled):
        if time.monotonic() >= until:
            say(f"limit: {n_done} of {len(compiled)} were timed")
            return
        with said(str(cell)):
            found[cell] = timed(cell)
        with said("between cells"):
            _rest()
