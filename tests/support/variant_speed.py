"""What is asked of variants, measured: speed beside built-in kernels and FlexAttention, lists and
bits of large masks, host time, first calls.

    PYTHONPATH=.:tests python -m support.variant_speed PART ...

    build   compiles the kernels of all parts ahead, in a process a core; no GPU is needed
    built   whole calls with kept masks beside plain, causal and windows
    lists   kernels that make lists and bits of masks of 64k x 64k; documents of 64k over ideal
    host    host time of calls, and of tracing
    first   CPU seconds of a new variant's first call, each in a fresh cache
    flex    beside FlexAttention with max-autotune (support.flex_speed); it stops after FLEX_LIMIT s
    ahead   what flex compiles, without its times

A line is printed as soon as it is there; a cell that fails is a line, too. "missed": of its bar.
Without a GPU all parts run at sizes that say nothing; build then lists what it would compile.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from statistics import median
from typing import Any

import torch
from support import flex_speed, variant_host
from support.timed_variants import (
    D_HEADS,
    DEVICE,
    NAMED,
    ON_GPU,
    SMALLER,
    TOKENS,
    apart,
    default_of,
    documents_of,
    given_of,
    lengths_of_documents,
    marked,
    microseconds,
    ours,
    problem_of,
    said,
    say,
    variant_of,
    walked_scores,
)
from torch.nn.attention.flex_attention import create_block_mask

import pyflash
from pyflash.bench.measure import rotated_inputs
from pyflash.bench.variants import Given, flex_functions
from pyflash.config import parse
from pyflash.op.selection import Problem
from pyflash.op.variants.features import features_asked
from pyflash.variant.parser import normal_of

LONG = 65536 // SMALLER
HELD = 256 << 20  # bytes that a GPU keeps of masks where nothing is said


# build


def kernels() -> list[tuple[str, int, str]]:
    """Variant, d_head, config."""
    names = (*NAMED, "bools", "function")
    found = {
        (name, d_head, default_of(name, d_head, few_keys=few_keys))
        for name, d_head, few_keys in product(names, D_HEADS, (False, True))
    }
    return sorted(found | {("documents", 128, default_of("alibi", 128))})


def compile_one(name: str, d_head: int, config: str) -> float:
    """As a call does it (`pyflash.op.variants.jit`). Seconds."""
    from pyflash.codegen.build import build_with_variants, nearest_archs

    start = time.monotonic()
    normal, of = normal_of(variant_of(name).portable), parse(config)
    features = features_asked({}, d_head, of.canonical())
    build_with_variants([normal], [of], nearest_archs([90]), [features])
    return time.monotonic() - start


def build() -> None:
    start, wanted = time.monotonic(), kernels()
    if not ON_GPU and "BUILD" not in os.environ:
        for name, d_head, config in wanted:
            say(f"{name:14s} {d_head:4d} {config}")
        return
    n_processes = min(len(os.sched_getaffinity(0)), len(wanted))
    with ProcessPoolExecutor(n_processes, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(compile_one, *kernel): kernel for kernel in wanted}
        for done in as_completed(running):
            name, d_head, config = running[done]
            with said(f"{name} {d_head}"):
                say(f"{name:14s} {d_head:4d} {done.result():6.1f} s  {config}")
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = children.ru_utime + children.ru_stime
    say(f"{len(wanted)} kernels: {time.monotonic() - start:.0f} s, {cpu:.0f} CPU s")


# built

# What stands beside a variant, the most of it that it may take, and whether by tiles of 128 x 128.
BESIDE = {
    "causal": ("causal", 1.03, False),
    "window": ("window", 1.03, False),
    "alibi": ("causal", 1.10, False),
    "bools": ("plain", 1.15, False),
    "t5_bias": ("plain", 1.25, False),
    "bias": ("plain", 1.5, False),
    "prefix_lm": ("plain", 1.05, True),
    "documents": ("plain", 1.05, True),
    "natten_2d": ("plain", 1.15, True),
}


def part_of_tiles(given: Given, problem: Problem) -> float:
    """Tiles of 128 x 128 of which the mask shows something, of all."""
    _, mask_mod = flex_functions(given, problem)
    batch = problem.batch if "b" in given.mask_reads else None
    lengths = problem.seqlen_q, problem.seqlen_k
    mask = create_block_mask(mask_mod, batch, None, *lengths, device=problem.device)
    return 1 - mask.sparsity() / 100


def built() -> None:
    for d_head in D_HEADS:
        for seqlen in (TOKENS // 4, TOKENS):
            with said(f"{d_head} {seqlen}"):
                _built(problem_of(d_head, seqlen))


def _built(problem: Problem) -> None:
    inputs = rotated_inputs(problem, DEVICE)
    names = [x for x in BESIDE if x != "bias" or problem.seqlen_k < TOKENS]
    givens = {name: given_of(name, problem) for name in names}
    left = givens["window"].tensors["left"]
    runs: dict[str, Any] = {
        "plain": pyflash.attention,
        "causal": lambda *x: pyflash.attention(*x, causal=True),
        "window": lambda *x: pyflash.attention(*x, causal=True, window_left=left),
    }
    cell = f"{problem.d_head:4d} {problem.seqlen_k:6d}"
    for name, given in givens.items():
        with said(f"{cell} {name}"):
            run = ours(given)
            out = run(*inputs[0])
            if name in runs and not (error := apart(out, runs[name](*inputs[0]))) < 1e-2:
                raise AssertionError(f"off by {error:.3g} of the norm of the built-in result")
            runs[f"variant {name}"] = run
    us = microseconds({name: (run, inputs) for name, run in runs.items()}, 15)
    say(f"{cell} us: plain {us['plain']:.1f}, causal {us['causal']:.1f}")
    for name, (beside, most, by_tiles) in BESIDE.items():
        if f"variant {name}" not in us:
            continue
        with said(f"{cell} {name}"):
            part = part_of_tiles(givens[name], problem) if by_tiles else 1.0
            ratio = us[f"variant {name}"] / us[beside] / part
            tiles = f", of its tiles, {part:.3f} of all" if by_tiles else ""
            figures = f"{us[f'variant {name}']:8.1f} / {us[beside]:.1f}{tiles}"
            over = f"{name:10s} over {beside:6s} {ratio:6.3f} {marked(ratio, most)}"
            say(f"{cell} {over} us {figures}")


# lists

# Microseconds at most.
LISTED = {"causal": 100, "documents": 100, "bools": 1500, "natten_2d": 1500, "function": 1500}
MAKER = re.compile(r"(?:::|\d)(prepare|judge_blocks|list_blocks|sort_tiles)[<(IE]")


def times_of_makers(call: Callable[[], Any], n_calls: int = 5) -> dict[str, float]:
    """Microseconds of each kernel that makes what a variant's kernel takes, by name."""
    for _ in range(2):
        call()
    if not ON_GPU:
        return {}
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(n_calls):
            call()
        torch.cuda.synchronize()
    samples: dict[str, list[float]] = {}
    for event in profile.events():
        found = MAKER.search(event.name)
        if found and event.device_type == torch.autograd.DeviceType.CUDA:
            samples.setdefault(found[1], []).append(event.time_range.elapsed_us())
    return {name: median(values) for name, values in samples.items()}


