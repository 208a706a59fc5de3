"""A report of each kind that becomes a page or a picture, without a compiler or a GPU."""

from __future__ import annotations

import dataclasses
from typing import Any

from support.bench_records import record, run_of_four
from support.inspections import looked_into
from support.listings import BASE, BEST, recorded_kernel
from support.profiles import RECORDED, problem_of

from pyflash import Space
from pyflash.bench.ladder import Ladder, Step
from pyflash.bench.profiler_csv import Refused
from pyflash.bench.report import BenchReport
from pyflash.compare import compare, find_gpu, read
from pyflash.compare.joined import JoinedProfiles
from pyflash.compare.report import Comparison
from pyflash.config import Arch
from pyflash.emulator.report import Counts, Report
from pyflash.emulator.timeline import Event
from pyflash.inspect.diff import Diff, diff_of
from pyflash.inspect.inspection import Inspection, inspect
from pyflash.inspect.sheet import Sheet, SpaceSheet
from pyflash.tuner.report import TuningReport


def comparison() -> Comparison:
    return compare(
        problem_of(1024), map(read, sorted(RECORDED.glob("*.csv"))), [], find_gpu("H200")
    )


def joined_profiles() -> JoinedProfiles:
    """With a note, and a row that is refused."""
    first, second = (read(path) for path in sorted(RECORDED.glob("*_1024.gemm.csv")))
    refused = (Refused(3, "gemm", "no runtime"),)
    return JoinedProfiles(dataclasses.replace(first, note="a column more", refused=refused), second)


def difference() -> Diff:
    return diff_of((BASE, BEST), (recorded_kernel(BASE), recorded_kernel(BEST)))


def troubled(config) -> Inspection:
    """With every kind of note."""
    found = inspect(config.replace(B_r=128, B_c=128), "sm_86")
    return dataclasses.replace(
        looked_into(config), violations=found.violations, missing=found.missing, warnings=["slow"]
    )


def ladder() -> Ladder:
    flash, ours = record("PyTorch flash"), record()
    steps = [
        Step(1, "base", BASE, ours | {"ratio": 0.5}, recorded_kernel(BASE), 1000),
        Step(2, "best", BEST, ours, recorded_kernel(BEST), 0),
    ]
    return Ladder(Arch.of(90), "FP16, batch 4", steps, flash, {"traffic": "no g++"})


def bench() -> BenchReport:
    """One contender is refused, one has a config."""
    named = record() | {"short_form": str(BEST), "config": BEST.to_dict()}
    refused = record("FlashInfer") | {"status": "refused: not here", "timing": None}
    return BenchReport([*run_of_four(), named, refused])


def tuning() -> TuningReport:
    problem = {"problem": "fp16,batch=4,heads=16,seqlen=4096,d_head=128"}
    samples = [
        {"kind": "sample", "config": str(config), "features": "plain", "rung": 0,
         "seconds": seconds} | problem
        for config, seconds in ((BASE, 3e-3), (BEST, 2e-3))
    ]  # fmt: skip
    return TuningReport("tune.jsonl", [
        {"kind": "run", "gpu": "NVIDIA H200", "refused": {"smem_limit": 3}},
        *samples,
        {"kind": "failed", "stage": "check", "reason": "wrong: error 1 > 0.1"},
        {"kind": "winner", "config": str(BEST)} | problem,
    ])  # fmt: skip


def emulated() -> Report:
    """A producer that loads a tile, and a consumer that waits for it and runs an MMA."""
    numbers = {field.name: 0 for field in dataclasses.fields(Counts)}
    events = (
        Event(0, "load", "load K", 0, 0, 16384),
        Event(1, "wait", "wait for K", 0, 0, 0),
        Event(1, "mma", "S = Q K^T", 64, 0, 0),
        Event(1, "commit", "S = Q K^T", 0, 0, 0),
        Event(1, "mma_wait", "S = Q K^T", 0, 0, 0),
        Event(1, "exponentials", "softmax", 32, 0, 0),
        Event(1, "named_sync", "turns", 1, 0, 0),
    )
    return Report(
        "(FP16, 64, 64, 32, 1): sm90+stages_1", {}, "ascending", 0, 1, 256, 0, 0.1, True, {},
        Counts(**numbers), (), 1, ("producer", "consumer 0"), ("K full",), events,
    )  # fmt: skip


def pages() -> dict[str, Any]:
    """By the command that writes it."""
    space = Space(dtype="FP16", d_head=128, B_r=64, B_c=64)
    return {
        "inspect": troubled(BEST),
        "compare": dataclasses.replace(comparison(), refused=["qk.csv: line 3"]),
        "joined": joined_profiles(),
        "diff": difference(),
        "config": Sheet.of(BEST.replace(B_r=128, B_c=128)),
        "space": SpaceSheet.of(space, "sm_90"),
        "ladder": ladder(),
        "bench": bench(),
        "tune": tuning(),
    }
