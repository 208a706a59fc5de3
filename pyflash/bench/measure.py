"""One problem, all contenders: checks each, times those that are correct, and records each."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from pyflash.bench.contenders import BASELINE, FLEX, Contender, title_of
from pyflash.bench.passes import Errors, Inputs, Pass, calls, checker
from pyflash.bench.timing import Calls, Timing, time_in_turns
from pyflash.bench.variants import Given
from pyflash.bench.work import attention_flops, fused_bytes
from pyflash.op.selection import TORCH_DTYPES, Problem

GEMM = "GEMM"
_HOST_CALLS = 20  # as many fit into the queue of a GPU


@dataclass(frozen=True)
class Result:
    """The figures of one contender. `status` is "ok", or the reason for no timing."""

    problem: Problem
    contender: Contender
    status: str
    what: Pass = Pass.FORWARD
    error: float | None = None  # max|out - reference|, or of a gradient
    bound: float | None = None
    timing: Timing | None = None
    tflops: float | None = None
    ratio: float | None = None  # of its speed to the baseline's
    percent_of_gemm: float | None = None  # of the TFLOP/s of a bf16 GEMM
    gb_per_second: float | None = None  # forward: q, k and v read once, out and lse written once
    host_microseconds: float | None = None  # of a call, on a GPU
    given: Given | None = None

    def record(self) -> dict[str, Any]:
        """For JSON."""
        config = self.contender.config
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        problem = dataclasses.asdict(self.problem) | {"dtype": self.problem.dtype.name}
        if given := values.pop("given"):
            problem["variant"], values["variant_text"] = given.name, str(given.variant)
        return values | {
            "problem": problem,
            "contender": self.contender.name,
            "what": self.what.value,
            "config": config.to_dict() if config else None,
            "short_form": str(config) if config else None,
            "timing": dataclasses.asdict(self.timing) if self.timing else None,
        }


def run(
    problem: Problem,
    contenders: Iterable[Contender],
    n_samples: int,
    what: Pass = Pass.FORWARD,
    given: Given | None = None,
) -> list[Result]:
    """A result for each contender, in order. A contender that raises or is wrong is not timed. With
    a variant all compute that, forward."""
    device = torch.device(problem.device)
    buffers = rotated_inputs(problem, device)
    errors = checker(what, buffers[0], problem.options, given)
    checked = [
        dataclasses.replace(_check(problem, contender, what, errors), given=given)
        for contender in contenders
    ]
    timed: dict[str, Calls] = {GEMM: _gemm(device)}
    for i, result in enumerate(checked):
        if result.status == "ok":
            try:
                call = calls(what, result.contender, buffers)
                call(1)
            except (
                Exception
            ) as error:  # such as a backward pass that runs once for each forward pass
                checked[i] = dataclasses.replace(result, status=f"refused: {_first_line(error)}")
            else:
                timed[result.contender.name] = call
    timings = time_in_turns(timed, device, n_samples)
    host = {name: _host_microseconds(call, device) for name, call in timed.items()}
    gemm_tflops = _GEMM_SIZE[device.type] ** 3 * 2 / timings[GEMM].seconds / 1e12
    flops = given.flops(problem) if given else attention_flops(problem)
    return [_with_timing(result, timings, flops, gemm_tflops, host) for result in checked]


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


# NOTE: many CPUs multiply large bfloat16 matrices in a loop, at seconds each.
_GEMM_SIZE = {"cuda": 8192, "cpu": 256}


def _check(
    problem: Problem, contender: Contender, what: Pass, errors: Callable[[Contender], Errors]
) -> Result:
    try:
        error, bound = errors(contender)
    except Exception as error:  # of any package, which must not end the run of the others
        return Result(problem, contender, f"refused: {_first_line(error)}", what)
    status = "ok" if error <= bound else "wrong"
    return Result(problem, contender, status, what, error, bound)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _host_microseconds(call: Calls, device: torch.device) -> float | None:
    """The least of a few samples: what the CPU takes until a call returns. None on the CPU, where a
    call returns when all is computed."""
    if device.type == "cpu":
        return None
    samples = []
    for _ in range(5):
        torch.cuda.synchronize(device)
        start = time.perf_counter_ns()
        call(_HOST_CALLS)
        samples.append((time.perf_counter_ns() - start) / _HOST_CALLS / 1e3)
    return min(samples)


def _gemm(device: torch.device) -> Calls:
    n_rows = _GEMM_SIZE[device.type]
    a, b = (torch.randn(n_rows, n_rows, device=device, dtype=torch.bfloat16) for _ in range(2))

    def run(n: int) -> None:
        for _ in range(n):
            a @ b

    return run


def _with_timing(
    result: Result,
    timings: dict[str, Timing],
    flops: int,
    gemm_tflops: float,
    host: dict[str, float | None],
) -> Result:
    name, problem = result.contender.name, result.problem
    timing = timings.get(name)
    if timing is None:
        return result
    tflops = result.what.flops_of_forward * flops / timing.seconds / 1e12
    baseline = timings.get(title_of(FLEX) if result.given else BASELINE)
    forward = result.what is Pass.FORWARD
    return dataclasses.replace(
        result,
        timing=timing,
        tflops=tflops,
        ratio=baseline.seconds / timing.seconds if baseline else None,
        percent_of_gemm=100 * tflops / gemm_tflops,
        gb_per_second=fused_bytes(problem) / timing.seconds / 1e9 if forward else None,
        host_microseconds=host[name],
    )
