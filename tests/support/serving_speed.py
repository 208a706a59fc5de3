"""What serving asks of a GPU beside pages: graphs at other lengths, invariant calls, appending,
host time, shared prefixes, mixed batches, and one long sequence among short ones.

    PYTHONPATH=.:tests python -m support.serving_speed [PART ...]

A line is a cell: its microseconds, those of what it stands beside, and the ratio, in brackets the
most that it may be. A cell that fails prints its error, and the next one runs. "step": the
weights of a layer pass through L2 before each call; the time of the same graph without the calls is
taken off.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from support import graphs, host_time, paged_speed, serving_cells
from support.paged import Cache
from support.paged_speed import DTYPE, PAGE, Bar
from support.serving_cells import D_HEAD, HEADS, Cells, int32, keys
from support.without_gpu import without_gpu
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import pyflash

N_OTHERS, N_TIMED = 200, 50  # sets of lengths, and how many of them are timed
BATCH, CAPACITY = 24, 8192  # of these
SAME_TIME = (0.98, 1.02)
HOST = 8.0  # us


def random_lengths(rng: random.Random, batch: int, longest: int) -> Tensor:
    kinds = lambda: (0, 1, rng.randrange(longest + 1), rng.randrange(200), longest)  # noqa: E731
    lengths = [min(rng.choice(kinds()), longest) for _ in range(batch)]
    return torch.tensor(lengths, dtype=torch.int32)


def graphs_at_other_lengths(rounds: int) -> Cells:
    cache = Cache(
        (keys(CAPACITY),) * BATCH, PAGE, HEADS[1], D_HEAD, DTYPE, device="cuda",
        width=-(-keys(CAPACITY) // PAGE),
    )  # fmt: skip
    for n_queries, batch_invariant in itertools.product((1, 4), (False, True)):
        cell = f"{n_queries} queries, {'invariant' if batch_invariant else 'default'}"
        yield cell, partial(at_other_lengths, cache, n_queries, batch_invariant, rounds)


def at_other_lengths(cache: Cache, n_queries: int, batch_invariant: bool, rounds: int) -> str:
    q = torch.randn(BATCH, n_queries, HEADS[0], D_HEAD, device="cuda").to(DTYPE)
    options = {"causal": True, "return_lse": True, "batch_invariant": batch_invariant}
    call = lambda: pyflash.attention_paged(q, *cache.tensors, **options)  # noqa: E731
    calls = lambda: [call() for _ in range(8)]  # noqa: E731
    cache.seqlens.fill_(17)
    graph, found = graphs.captured(call)
    timed, _ = graphs.captured(calls)
    rng, ratios, n_same = random.Random(0), [], 0
    for i in range(N_OTHERS):
        cache.seqlens.copy_(random_lengths(rng, BATCH, keys(CAPACITY)))
        cache.table.copy_(cache.table[:, torch.randperm(cache.table.shape[1], device="cuda")])
        q.normal_()
        for x in found:
            x.fill_(torch.nan)
        graph.replay()
        n_same += all(map(torch.equal, found, call()))
        if i % (N_OTHERS // N_TIMED) == 0:
            ratios.append(over_fresh(timed, calls, rounds))
    least, most = min(ratios), max(ratios)
    missed = (
        "" if n_same == N_OTHERS and SAME_TIME[0] <= least <= most <= SAME_TIME[1] else " missed"
    )
    return (
        f"bits of a call at {n_same} of {N_OTHERS} sets of lengths; over a graph of these lengths "
        f"{least:.3f} to {most:.3f}, median {statistics.median(ratios):.3f}, of {len(ratios)} "
        f"(0.98 to 1.02){missed}; {asked_of_the_host(graph, call)}"
    )


def over_fresh(timed: Any, calls: Callable[[], Any], rounds: int) -> float:
    fresh, _ = graphs.captured(calls)
    ratio = 0.0
    for n in (rounds, 3 * rounds, 6 * rounds):  # what differs is still there among more
        us = graphs.medians({"replayed": timed.replay, "fresh": fresh.replay}, n)
        ratio = us["replayed"] / us["fresh"]
        if SAME_TIME[0] < ratio < SAME_TIME[1]:
            break
    return ratio


def asked_of_the_host(graph: Any, call: Callable[[], Any]) -> str:
    """Whether a call or a replay waits, and what replays take of torch's allocator."""
    torch.cuda.synchronize()
    waits = "no sync"
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
        graph.replay()
    except RuntimeError as error:
        waits = f"missed: {error}"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    taken = "allocation.all.allocated"
    before = torch.cuda.memory_stats()[taken]
    for _ in range(10):
        graph.replay()
    return f"{waits}, {torch.cuda.memory_stats()[taken] - before} allocations in 10 replays"


def host(rounds: int) -> Cells:
    yield "us a call", partial(of_the_host, 10 * rounds)


