"""One problem, all contenders: checks each, times those that are correct, and records each."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyflash.bench.contenders import BASELINE, Contender
from pyflash.bench.timing import Calls, Timing, time_in_turns
from pyflash.op.reference import Expected, expect
from pyflash.op.selection import TORCH_DTYPES, Problem

GEMM = "GEMM"
Inputs = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Result:
    """The figures of one contender. `status` is "ok", or the reason for no timing."""

    problem: Problem
    contender: Contender
    status: str
    error: float | None = None  # max|out - reference|
    bound: float | None = None
    timing: Timing | None = None
    tflops: float | None = None
    ratio: float | None = None  # of its speed to the baseline's
    percent_of_gemm: float | None = None  # of the TFLOP/s of a bf16 GEMM

    def record(self) -> dict[str, Any]:
        """For JSON."""
        config = self.contender.config
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return values | {
            "problem": dataclasses.asdict(self.problem) | {"dtype": self.problem.dtype.name},
            "contender": self.contender.name,
            "config": config.to_dict() if config else None,
            "timing": dataclasses.asdict(self.timing) if self.timing else None,
        }


def flops(problem: Problem) -> int:
    """Of the two GEMMs: 4 * batch * heads * seqlen_q * seqlen_k * d_head, halved for causal."""
    rows = problem.batch * problem.heads_q * problem.seqlen_q
    factor = 2 if problem.options.get("causal") else 4
    return factor * rows * problem.seqlen_k * problem.d_head


def run(problem: Problem, contenders: Iterable[Contender], n_samples: int) -> list[Result]:
    """A result for each contender, in order. A contender that raises or is wrong is not timed."""
    device = torch.device(problem.device)
    buffers = rotated_inputs(problem, device)
    expected = expect(*buffers[0], **problem.options)
    checked = [_check(problem, contender, buffers[0], expected) for contender in contenders]
    calls: dict[str, Calls] = {GEMM: _gemm(device)}
    for result in checked:
        if result.status == "ok":
            calls[result.contender.name] = _calls(result.contender, buffers)
    timings = time_in_turns(calls, device, n_samples)
    gemm_tflops = _GEMM_SIZE[device.type] ** 3 * 2 / timings[GEMM].seconds / 1e12
    return [_with_timing(result, timings, gemm_tflops) for result in checked]


def rotated_inputs(problem: Problem, device: torch.device) -> list[Inputs]:
    """Normal random q, k and v, in so many buffers that L2 does not hold one until its next use:
    zeros, and data in the cache, flatter a GPU."""
    dtype = TORCH_DTYPES[problem.dtype]
    l2_bytes = (
        torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 0
    )
    q = (problem.batch, problem.seqlen_q, problem.heads_q, problem.d_head)
    kv = (problem.batch, problem.seqlen_k, problem.heads_kv, problem.d_head)
    n_bytes = 2 * (math.prod(q) + 2 * math.prod(kv))
    n_buffers = 2 + 2 * l2_bytes // n_bytes
    generator = torch.Generator(device).manual_seed(0)
    return [
        tuple(
            torch.randn(size, generator=generator, device=device, dtype=dtype)
            for size in (q, kv, kv)
        )
        for _ in range(n_buffers)
    ]


_GEMM_SIZE = {"cuda": 8192, "cpu": 1024}


def _check(problem: Problem, contender: Contender, inputs: Inputs, expected: Expected) -> Result:
    try:
        with contender.context():
            out = contender.run(*inputs)
    except RuntimeError as error:
        return Result(problem, contender, status=f"refused: {error}")
    error = expected.error(out)
    status = "ok" if error <= expected.bound else "wrong"
    return Result(problem, contender, status, error, expected.bound)


def _calls(contender: Contender, buffers: list[Inputs]) -> Calls:
    inputs = itertools.cycle(buffers)

    def run(n: int) -> None:
        with contender.context():
            for _ in range(n):
                contender.run(*next(inputs))

    return run


def _gemm(device: torch.device) -> Calls:
    n_rows = _GEMM_SIZE[device.type]
    a, b = (torch.randn(n_rows, n_rows, device=device, dtype=torch.bfloat16) for _ in range(2))

    def run(n: int) -> None:
        for _ in range(n):
            a @ b

    return run


def _with_timing(result: Result, timings: dict[str, Timing], gemm_tflops: float) -> Result:
    timing = timings.get(result.contender.name)
    if timing is None:
        return result
    tflops = flops(result.problem) / timing.seconds / 1e12
    baseline = timings.get(BASELINE)
    return dataclasses.replace(
        result,
        timing=timing,
        tflops=tflops,
        ratio=baseline.seconds / timing.seconds if baseline else None,
        percent_of_gemm=100 * tflops / gemm_tflops,
    )