def lists() -> None:
    pyflash.keep_masks(0)  # all is made in each call
    for name, most in LISTED.items():
        for d_head in D_HEADS:
            with said(f"{name} {d_head}"):
                _listed(name, d_head, most)
            if ON_GPU:
                torch.cuda.empty_cache()
    pyflash.keep_masks(HELD)
    for d_head, config in ((128, ""), (128, default_of("alibi", 128)), (64, "")):
        with said(f"documents {d_head} {config}"):
            over_ideal(d_head, config)


def _listed(name: str, d_head: int, most: float) -> None:
    problem = problem_of(d_head, LONG, LONG, heads=2)  # two, so that bits are made
    run, inputs = ours(given_of(name, problem)), rotated_inputs(problem, DEVICE)[0]
    us = times_of_makers(lambda: run(*inputs))
    if ON_GPU and not us:
        raise RuntimeError("the profiler saw no kernel that makes lists")
    total, config = sum(us.values()), default_of(name, d_head).partition(":")[0]
    parts = ", ".join(f"{maker} {value:.0f}" for maker, value in sorted(us.items()))
    say(f"{name:10s} {config:26s} {total:6.0f} us {marked(total, most)}: {parts}")


def over_ideal(d_head: int, config: str) -> None:
    """Ideal: what equal documents of as many tokens take, by scores that are shown. Beside it what
    the tiles that are walked take at the speed of plain attention at 16k."""
    plain, problem = problem_of(d_head, TOKENS), problem_of(d_head, LONG, LONG)
    lengths = lengths_of_documents(LONG, 910)
    equal = [LONG // len(lengths)] * len(lengths)
    equal[-1] += LONG - sum(equal)
    named = {"config": config} if config else {}
    inputs = rotated_inputs(problem, DEVICE)
    runs = {"plain": (pyflash.attention, rotated_inputs(plain, DEVICE))}
    for name, of in (("documents", lengths), ("equal", equal)):
        doc = documents_of(of)[None].to(DEVICE)
        given = Given(variant_of("documents"), "documents", {"doc": doc})
        runs[name] = (ours(given, **named), inputs)
    us = microseconds(runs, 11)
    tiles = parse(config or default_of("documents", d_head))
    walked = walked_scores(lengths, tiles.B_r, tiles.B_c)
    shown, shown_equal = (sum(n * n for n in of) for of in (lengths, equal))
    ratio = us["equal"] * shown / shown_equal / us["documents"]
    of_plain = us["plain"] * walked / plain.seqlen_k**2 / us["documents"]
    say(
        f"{len(lengths)} documents, {shown / LONG:.0f} keys a query, {d_head}, {tiles.B_r} x "
        f"{tiles.B_c}: {us['documents']:.0f} us, {ratio:.3f} of ideal, bar 0.9"
        f"{'' if ratio >= 0.9 else ' missed'}; {of_plain:.3f} of plain by its tiles, which are "
        f"{walked / shown:.3f} of what is shown"
    )


PARTS: dict[str, Callable[[], None]] = {
    "build": build,
    "built": built,
    "lists": lists,
    "host": variant_host.host,
    "first": variant_host.first,
    "flex": lambda: flex_speed.main(times=True),
    "ahead": lambda: flex_speed.main(times=False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("parts", nargs="+", choices=PARTS, metavar="PART")
    device = torch.cuda.get_device_name() if ON_GPU else "CPU"
    for part in parser.parse_args().parts:
        start = time.monotonic()
        say(f"{part}: {device}, torch {torch.__version__}")
        with said(part):
            PARTS[part]()
        say(f"{part}: {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    with torch.no_grad():
        main()