def of_the_host(batches: int) -> Iterator[str]:
    q, k, v = torch.randn(3, 1, 64, 2, 64, device="cuda").half()
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]
    k_cache, v_cache = torch.randn(2, 1, 64, 2, 64, device="cuda").half()
    table, used, starts = int32(0)[None], int32(64), int32(0, 64)
    slots = torch.arange(64, device="cuda")
    calls: dict[str, Callable[[], Any]] = {
        "SDPA": lambda: scaled_dot_product_attention(*heads_first),
        "attention": lambda: pyflash.attention(q, k, v),
        "attention_paged": lambda: pyflash.attention_paged(q, k_cache, v_cache, table, used),
        "attention_cached": lambda: pyflash.attention_cached(q, k_cache, v_cache, used),
        "append_kv": lambda: pyflash.append_kv(k[0], v[0], k_cache, v_cache, slots),
        "slots_of": lambda: pyflash.slots_of(table, used, starts, 64, 64),
    }
    try:
        made = pyflash.schedule(2, k_cache, table, used)
        calls["Schedule.update"] = lambda: made.update(k_cache, table, used)
    except (RuntimeError, ValueError) as error:
        yield f"no schedule: {first_line(error)}"
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(batches + 1):
        for name, call in calls.items():
            us = host_time._timed([call] * 20)
            if turn > 0:  # the first warms up
                times[name].append(us)
    us_of = {name: statistics.median(of) for name, of in times.items()}
    for name, us in us_of.items():
        missed = " missed" if name != "SDPA" and us > HOST else ""
        yield f"{name} {us:.1f}, {us / us_of['SDPA']:.2f} of SDPA's (at most {HOST:g} us){missed}"


class Part(NamedTuple):
    cells: Callable[[int], Cells]
    what: str
    seconds: int  # on an H200


PARTS = {
    "graphs": Part(graphs_at_other_lengths, "replays at 200 other lengths: bits and time", 20),
    "invariant": Part(serving_cells.invariant, "batch_invariant over the default", 12),
    "append": Part(serving_cells.append, "append_kv over a copy of the same bytes", 2),
    "host": Part(host, "microseconds of the host a call", 2),
    "cascade": Part(serving_cells.cascade, "a shared prefix over whole sequences", 2),
    "mixed": Part(serving_cells.mixed, "a chunk and decodes over both alone", 3),
    "long": Part(serving_cells.long, "a sequence of 128k among short ones", 2),
}


def print_part(name: str, rounds: int) -> None:
    begin = time.perf_counter()
    try:
        for cell, run in PARTS[name].cells(rounds):
            print_cell(f"{name}: {cell}", run)
    except Exception as error:  # what its cells share cannot be made
        print(f"{name}: {first_line(error)}", flush=True)
    torch.cuda.empty_cache()
    print(f"{name}: {time.perf_counter() - begin:.1f} s", flush=True)


def print_cell(cell: str, run: Callable[[], Any]) -> None:
    try:
        found = run()
        for x in [found] if isinstance(found, str) else found:
            line = f"{x.us:.1f} us, {x.beside} {x.us_beside:.1f}: {x}" if isinstance(x, Bar) else x
            print(f"{cell}: {line}", flush=True)
    except Exception as error:
        print(f"{cell}: {first_line(error)}", flush=True)


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or '-').splitlines()[0][:300]}"


def tiny(stack: ExitStack) -> None:
    """Stand-ins for a GPU, and sizes for a CPU."""
    stack.enter_context(without_gpu(paged_speed))
    stack.enter_context(patch.multiple(paged_speed, POOL_TOKENS=1 << 14, BEYOND_L2=1.0))
    sizes = {"SCALE": 64, "WEIGHT": (64, 64), "CALLS": 2, "HEADS": (4, 2)}
    stack.enter_context(patch.multiple(serving_cells, **sizes))
    here = {"N_OTHERS": 4, "N_TIMED": 2, "BATCH": 3, "HEADS": (4, 2)}
    stack.enter_context(patch.multiple(sys.modules[__name__], **here))


def main(words: list[str] | None = None) -> None:
    parts = "\n".join(f"  {name:10s} {x.what} ({x.seconds} s)" for name, x in PARTS.items())
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[0],
        epilog=f"parts, with their time on an H200:\n{parts}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="by default all")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dry", action="store_true", help="on the CPU, tiny: times say nothing")
    asked = parser.parse_args(words)
    if unknown := [name for name in asked.parts if name not in PARTS]:
        parser.error(f"no part {', '.join(unknown)}: expected some of {', '.join(PARTS)}")
    torch.manual_seed(0)
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        if asked.dry:
            tiny(stack)
        print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
        for name in asked.parts or PARTS:
            print_part(name, asked.rounds)


if __name__ == "__main__":
    main()
