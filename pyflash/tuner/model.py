"""What a config is expected to take for a problem, before anything is compiled: it orders the
candidates, nothing else. The model of time is that of cute_kernels/host/expected_time.h, with costs
from peak rates instead of measurements: a step by those of tensor cores, exponentials and L2,
memory by its own, times the gain of each field in the family's record.

The emulator's counts are not asked: compiling a kernel for the CPU takes longer than for a GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from pyflash.bench.gpus import GPUS, find_gpu
from pyflash.config import Arch, KernelConfig
from pyflash.config.resources import Resources
from pyflash.op.options import windows_of
from pyflash.op.selection import Problem, expected_microseconds, tiles_of
from pyflash.op.tables import MAX_SPLITS

CPU = "cpu"  # its name in place of a GPU's
ELEMENT_BYTES = 2
_CLOCK = 1.7e9
_EXPONENTIALS_PER_CYCLE = 16  # of an SM
_STEP_CYCLES = 400  # of a CTA beside its GEMMs: barriers, addresses, the row maximum's chain
_TILE_CYCLES = 2500  # of a CTA beside its steps: prologue, Q, epilogue
_L2_RATE = 1.7  # over that of memory
_LAUNCH, _MERGE, _SPLIT = 3.0, 3.0, 0.06  # microseconds


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    arch: Arch
    n_sms: int
    flops: float  # per second, of 16-bit tensor instructions
    bytes_per_second: float


def gpu_of(device: torch.device, arch: Arch | str | int | None = None) -> Gpu:
    """The GPU of a device; for the CPU, which has no tensor cores, that of an H200 or, with `arch`,
    the first known one of that architecture. Raises ValueError for an unknown architecture."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        sm = properties.major * 10 + properties.minor
        name, n_sms = properties.name, properties.multi_processor_count
    else:
        sm, name, n_sms = Arch.of(arch or 90).sm, CPU, 132
    known = find_gpu(name) or next((gpu for gpu in GPUS if gpu.sm == sm), GPUS[0])
    return Gpu(
        name=name,
        arch=Arch.of(arch or sm),
        n_sms=n_sms,
        flops=known.tflops * 1e12,
        bytes_per_second=known.gb_per_second * 1e9,
    )


def scores(problem: Problem) -> int:
    """Pairs of a query and a key that it attends, of one head of one sequence."""
    n, keys = problem.seqlen_q, problem.seqlen_k
    left, right = windows_of(problem.options, n, keys)
    first = keys - n  # the key that is aligned with the first query
    ends = _sum_clamped(first + right + 1, n, keys) if right >= 0 else n * keys
    return ends - (_sum_clamped(first - left, n, keys) if left >= 0 else 0)


def _sum_clamped(first: int, n: int, most: int) -> int:
    """The sum of n successive integers, each clamped to [0, most]."""

    def up_to(last: int) -> int:
        inside = max(0, min(last, most))
        return inside * (inside + 1) // 2 + max(0, last - most) * most

    return up_to(first + n - 1) - up_to(first - 1)


def flops(problem: Problem) -> int:
    """The FLOPs of both GEMMs, for the scores that are not masked."""
    return 4 * problem.batch * problem.heads_q * scores(problem) * problem.d_head


def split_counts(config: KernelConfig, problem: Problem, gpu: Gpu) -> list[int]:
    """Numbers of splits to try, ascending: about those that fill the GPU once. None where one pass
    fills it, or where there are too few keys to split."""
    slots = gpu.n_sms * max(1, config.resources(gpu.arch).num_ctas_per_sm)
    n_blocks = math.ceil(scores(problem) / max(1, problem.seqlen_q) / config.B_c)
    filling = slots // max(1, tiles_of(problem, config, gpu.arch.sm, gpu.n_sms))
    most = min(2 * filling, n_blocks // 2, MAX_SPLITS)
    if filling < 2 or most < 2:
        return []
    powers = (1 << i for i in range(most.bit_length()))
    return sorted({1, min(filling, most), *(n for n in powers if 8 * n >= filling)})


def predict(config: KernelConfig, problem: Problem, gpu: Gpu) -> float:
    """Seconds, by the model. `config` is legal on the GPU's architecture."""
    costs = [_peak_costs(config, gpu)]
    (microseconds,) = expected_microseconds(problem, config, gpu.arch.sm, gpu.n_sms, costs)
    return microseconds * 1e-6


def _peak_costs(config: KernelConfig, gpu: Gpu) -> dict[str, float]:
    """`COSTS` of a config at the peak rates of the GPU's units."""
    rate = gpu.flops / gpu.n_sms / _CLOCK * config.family.mma_rate(gpu.arch)  # FLOPs per SM cycle
    mma = 4 * config.B_r * config.B_c * config.d_head / rate
    softmax = config.B_r * config.B_c / _EXPONENTIALS_PER_CYCLE
    block_bytes = 2 * config.B_c * config.d_head * ELEMENT_BYTES  # of K and V
    load = block_bytes / (gpu.bytes_per_second * _L2_RATE / gpu.n_sms / _CLOCK)
    busy = max(mma, softmax, load) + 0.4 * min(mma, softmax)  # of the SM, per step
    alone = busy + _STEP_CYCLES
    per_cycle = 1e6 / _CLOCK * _factor(config) * _spilling(config.resources(gpu.arch))
    megabyte = 1e12 / gpu.bytes_per_second
    return {
        "launch": _LAUNCH,
        "tile": _TILE_CYCLES * per_cycle,
        "step": alone * per_cycle,
        "share": busy / alone,  # CTAs of an SM hide each other's latency, and share its units
        "rows": 0.0,
        "mask": 0.0,
        "capped": 1.0,
        "megabyte": megabyte,
        "merge": _MERGE,
        "split": _SPLIT,
        "partial": megabyte,
    }


def _spilling(resources: Resources) -> float:
    """Times as long. On an H200 SM80 configs whose demand is up to 1.15 times the limit are as fast
    as those of the same tile that fit."""
    return max(1.0, resources.register_demand / resources.register_limit / 1.15)


def _factor(config: KernelConfig) -> float:
    slowdowns = config.family.slowdowns
    return math.prod(of.get(getattr(config, name), 1.0) for name, of in slowdowns.items())
