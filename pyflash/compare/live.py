"""Comparisons measured on this machine's GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from pyflash.bench import profiler_csv, work
from pyflash.bench.attention_rows import PROVIDER, attention_row
from pyflash.bench.contenders import pyflash_configs
from pyflash.bench.gpus import find_gpu
from pyflash.bench.measure import run
from pyflash.bench.profiler_csv import Profile
from pyflash.compare.generated import run_generated
from pyflash.compare.profiler import run_profiler
from pyflash.compare.report import Comparison, compare
from pyflash.op.selection import Problem, select


def measure_gemms(
    problem: Problem,
    profiler: Path | None,
    kernels: str | None = None,
    verify: bool = False,
    n_samples: int = 25,
) -> list[Profile]:
    """QK^T and PV by the profiler or, where `profiler` is None, by kernels of cutlass_library.

    Raises ProfilerError or BuildError.
    """
    gemms = work.gemms_of(problem)
    if profiler is not None:
        return [run_profiler(profiler, gemm, kernels, verify) for gemm in gemms]
    return [run_generated(gemm, torch.device(problem.device), n_samples) for gemm in gemms]


def measure_fused(problem: Problem, configs: Sequence = (), n_samples: int = 25) -> Profile:
    """pyflash's own rows, each checked and then timed; by default of the config that `attention`
    selects."""
    contenders = pyflash_configs(configs or [select(problem).config], work.is_causal(problem))
    rows = (attention_row(result.record()) for result in run(problem, contenders, n_samples))
    return profiler_csv.parse(profiler_csv.as_text(rows), PROVIDER)


def compare_on_gpu(
    problem: Problem,
    profiler: Path | None,
    configs: Sequence = (),
    kernels: str | None = None,
    verify: bool = False,
    n_samples: int = 25,
) -> tuple[Comparison, list[Profile]]:
    """The comparison, and the profiles that it is made of. Needs the GPU `problem.device`."""
    gemms = measure_gemms(problem, profiler, kernels, verify, n_samples)
    fused = measure_fused(problem, configs, n_samples)
    gpu = find_gpu(torch.cuda.get_device_name(torch.device(problem.device)))
    return compare(problem, gemms, [fused], gpu), [*gemms, fused]
